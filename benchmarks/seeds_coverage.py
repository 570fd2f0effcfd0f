"""Coverage of the intervals over seeds: python benchmarks/seeds_coverage.py [--samples 2000]

The simulation trains two equally good arms with several seeds, and asks them the same questions. Each question has its
own probability of a right answer. The arm shifts it per question, and the seed shifts it for all questions. The table
has the share of `stats.seeds_interval`'s 95 % intervals that contain the true difference, 0. "spread" is the standard
deviation of the seeds' probabilities, of both arms or of each. It takes a minute on one core.
"""

from collections.abc import Sequence

import numpy as np
from absl import app, flags

from ragrl_jax.core.metrics import stats

SAMPLES = flags.DEFINE_integer("samples", 2000, "Simulated pairs of arms per line.", lower_bound=1)


def main(_):
  rng = np.random.default_rng(0)
  print("runs   questions   spreads     held")
  sizes = ((5000, 0.02, 0.02), (1000, 0.03, 0.03), (1000, 0.1, 0.1), (1000, 0.0, 0.1), (1000, 0.0, 0.0))
  for runs in (1, 2, 3, 5, 10):
    for questions, *spreads in sizes:
      held = [hit(rng, runs, questions, spreads) for _ in range(SAMPLES.value)]
      print(f"{runs:4}   {questions:9}   {spreads[0]:4.2f} {spreads[1]:4.2f}   {np.mean(held):.3f}", flush=True)


def hit(rng, runs: int, questions: int, spreads: Sequence[float]) -> bool:
  """Whether the interval of one simulated pair of arms contains 0."""
  easy = rng.beta(0.6, 0.6, questions)
  arms = []
  for shift, spread in zip((0.0, rng.normal(0, 0.1, questions)), spreads):
    chances = np.clip(easy + shift + rng.normal(0, spread, (runs, 1)), 0, 1)
    arms.append(rng.random((runs, questions)) < chances)
  _, low, high = stats.seeds_interval(*arms)
  return low <= 0 <= high


if __name__ == "__main__":
  app.run(main)
