"""A search agent's episode → pairs of a step and its basis, for judges of faithfulness. See `search_agent`."""

import dataclasses
from collections.abc import Sequence

from ragrl_jax.core.rewards.faithful import Pair
from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.search_agent import own
from ragrl_jax.structs import MODEL, THINK, THOUGHT, Segment

# Field of Steps, which is also the name of a reward term and of a judge's question → what is judged.
TERMS = {
  "information_think": "thought after results",
  "think_search": "query after its thought",
  "think_answer": "answer after its thought",
}
_NAMES = ("think", "search", "answer")
_READS = ("open", "find")  # count as searches where an agent reads documents (search_r1's preset browse)


@dataclasses.dataclass(frozen=True)
class Steps:
  """The (premise, claim) pairs of an episode, in order of time. A missing side is None.

  Attributes:
    think_search: (thought, query) of each executed search. The thought is the last one before the query in its turn.
    information_think: (results, thought) of each result block. The thought is at the beginning of the next turn.
    think_answer: (thought, answer) of the last answer, with the last thought before it; empty without an answer.
    spoken: for each pair of information_think, the position in the turns of the segment with (or without) the thought;
      None if no model segment follows.
  """

  think_search: tuple[Pair, ...]
  information_think: tuple[Pair, ...]
  think_answer: tuple[Pair, ...]
  spoken: tuple[int | None, ...]


def steps(turns: Sequence[Segment], action: str = "last") -> Steps:
  """Reads the pairs from the segments of an episode, without the prompt, as `Parser(action)` did in play.

  Results are only in segments of the environment. A result block that the model writes itself is ignored, including
  thoughts, queries and answers in it. Tags that are never closed, thoughts inside a query or an answer, and empty
  thoughts do not count.
  """
  asked: list[Pair] = []
  read: list[tuple[str, str | None, int | None]] = []
  answered: list[Pair] = []
  unread = False  # whether no turn has followed the last results so far
  latest: str | None = None  # the latest thought
  query_thought: str | None = None
  for place, segment in enumerate(turns):
    if segment.owner == MODEL:
      text = own(segment.text)
      blocks = tags.outer(text, _NAMES)
      thoughts = [block for block in blocks if block.name == "think" and block.body.strip()]
      if unread:
        begins = thoughts and thoughts[0] == blocks[0]
        read[-1] = (read[-1][0], thoughts[0].body.strip() if begins else None, place)
        unread = False
      acted = _blanked(text)
      if answers := tags.pairs(acted, "answer", opening=action):
        answer = answers[-1]
        before = _last_before(thoughts, answer.start)
        answered = [(latest if before is None else before, answer.body.strip() or None)]
      find = tags.last if action == "last" else tags.first_match
      query = find(acted, "search") or find(acted, _READS)
      query_thought = None if query is None else _last_before(thoughts, query.start)
      latest = thoughts[-1].body.strip() if thoughts else latest
    elif segment.found is not None:
      asked.append((query_thought, segment.query or None))
      read.append((_body(segment.text), None, None))
      unread, query_thought = True, None
  return Steps(
    tuple(asked),
    tuple((block, thought) for block, thought, _ in read),
    tuple(answered),
    tuple(place for _, _, place in read),
  )


def _blanked(text: str) -> str:
  """`search_agent.acted` with as many spaces in place of each complete thought, so that places stay."""
  for start, end in tags.blocks(text, THINK, THOUGHT):
    text = text[:start] + " " * (end - start) + text[end:]
  return text


def _last_before(thoughts: Sequence[tags.Pair], end: int) -> str | None:
  return next((thought.body.strip() for thought in reversed(thoughts) if thought.end <= end), None)


def _body(block: str) -> str:
  """The text of a result block, without its tags."""
  return block.strip().removeprefix(passages.OPEN).removesuffix(passages.CLOSE).strip()
