"""From easy questions with short contexts to hard ones: which share of a step's questions is easy."""

from collections.abc import Callable

from ragrl_jax.core import schedules


def build(*, rate: float, floor: float, total: int) -> Callable[[int], float]:
  """step → α, the chance that a question is drawn from the easy set: max(floor, 1 − rate · step / total).

  Paper: rate 1, floor 0, the run's length: nothing but hard questions at its end. Code: rate and floor 0.5, 10,000
  steps: half of them at the end of a run so long. Rate 0: easy questions only. `data.stream.Mixture` draws by it.

  Args:
    rate: η, how often the decay would end within `total` steps.
    floor: least share of easy questions.
    total: T, in steps.

  Source: CARE sec. 3.3 and Algorithm 1.
  """
  return lambda step: schedules.decay(step, total, rate=rate, floor=floor)
