"""Stopping rules: they end a stage of training by its measurements, not after a fixed number of steps."""

from collections.abc import Sequence


def holds(curve: Sequence[float], least: float, *, times: int = 2) -> bool:
  """Whether the last `times` measurements are all at least `least`. A single one may be chance.

  Args:
    curve: one number per measurement, oldest first.
    least: the value to reach.
    times: number of measurements in a row, at least 1.
  """
  return len(curve) >= times and min(curve[-times:]) >= least


def stopped_rising(curve: Sequence[float], *, patience: int, rise: float = 0.0, gain: float = 0.0) -> bool:
  """Whether none of the last `patience` measurements is above the best one before them by more than `rise`.

  Args:
    curve: one number per measurement, oldest first.
    patience: number of measurements to wait for, at least 1. With as many or fewer, the result is False.
    rise: smallest improvement that counts, in the curve's unit.
    gain: the result is False until the best is above the first by this much, since the curve has not begun to rise.
  """
  if len(curve) <= patience or max(curve) < curve[0] + gain:
    return False
  return max(curve[-patience:]) <= max(curve[:-patience]) + rise
