"""The tools of one episode. They count the waits for searches and for judges, and record why there is no verdict."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ragrl_jax import structs


class Waits:
  """Two counters, of searches and of judgements in progress, and the seconds of waiting for judges alone."""

  def __init__(self):
    self._state = 0, 0, 0.0, 0.0  # searches, judgements; seconds up to the last change, and its time

  def judging_s(self) -> float:
    """Seconds in which judgements and no searches were in progress. Any thread may read it."""
    # Reading one tuple needs no lock, because the event loop replaces the whole state at once.
    searches, judgements, seconds, changed = self._state
    return seconds + (time.perf_counter() - changed if judgements and not searches else 0.0)

  @contextlib.contextmanager
  def counted(self, *, searches: int = 0, judgements: int = 0) -> Iterator[None]:
    """Counts so many as in progress until the block ends."""
    self._add(searches, judgements)
    try:
      yield
    finally:
      self._add(-searches, -judgements)

  def _add(self, searches: int, judgements: int) -> None:
    seconds = self.judging_s()
    self._state = self._state[0] + searches, self._state[1] + judgements, seconds, time.perf_counter()


class EpisodeTools:
  """Tools for one episode. Attributes other than these are those of the shared Tools.

  Args:
    tools: shared by all episodes.
    waits: shared by the episodes of a session.

  Attributes:
    no_verdict: why a judge first gave no verdict; "" if every pair got one.
  """

  def __init__(self, tools: Any, waits: Waits | None = None):
    self._tools, self._waits, self.no_verdict = tools, waits or Waits(), ""

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    with self._waits.counted(searches=1):
      return await self._tools.search(query, k)

  async def open(self, name: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    with self._waits.counted(searches=1):
      return await self._tools.open(name, k)

  async def find(self, name: str, words: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    with self._waits.counted(searches=1):
      return await self._tools.find(name, words, k)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """See `structs.Tools`."""
    why = ""
    try:
      with self._waits.counted(judgements=1):
        verdicts = await self._tools.judge(pairs, term)
      if None in verdicts:
        why = "the judge's answer could not be read (the log shows the first such), or the pair was too long"
      return verdicts
    except structs.ToolFailed as failure:
      why = str(failure) or type(failure).__name__
      raise
    finally:
      self.no_verdict = self.no_verdict or why
