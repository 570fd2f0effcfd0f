"""The parser: it reads the sections that prompt.py asks for from the model's text. Next: play.py."""

import dataclasses
import re

from ragrl_jax.core.text import tags
from ragrl_jax.recipes import sections


@dataclasses.dataclass(frozen=True)
class Parser(sections.Parser):
  """Reads single sections as `sections.Parser` does: `section`, `answer`.

  Attributes:
    shape: "strict": the sections are the whole text, with nothing but white space between and after them, and no
      body holds one of their tags. "repo": as the authors' code, where junk on later lines passes and "a < b" does not.
  """

  shape: str = "strict"

  def in_shape(self, text: str) -> bool:
    """Whether the text has every section, in order, as `shape` demands."""
    if self.shape == "repo":  # no "<" in a body, and after the answer only the line has to end, not the text
      pattern = r"\s*".join(f"<{name}>[^<]*</{name}>" for name in self.sections)
      return re.match(f"{pattern}$", text, re.MULTILINE) is not None
    parts = tags.sections(text, self.sections)  # one after another; before the first, white space may stand
    opened = text.startswith(f"<{self.sections[0]}>")
    return opened and parts is not None and tuple(part.name for part in parts) == self.sections
