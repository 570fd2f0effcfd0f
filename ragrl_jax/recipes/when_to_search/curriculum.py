"""The start of the second stage: at a fixed step, or when held-out answers have stopped improving."""

from collections.abc import Mapping, Sequence
from typing import Any


def settled(rows: Sequence[Mapping[str, Any]], *, metric: str, patience: int, gain: float = 0.0) -> int | None:
  """The step of the evaluation at which `metric` had stopped rising; None if it has not yet.

  It has where the best of the last `patience` evaluations is not more than `gain` above the best before them.

  A function of what was logged, and of nothing else: rows are read back from metrics.jsonl as they were written, so a
  run that is resumed finds the step that the run that was never killed found.

  Args:
    rows: of metrics.jsonl, oldest first. Those without the metric are no evaluations.
    metric: say "evaluation/em"; higher is better.
    patience: evaluations without a rise, at least 1.
    gain: what counts as a rise, in the metric's units.

  Raises:
    ValueError: patience below 1.
  """
  if patience < 1:
    raise ValueError(f"patience={patience}: at least 1 evaluation must bring no rise.")
  seen: list[tuple[int, float]] = [
    (row["step"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)
  ]
  for end in range(patience + 1, len(seen) + 1):
    before, last = seen[: end - patience], seen[end - patience : end]
    if max(value for _, value in last) <= max(value for _, value in before) + gain:
      return last[-1][0]
  return None
