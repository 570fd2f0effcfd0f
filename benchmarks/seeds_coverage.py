"""Coverage of the intervals over seeds: python benchmarks/seeds_coverage.py [--samples 400]

The simulation trains two equally good arms with several seeds, and asks them the same questions. Each question has its
own probability of a right answer. The arm shifts it per question, and the seed shifts it for all questions. The table
has the share of `stats.seeds_interval`'s 95 % intervals that contain the true difference, 0. "spread" is the standard
deviation of the seeds' probabilities. It takes two minutes on one core.
"""

import numpy as np
from absl import app, flags

from ragrl_jax.core.metrics import stats

SAMPLES = flags.DEFINE_integer("samples", 400, "Simulated pairs of arms per line.", lower_bound=1)


def main(_):
  rng = np.random.default_rng(0)
  print("runs   questions   spread   held")
  lines = [(runs, *size) for runs in (1, 2, 3, 5, 10) for size in ((1000, 0.0), (1000, 0.03), (5000, 0.02))]
  for runs, questions, spread in [*lines, *((runs, 1000, 0.1) for runs in (2, 3, 5))]:
    held = [hit(rng, runs, questions, spread) for _ in range(SAMPLES.value)]
    print(f"{runs:4}   {questions:9}   {spread:6.2f}   {np.mean(held):.3f}", flush=True)


def hit(rng, runs: int, questions: int, spread: float) -> bool:
  """Whether the interval of one simulated pair of arms contains 0."""
  easy = rng.beta(0.6, 0.6, questions)
  arms = []
  for shift in (0.0, rng.normal(0, 0.1, questions)):
    chances = np.clip(easy + shift + rng.normal(0, spread, (runs, 1)), 0, 1)
    arms.append(rng.random((runs, questions)) < chances)
  _, low, high = stats.seeds_interval(*arms, seed=0, resamples=2000)
  return low <= 0 <= high


if __name__ == "__main__":
  app.run(main)
