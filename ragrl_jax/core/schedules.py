"""Schedules as pure functions of the step, counted from 0; and stopping rules, which end a stage of training by its
measurements, not after a fixed number of steps."""

import bisect
from collections.abc import Sequence

from ragrl_jax.core.masked import Number


def ramp(step: Number, start: Number, end: Number, low: Number = 0.0, high: Number = 1.0) -> float:
  """`low` until step `start`, `high` from step `end` on, linear between. At a step with start == end it is `high`.

  Raises:
    ValueError: end before start.
  """
  if end < start:
    raise ValueError(f"ramp from step {start} to step {end}: it must not end before it starts.")
  if step >= end or step <= start:
    return float(high if step >= end else low)
  return low + (high - low) * (step - start) / (end - start)


def stage(step: Number, boundaries: Sequence[Number]) -> int:
  """The stage of a step: the number of boundaries at or before it.

  Raises:
    ValueError: the boundaries do not rise.
  """
  if any(b <= a for a, b in zip(boundaries, boundaries[1:])):
    raise ValueError(f"stage boundaries {tuple(boundaries)}: they must rise.")
  return bisect.bisect_right(boundaries, step)


def decay(step: Number, total: Number, *, rate: Number = 1.0, floor: Number = 0.0) -> float:
  """max(floor, 1 - rate * step / total): CARE's share of easy questions (paper, Algorithm 1; floor 0.5 in its code)."""
  return float(max(floor, 1.0 - rate * step / total))


def holds(curve: Sequence[float], least: float) -> bool:
  """Whether the last two measurements are at least `least`; a single one may be chance. `curve`: oldest first."""
  return len(curve) >= 2 and min(curve[-2:]) >= least


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
