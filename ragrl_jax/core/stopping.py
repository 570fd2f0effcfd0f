"""When a stage of training ends: by what it has reached, never after a number of steps that happened to be enough."""

from collections.abc import Sequence


def holds(curve: Sequence[float], least: float, *, times: int = 2) -> bool:
  """Whether the last `times` measurements are all at least `least`: one alone may be luck.

  Args:
    curve: one number a measurement, oldest first.
    least: what must be reached.
    times: measurements in a row, at least 1.
  """
  return len(curve) >= times and min(curve[-times:]) >= least


def stopped_rising(curve: Sequence[float], *, patience: int, rise: float = 0.0, gain: float = 0.0) -> bool:
  """Whether the last `patience` measurements brought nothing: none is above the best before them by more than `rise`.

  Args:
    curve: one number a measurement, oldest first.
    patience: measurements to wait for, at least 1. With as many or fewer, the answer is False.
    rise: what counts as better, in the curve's unit; measurements that differ by less are the same.
    gain: what the best must be above the first: a curve that has not begun to rise has not stopped.
  """
  if len(curve) <= patience or max(curve) < curve[0] + gain:
    return False
  return max(curve[-patience:]) <= max(curve[:-patience]) + rise
