"""The parser: it reads the sections that prompt.py asks for from the model's text. Next: play.py."""

import dataclasses
import re

from ragrl_jax.core.text import tags
from ragrl_jax.recipes.arena.prompt import SECTIONS
from ragrl_jax.structs import Passage

STOPS = ("</answer>",)


@dataclasses.dataclass(frozen=True)
class Parser:
  """
  Attributes:
    shape: "strict": the sections are the whole text, with nothing but white space between and after them, and no
      body holds one of their tags. "repo": as the authors' code, where junk on later lines passes and "a < b" does not.
    sections: their names, in order.
  """

  shape: str = "strict"
  sections: tuple[str, ...] = SECTIONS["cited"]

  def in_shape(self, text: str) -> bool:
    """Whether the text has every section, in order, as `shape` demands."""
    if self.shape == "repo":  # no "<" in a body, and after the answer only the line has to end, not the text
      pattern = r"\s*".join(f"<{name}>[^<]*</{name}>" for name in self.sections)
      return re.match(f"{pattern}$", text, re.MULTILINE) is not None
    if not text.startswith(f"<{self.sections[0]}>"):
      return False
    parts = tags.sections(text, self.sections)
    return parts is not None and tuple(part.name for part in parts) == self.sections

  def section(self, text: str, name: str) -> str | None:
    """The first complete section of this name, stripped, whatever stands around it."""
    found = tags.pairs(text, name, opening="first")
    return found[0].body.strip() if found else None

  def answer(self, text: str) -> str | None:
    """The first complete answer, stripped; None if there is none."""
    return self.section(text, "answer")

  def stop(self, text: str) -> str:
    """The stop string that a model turn ends on, white space aside; "eos" if there is none."""
    return next((stop for stop in STOPS if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """Nothing is searched for here: whatever the environment says is a notice."""
    return None, None
