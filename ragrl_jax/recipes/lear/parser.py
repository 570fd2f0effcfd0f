"""Model text → its sections. Written against `prompt.py`."""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.structs import Passage

NAMES = ("reason", "extract", "answer")
END, EXTRACTED = "</answer>", "</extract>"


@dataclasses.dataclass(frozen=True)
class Parser:
  """sections: the names that make up a reply, in order."""

  sections: tuple[str, ...] = NAMES

  @property
  def evidence(self) -> str:
    """The section that a separate generator would answer from."""
    return "extract" if "extract" in self.sections else "reason"

  def in_shape(self, text: str) -> bool:
    """Exactly one section of each name, in order, with nothing but white space around them, and none but the answer
    empty. No body may hold a tag of any section."""
    parts = tags.sections(text, NAMES)
    return (
      parts is not None
      and tuple(part.name for part in parts) == self.sections
      and all(part.body.strip() for part in parts if part.name != "answer")
    )

  def pair(self, text: str, name: str) -> tags.Pair | None:
    """The first complete section of this name, whatever stands around it.

    A reason counts as missing where an extract begins before it ends: what is answered from the reason alone goes on
    from everything up to its end, and must not have seen the evidence.
    """
    found = tags.pairs(text, name, opening="first")
    if not found or name == "reason" and "<extract>" in text[: found[0].end]:
      return None
    return found[0]

  def section(self, text: str, name: str) -> str | None:
    """The body of the section of this name, stripped; None if there is none."""
    pair = self.pair(text, name)
    return None if pair is None else pair.body.strip()

  def answer(self, text: str) -> str | None:
    """The body of the answer's section, stripped; None if there is none."""
    return self.section(text, "answer")

  def stop(self, text: str) -> str:
    """The stop string that a model turn ends on, white space aside; "eos" if there is none."""
    return next((stop for stop in (END, EXTRACTED) if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """What the environment says is no result of a search of the model's."""
    return None, None
