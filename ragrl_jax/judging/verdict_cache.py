"""A judge whose verdicts are stored on disk: it is asked about each pair once, over this run and later ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.judging import judge_api
from ragrl_jax.store import disk_cache


class Cached:
  """A judge with its verdicts in a file (`store.disk_cache`), by its description and the pair. None is not stored.

  Args:
    judge: judges the pairs that are not in the file.
    path: the file; it is created if needed. Several runs may share it.

  Raises:
    ValueError: `path` cannot be written, or is a database of another kind.
  """

  def __init__(self, judge: judge_api.Judge, path: str | os.PathLike):
    self._judge, self.pace, self._identity = judge, judge.pace, judge.describe()
    self._cache = disk_cache.Cache(path, "config.judge.cache")

  def describe(self) -> Mapping[str, Any]:
    """The settings that are stored with every verdict: those of the judge behind the cache."""
    return self._judge.describe()

  def judge(self, pairs: Sequence[judge_api.Pair]) -> judge_api.Verdicts:
    """See `judge_api.Judge`."""
    return judge_api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    keys = {pair: disk_cache.key(self._identity, *pair) for pair in pairs}
    known = self._cache.get(keys.values())
    if new := [pair for pair in pairs if keys[pair] not in known]:
      try:
        verdicts = dict(zip(new, self._judge.judge(new), strict=True))
      except judge_api.JudgeFailed as error:  # keep the verdicts that were given
        known |= self._keep(keys, error.answered)
        error.answered |= {pair: known[key] for pair, key in keys.items() if key in known}
        raise
      known |= self._keep(keys, verdicts)
    return [known.get(key) for key in keys.values()]

  def _keep(
    self, keys: Mapping[judge_api.Pair, str], verdicts: Mapping[judge_api.Pair, float | None]
  ) -> dict[str, float]:
    return self._cache.add({keys[pair]: verdict for pair, verdict in verdicts.items() if verdict is not None})
