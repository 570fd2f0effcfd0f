"""The parser: it reads the sections that prompt.py asks for from the model's text. Next: play.py."""

import dataclasses
import re

from ragrl_jax.core.text import tags
from ragrl_jax.recipes import parts


@dataclasses.dataclass(frozen=True)
class Parser(parts.SectionParser):
  """Reads single sections as `parts.SectionParser` does: `section`, `answer`.

  Attributes:
    shape: "strict": the text consists of the sections, with only white space around them, and no body contains one of
      their tags. "repo": as in the authors' code, which allows further lines at the end and forbids "a < b".
  """

  shape: str = "strict"

  def in_shape(self, text: str) -> bool:
    """Whether the text has every section, in order, as `shape` requires."""
    text = self.reply(text, self.sections[0])
    if self.shape == "repo":  # no "<" in a body; after the answer only the line must end, not the text
      pattern = r"\s*".join(f"<{name}>[^<]*</{name}>" for name in self.sections)
      return re.match(f"{pattern}$", text, re.MULTILINE) is not None
    found = tags.sections(text, self.sections) if text.startswith(f"<{self.sections[0]}>") else None
    return found is not None and tuple(part.name for part in found) == self.sections
