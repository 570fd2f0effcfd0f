"""Schedules as pure functions of the step: ramps, stages, mixing probabilities. Steps count from 0."""

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
