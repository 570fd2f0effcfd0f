"""Model text → its three sections. Written against `prompt.py`."""

import dataclasses
import re

from ragrl_jax.core.text import tags
from ragrl_jax.structs import Passage

NAMES = ("relevance", "analysis", "answer")
STOPS = ("</answer>",)

# As the authors' code checks it: no "<" in a body, and after the answer only the line has to end, not the text.
_REPO = re.compile(
  r"<relevance>[^<]*</relevance>\s*<analysis>[^<]*</analysis>\s*<answer>[^<]*</answer>$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Parser:
  """
  Attributes:
    shape: "strict": the three sections are the whole text, with nothing but white space between and after them, and no
      body holds one of their tags. "repo": as the authors' code, where junk on later lines passes and "a < b" does not.
  """

  shape: str = "strict"

  def in_shape(self, text: str) -> bool:
    if self.shape == "repo":
      return _REPO.match(text) is not None
    if not text.startswith("<relevance>"):
      return False
    parts = tags.sections(text, NAMES)
    return parts is not None and tuple(part.name for part in parts) == NAMES

  def section(self, text: str, name: str) -> str | None:
    """The first complete section of this name, stripped, whatever stands around it."""
    found = tags.pairs(text, name, opening="first")
    return found[0].body.strip() if found else None

  def answer(self, text: str) -> str | None:
    return self.section(text, "answer")

  def stop(self, text: str) -> str:
    return next((stop for stop in STOPS if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """Nothing is searched for here: whatever the environment says is a notice."""
    return None, None
