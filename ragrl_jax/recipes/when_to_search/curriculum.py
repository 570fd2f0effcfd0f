"""Finds the start of the second stage: a fixed step, or the step at which held-out answers have stopped improving."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def settled(rows: Sequence[Mapping[str, Any]], *, metric: str, patience: int, gain: float = 0.0) -> int | None:
  """The step of the evaluation at which `metric` had stopped rising; None if it still rises.

  It has stopped if the best of the last `patience` evaluations exceeds the best one before them by at most `gain`.

  The result depends only on the logged rows, which are read from metrics.jsonl. So a resumed run finds the same step as
  a run that was never killed.

  Args:
    rows: rows of metrics.jsonl, oldest first. Rows without the metric, or with one that is not finite, are ignored.
    metric: for example "evaluation/em"; higher is better.
    patience: evaluations without a rise, at least 1.
    gain: smallest rise that counts, in the metric's units.

  Raises:
    ValueError: patience below 1.
  """
  if patience < 1:
    raise ValueError(f"patience={patience}: it must be at least 1 evaluation.")
  seen: list[tuple[int, float]] = [
    (row["step"], row[metric])
    for row in rows
    if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])
  ]
  for end in range(patience + 1, len(seen) + 1):
    before, last = seen[: end - patience], seen[end - patience : end]
    if max(value for _, value in last) <= max(value for _, value in before) + gain:
      return last[-1][0]
  return None
