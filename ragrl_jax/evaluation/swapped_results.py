"""Gives the searches of an episode other passages than the retriever's: none, random, another question's, the gold."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.store import episodes
from ragrl_jax.structs import Example, Passage

OWN, EMPTY, RANDOM, SHUFFLED, ORACLE = "own", "empty", "random", "shuffled", "oracle"
# (the run's tools, question, query, number of passages, titles and texts shown before in this episode) → passages
Find = Callable[[structs.Tools, Example, str, int, set], Awaitable[Sequence[Passage]]]


class SwappedTools:
  """The tools of one episode, in which `find` answers the searches. Documents are opened as in the run."""

  def __init__(self, tools: structs.Tools, example: Example, find: Find, top_k: int):
    self._tools, self._example, self._find, self._top_k = tools, example, find, top_k
    self._shown: set = set()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[Passage, ...]:
    """See `structs.Tools`."""
    result = await self._find(self._tools, self._example, query, self._top_k if k is None else k, self._shown)
    self._shown.update(map(_key, result))
    return tuple(result)


def swapped(play, find: Find, top_k: int):
  """The recipe's `play`, in which `find` answers the searches."""
  return lambda example, policy, tools: play(example, policy, SwappedTools(tools, example, find, top_k))


def finders(examples: Sequence[Example], corpus: Any, seed: int) -> dict[str, Find | str]:
  """{name: what answers the searches, or why this cannot be measured}.

  empty: no passages. random: passages of the corpus, drawn by the query and the seed. shuffled: what the retriever
  finds for another question, without golds in common, also drawn by question and query. oracle: the supporting passages
  that the episode has not seen, then the retriever's, k together; a question without known ones is not asked.

  Args:
    corpus: the retriever's corpus; None if it is behind an address or joins several indexes.
    seed: of the drawing.
  """
  return {
    EMPTY: _nothing,
    RANDOM: "the corpus is not on this machine" if corpus is None else _drawn(corpus, seed),
    SHUFFLED: _of_others(examples, seed) if len({one.golds for one in examples}) > 1 else "all golds are the same",
    ORACLE: _gold_first(corpus)
    if any(supporting(one, corpus) for one in examples)
    else "no row has its supporting passages",
  }


def supporting(example: Example, corpus: Any) -> list[Passage]:
  """The supporting passages of a question: those of its row, or those of the corpus with its gold ids."""
  result = [*(example.passages[i] for i in example.supporting), *example.meta.get(episodes.GOLDS, ())]
  if result or corpus is None:
    return result
  rows = (corpus.row_of(str(name)) for name in example.meta.get("gold_ids", ()))
  return [corpus[row] for row in rows if row is not None]


async def _nothing(tools, example, query, k, shown) -> Sequence[Passage]:
  return ()


def _drawn(corpus: Any, seed: int) -> Find:
  async def find(tools, example, query, k, shown):
    rows = random.Random(f"{seed} {query}").sample(range(len(corpus)), min(k, len(corpus)))
    return [corpus.scored(row, 0.0) for row in rows]

  return find


def _of_others(examples: Sequence[Example], seed: int) -> Find:
  golds = lambda example: {gold.casefold() for gold in example.golds}

  async def find(tools, example, query, k, shown):
    first = random.Random(f"{seed} {example.id} {query}").randrange(len(examples))
    others = (examples[(first + step) % len(examples)] for step in range(len(examples)))
    other = next((one for one in others if golds(one).isdisjoint(golds(example))), None)
    return () if other is None else await tools.search(other.question, k)

  return find


def _gold_first(corpus: Any) -> Find:
  async def find(tools, example, query, k, shown):
    unseen = {_key(one): one for one in supporting(example, corpus) if _key(one) not in shown}
    for one in await tools.search(query, k):
      unseen.setdefault(_key(one), one)
    return list(unseen.values())[:k]

  return find


def _key(passage: Passage) -> tuple[str, str]:
  return passage.title, passage.text
