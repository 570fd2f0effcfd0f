"""Tools that note what they cost: the seconds that judges take, and why an episode got no verdict."""

import time
from collections.abc import Sequence
from typing import Any

from ragrl_jax import structs


class TimedTools:
  """Wraps Tools and times waits caused by judges alone. What is not timed (`__getattr__`) is passed through."""

  def __init__(self, tools: structs.Tools):
    self._tools = tools
    self._state = 0, 0, 0.0, 0.0  # searches, judgements under way; seconds up to the last change, and when that was

  def judging_s(self) -> float:
    """Seconds in which judgements and no search were under way. Any thread may ask."""
    # One read of one tuple: the event loop replaces the state as a whole, so no lock is needed.
    searches, judgements, seconds, changed = self._state
    return seconds + (time.perf_counter() - changed if judgements and not searches else 0.0)

  def _count(self, searches: int, judgements: int) -> None:
    seconds = self.judging_s()
    self._state = self._state[0] + searches, self._state[1] + judgements, seconds, time.perf_counter()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    self._count(1, 0)
    try:
      return await self._tools.search(query, k)
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
  """Wraps Tools for one episode and notes why a judge gave it no verdict; "" if every pair got one."""

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
