"""A corpus split over several servers. Every search asks all of them and merges their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.remote import RemoteRetriever

SCORING = ("kind", "encoder", "dtype", "k1", "b", "words")  # entries of a description on which the scores depend


class ShardedRetriever:
  """Searches all parts at the same time. The answer is that of one index over the whole corpus.

  Each part waits and retries as `RemoteRetriever` does. If a part does not answer, the search fails, because an answer
  without it would look like that of a smaller corpus. Passages with equal scores keep the order of the parts.

  Args:
    parts: clients of the servers. Parts made by `build_index` are sorted; others keep the given order.

  Raises:
    ValueError: the servers do not have each part of one corpus exactly once.
  """

  def __init__(self, parts: Sequence[RemoteRetriever]):
    shards = [_shard(part) for part in parts]
    known = [shard for shard in shards if shard is not None]
    if known:
      numbers = sorted(shard["number"] for shard in known)
      wanted = list(range(1, known[0]["of"] + 1))
      same = all(shard["of"] == known[0]["of"] and shard["made"] == known[0]["made"] for shard in known)
      if len(known) < len(parts) or not same or numbers != wanted:
        said = "; ".join(f"{part.name}: {_told(shard)}" for part, shard in zip(parts, shards))
        raise ValueError(
          f"{said}: together they must be all parts of one corpus, each once, with the same encoder "
          "(config.retrieval.index)."
        )
      parts = [parts[place] for place in sorted(range(len(parts)), key=lambda place: known[place]["number"])]
    self._parts = list(parts)

  def describe(self) -> dict[str, Any]:
    """The settings of all parts, which are stored with every score."""
    return dict(kind="sharded", parts=[part.describe() for part in self._parts])

  def close(self) -> None:
    """Ends all waits for servers."""
    for part in self._parts:
      part.close()

  def search(self, queries: Sequence[str], k: int) -> api.Answers:
    """See `api.Retriever`. Raises RetrievalFailed: a part gave no valid answer; the message names it."""
    return api.each(queries, k, self._search)

  def read(self, asked: Sequence[tuple[str, str]], k: int) -> api.Answers:
    """See `documents.read`. If a document is split over two parts, only the part with the opened passage is read."""
    everywhere = self._asked(lambda part: part.read(asked, k))
    return [next((passages for passages in found if passages), []) for found in zip(*everywhere, strict=True)]

  def _search(self, texts: list[str], k: int) -> api.Answers:
    return [self._merged(found, k) for found in zip(*self._asked(lambda part: part.search(texts, k)), strict=True)]

  def _asked(self, call: Callable[[RemoteRetriever], api.Answers]) -> list[api.Answers]:
    """The result of `call` for each part. All parts are called at the same time."""
    answers: list[Any] = [None] * len(self._parts)

    def ask(place: int) -> None:
      try:
        answers[place] = call(self._parts[place])
      except Exception as error:  # noqa: BLE001  (raised below, on the thread that searches)
        answers[place] = error

    # Not a pool: Python waits for a pool's threads at exit, so a hanging search would keep a failed run alive.
    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(1, len(self._parts))]
    for thread in threads:
      thread.start()
    ask(0)
    for thread in threads:
      thread.join()
    if failed := [answer for answer in answers if isinstance(answer, Exception)]:
      raise failed[0]
    return answers

  def _merged(self, found: tuple[list, ...], k: int) -> list:
    for part, passages in zip(self._parts, found):
      if any(passage.score is None for passage in passages):
        raise api.RetrievalFailed(f"{part.name} returns no scores: parts of a corpus cannot be merged without them.")
    together = [passage for passages in found for passage in passages]
    return sorted(together, key=lambda passage: -passage.score)[:k]  # stable: equal scores keep the order of the parts


def _shard(part: RemoteRetriever) -> dict[str, Any] | None:
  """A server's description of its part: {"number", "of", "made": corpus and settings}; None if it gives none."""
  index = part.describe()["server"].get("retriever")
  shard = index.get("shard") if isinstance(index, dict) else None
  if not isinstance(shard, dict) or not all(isinstance(shard.get(name), int) for name in ("number", "of")):
    return None
  made = dict(corpus=shard.get("corpus"), **{name: index[name] for name in SCORING if name in index})
  return dict(number=shard["number"], of=shard["of"], made=made)


def _told(shard: Mapping[str, Any] | None) -> str:
  if shard is None:
    return "a whole index"
  return f"part {shard['number']} of {shard['of']} of {str(shard['made']['corpus'])[:12]} ({shard['made'].get('kind')})"
