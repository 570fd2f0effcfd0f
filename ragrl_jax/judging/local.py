"""Shared by judges that run in this process: rows of token ids → scores, in a few compiled shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragrl_jax.judging import judge_api

LENGTHS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)  # tokens; rows are padded to one
DEADLINE_S = 600.0  # a batch may have to wait while the accelerator compiles, decodes or updates

Compute = Callable[[np.ndarray, np.ndarray], Any]


class Rows:
  """Scores rows of different lengths in batches of fixed size.

  Args:
    compute: (tokens int32 [B, T], mask int32 [B, T], 1 on the text) → scores [B] from 0 to 1.
    batch: rows per batch, B; a smaller batch is padded.
    max_tokens: longest row, in tokens.
    dispatch: runs `compute`; by default the calling thread does.

  Raises:
    ValueError: sizes out of range.
  """

  def __init__(self, compute: Compute, *, batch: int, max_tokens: int, dispatch: Callable[..., Any] | None = None):
    if batch < 1 or not 1 <= max_tokens <= LENGTHS[-1]:
      raise ValueError(
        f"batch={batch}, max_tokens={max_tokens}: batch must be at least 1, max_tokens 1 to "
        f"{LENGTHS[-1]} (config.judge)."
      )
    self._compute, self.batch, self.max_tokens = compute, batch, max_tokens
    self._dispatch = dispatch or (lambda function, *arguments: function(*arguments))
    self.pace = judge_api.Pace(batch=batch, workers=1, deadline_s=DEADLINE_S)

  def scores(self, rows: Sequence[Sequence[int] | None]) -> list[float | None]:
    """One score per row, in order; None for a row that is None (a text that is too long)."""
    found: list[float | None] = [None] * len(rows)
    buckets: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
      if row is not None:
        buckets.setdefault(next(length for length in LENGTHS if len(row) <= length), []).append(i)
    for length, members in sorted(buckets.items()):
      for start in range(0, len(members), self.batch):
        some = members[start : start + self.batch]
        for i, score in zip(some, self._dispatch(self._padded, [rows[i] for i in some], length)):
          found[i] = float(score)
    return found

  def _padded(self, rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    tokens, mask = (np.zeros((self.batch, length), np.int32) for _ in range(2))
    for i, row in enumerate(rows):
      tokens[i, : len(row)], mask[i, : len(row)] = row, 1
    return np.asarray(self._compute(tokens, mask))
