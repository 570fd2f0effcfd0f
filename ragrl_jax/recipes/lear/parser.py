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
    """The section that a separate generator answers from; "" for free text, all of which is evidence."""
    return "extract" if "extract" in self.sections else "reason" if "reason" in self.sections else ""

  def written(self, text: str) -> str:
    """The evidence: the body of its section, or the whole of a free text; "" if there is none."""
    return (self.section(text, self.evidence) or "") if self.evidence else text.strip()

  def in_shape(self, text: str) -> bool:
    """Whether there is exactly one section of each name, in order, with only white space around them.

    No body may contain a tag of any section. Every body except the answer's must have a letter or a digit, and so must
    free text.
    """
    if not self.sections:
      return says_something(text)
    parts = tags.sections(text, NAMES)
    return (
      parts is not None
      and tuple(part.name for part in parts) == self.sections
      and all(says_something(part.body) for part in parts if part.name != "answer")
    )

  def pair(self, text: str, name: str) -> tags.Pair | None:
    """The first complete section of this name, anywhere in the text; an answer only outside of the other sections.

    A reason counts as missing if an extract begins before its end. The answer from the reason alone continues from all
    text up to that end, and must not see the evidence.
    """
    if name == "answer":  # a reason may speak of the tag
      read = text
      for other in tags.outer(text, NAMES[:2]):
        read = f"{read[: other.start]}{' ' * (other.end - other.start)}{read[other.end :]}"
      found = super().pair(read, name)
      body = slice(found.start + len("<answer>"), found.end - len(END)) if found else slice(0)
      return dataclasses.replace(found, body=text[body]) if found else None
    found = super().pair(text, name)
    return None if found and name == "reason" and "<extract>" in text[: found.end] else found


def says_something(text: str) -> bool:
  """Whether the text has a letter or a digit. "." or invisible characters alone are no reason and no evidence."""
  return any(map(str.isalnum, text))
