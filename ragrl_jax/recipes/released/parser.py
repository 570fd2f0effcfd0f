"""Model text → the next query, and the answer, in an agent's own tags."""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.released import tags as tags_lib
from ragrl_jax.recipes.released.agents import PLAYED
from ragrl_jax.structs import Passage

END = tags_lib.ANSWER[1]


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads the replies of an agent of `tags_lib.AGENTS`."""

  agent: str = "search_r1"

  @property
  def tags(self) -> tags_lib.AgentTags:
    """The agent's tags."""
    return tags_lib.AGENTS[self.agent]

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn. An agent that answers in a box ends with its turn."""
    return (self.tags.query[1],) if self.tags.answered == "box" else (self.tags.query[1], END)

  def query(self, text: str) -> str | None:
    """The last query of a turn, with single spaces; None without a query.

    An empty one is a query for Search-R1 and the agents on its code, which search for it, and none for the others.
    """
    opening, closing = self.tags.query
    said, closed, _ = self.own(text).rpartition(closing)
    if not closed or opening not in said:
      return None
    query = " ".join(said.rpartition(opening)[2].split())
    return query if query or PLAYED[self.agent].notice else None

  def answer(self, text: str) -> str | None:
    """The last complete answer in a turn, or None. A box before a query does not count."""
    said = self.own(text)
    if self.tags.answered == "box":
      return tags_lib.boxed(said.rpartition(self.tags.query[1])[2])
    found = tags.last(said, "answer")
    if found is None:
      return None
    box = tags_lib.boxed(found.body) if self.tags.answered == "boxed" else None
    return found.body.strip() if box is None else box

  def own(self, text: str) -> str:
    """The text without result blocks that the model wrote itself. A tag that it never closes is a mention."""
    return tags.without(text, *self.tags.results)

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice. A block in a foreign format is one passage."""
    inside = PLAYED[self.agent].inside(text)
    if inside is None:
      return None, None
    found = passages.parse_block(f"{passages.OPEN}{inside}{passages.CLOSE}")
    return self.query(said), (Passage("1", "", inside.strip()),) if found is None else found
