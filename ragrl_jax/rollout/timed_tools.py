"""Tools that record their cost: the seconds of waiting for judges, and why an episode got no verdict."""

import time
from collections.abc import Coroutine, Sequence
from typing import Any

from ragrl_jax import structs


class TimedTools:
  """Wraps Tools and times waits caused by judges alone. Other attributes are those of the wrapped Tools."""

  def __init__(self, tools: structs.Tools):
    self._tools = tools
    self._state = 0, 0, 0.0, 0.0  # searches and judgements in progress; seconds up to the last change, and its time

  def judging_s(self) -> float:
    """Seconds in which judgements and no searches were in progress. Any thread may read it."""
    # Reading one tuple needs no lock, because the event loop replaces the whole state at once.
    searches, judgements, seconds, changed = self._state
    return seconds + (time.perf_counter() - changed if judgements and not searches else 0.0)

  def _count(self, searches: int, judgements: int) -> None:
    seconds = self.judging_s()
    self._state = self._state[0] + searches, self._state[1] + judgements, seconds, time.perf_counter()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    return await self._searching(self._tools.search(query, k))

  async def open(self, name: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    return await self._searching(self._tools.open(name, k))

  async def find(self, name: str, words: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    return await self._searching(self._tools.find(name, words, k))

  async def _searching(self, passages: Coroutine[Any, Any, tuple[structs.Passage, ...]]) -> tuple[structs.Passage, ...]:
    self._count(1, 0)
    try:
      return await passages
    finally:
      self._count(-1, 0)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """See `structs.Tools`."""
    self._count(0, 1)
    try:
      return await self._tools.judge(pairs, term)
    finally:
      self._count(0, -1)


class EpisodeTools:
  """Wraps Tools for one episode and records why a judge gave it no verdict; "" if every pair got one."""

  def __init__(self, tools: Any):
    self._tools, self.no_verdict = tools, ""

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """See `structs.Tools`."""
    try:
      verdicts = await self._tools.judge(pairs, term)
    except structs.ToolFailed as failure:
      self.no_verdict = str(failure) or type(failure).__name__
      raise
    if None in verdicts:
      self.no_verdict = "the judge's answer could not be read (the log shows the first such), or the pair was too long"
    return verdicts
