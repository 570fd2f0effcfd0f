"""Replies in tagged sections, `<name>…</name>`, written in one turn without a search.

ARENA's and LEAR's parsers build on it; each adds the rules of its own format.
"""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.recipes import parts


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Model text → its sections.

  Attributes:
    sections: the names that make up a reply, in order.
    stops: the stop strings of a turn.
  """

  sections: tuple[str, ...]
  stops: tuple[str, ...] = ("</answer>",)

  def pair(self, text: str, name: str) -> tags.Pair | None:
    """The first complete section of this name, wherever it is."""
    found = tags.pairs(text, name, opening="first")
    return found[0] if found else None

  def section(self, text: str, name: str) -> str | None:
    """The body of the section of this name, stripped; None if there is none."""
    pair = self.pair(text, name)
    return None if pair is None else pair.body.strip()

  def answer(self, text: str) -> str | None:
    """The body of the answer's section, stripped; None if there is none."""
    return self.section(text, "answer")
