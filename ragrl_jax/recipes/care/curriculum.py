"""The curriculum: from easy questions with short contexts to hard ones, as the share of easy questions in a step."""

from collections.abc import Callable

from ragrl_jax.core import schedules


def build(*, rate: float, floor: float, total: int | None) -> Callable[[int, int], float]:
  """(step from 0, the run's steps) → α, the probability of an easy question: max(floor, 1 − rate · step / total).

  The paper has rate 1, floor 0 and the run's own length: the first step has only easy questions, the last one almost
  none. The authors' code has rate 0.5, floor 0.5 and 10,000 steps: half of the questions are easy after 10,000 steps.
  With rate 0 all questions are easy. `data.stream.Mixture` uses α.

  Args:
    rate: η; α falls by this much over `total` steps.
    floor: the smallest α.
    total: T, in steps; None: the run's steps.

  Source: CARE sec. 3.4 and Algorithm 1, where α is 1 at the first step and adjusted after each.
  """
  return lambda step, steps: schedules.decay(step, total or steps, rate=rate, floor=floor)
