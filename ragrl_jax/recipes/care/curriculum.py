"""The curriculum: from easy questions with short contexts to hard ones, as the share of easy questions in a step."""

from collections.abc import Callable

from ragrl_jax.core import schedules


def build(*, rate: float, floor: float, total: int | None) -> Callable[[int, int], float]:
  """(step from 0, the run's steps) → α, the chance of an easy question: max(floor, 1 − rate · step / total).

  Paper: rate 1, floor 0, the run's length: the first step has easy questions alone, the last one hardly any. Code: rate
  and floor 0.5, 10,000 steps: half of them at the end of a run so long. Rate 0: easy questions only.
  `data.stream.Mixture` draws by it.

  Args:
    rate: η, how often the decay would end within `total` steps.
    floor: least share of easy questions.
    total: T, in steps; None: the run's.

  Source: CARE sec. 3.4 and Algorithm 1, where α is 1 at the first step and adjusted after each.
  """
  return lambda step, steps: schedules.decay(step, total or steps, rate=rate, floor=floor)
