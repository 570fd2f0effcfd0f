"""Model text → action, and the episode → pairs of a step and what it is based on. It belongs to `prompt.py`."""

import dataclasses
from collections.abc import Sequence

from ragrl_jax.core.rewards.faithful import Pair
from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.search_agent import STOPS, Parser
from ragrl_jax.structs import MODEL, Segment

__all__ = ["STOPS", "Parser", "Steps", "steps"]

_NAMES = ("think", "search", "answer")


@dataclasses.dataclass(frozen=True)
class Steps:
  """The (premise, claim) pairs of an episode, in order of time; a side that is missing is None.

  Attributes:
    think_search: (thought, query) of each executed search: the last thought before it in its own turn.
    information_think: (results, thought) of each result block: the thought that the next turn begins with.
    think_answer: (thought, answer) of the last answer: the latest thought before it; empty without an answer.
    spoken: for each of information_think, the position in the turns of the segment that holds (or lacks) the thought;
      None where the model said nothing more.
  """

  think_search: tuple[Pair, ...]
  information_think: tuple[Pair, ...]
  think_answer: tuple[Pair, ...]
  spoken: tuple[int | None, ...]


def steps(turns: Sequence[Segment]) -> Steps:
  """Reads the pairs off the segments of an episode, prompt left out.

  Results are what the environment brought, in its own segments. A block that the model writes itself is neither
  results, nor may thoughts, queries and answers stand in it. A tag that is never closed opens nothing; a thought inside
  a query or an answer is none; an empty one is none.
  """
  asked: list[Pair] = []
  read: list[tuple[str, str | None, int | None]] = []
  answered: list[Pair] = []
  unread: str | None = None  # results that no turn has followed yet
  latest: str | None = None  # thought
  query_thought: str | None = None
  for place, segment in enumerate(turns):
    if segment.owner == MODEL:
      said = tags.without(segment.text, "information")
      blocks = tags.outer(said, _NAMES)
      thoughts = [block for block in blocks if block.name == "think" and block.body.strip()]
      if unread is not None:
        begins = thoughts and thoughts[0] == blocks[0]
        read.append((unread, thoughts[0].body.strip() if begins else None, place))
        unread = None
      if (answer := tags.last(said, "answer")) is not None:
        before = _last_before(thoughts, answer.start)
        answered = [(latest if before is None else before, answer.body.strip() or None)]
      query = tags.last(said, "search")
      query_thought = None if query is None else _last_before(thoughts, query.start)
      latest = thoughts[-1].body.strip() if thoughts else latest
    elif segment.found is not None:
      if unread is not None:
        read.append((unread, None, None))
      asked.append((query_thought, segment.query or None))
      unread, query_thought = _body(segment.text), None
  if unread is not None:
    read.append((unread, None, None))
  return Steps(
    tuple(asked),
    tuple((block, thought) for block, thought, _ in read),
    tuple(answered),
    tuple(place for _, _, place in read),
  )


def _last_before(thoughts: Sequence[tags.Pair], end: int) -> str | None:
  return next((thought.body.strip() for thought in reversed(thoughts) if thought.end <= end), None)


def _body(block: str) -> str:
  """The text of a result block, without its tags."""
  return block.strip().removeprefix(passages.OPEN).removesuffix(passages.CLOSE).strip()
