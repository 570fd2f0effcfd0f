"""Model text → its sections. Written against `prompt.py`."""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.recipes import sections

NAMES = ("reason", "extract", "answer")
END, EXTRACTED = "</answer>", "</extract>"


@dataclasses.dataclass(frozen=True)
class Parser(sections.Parser):
  """Reads single sections as `sections.Parser` does: `section`, `answer`."""

  sections: tuple[str, ...] = NAMES
  stops: tuple[str, ...] = (END, EXTRACTED)

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
    found = super().pair(text, name)
    return None if found and name == "reason" and "<extract>" in text[: found.end] else found
