"""Draws of resampled means and of sums with random signs, for the bootstrap and the permutation test.

Source: Davison and Hinkley, "Bootstrap methods and their application" (1997), sec. 2.2 and 4.3.
"""

import numpy as np
import scipy  # loads scipy.stats, which takes half a second, at its first use

BATCH = 2**17  # items drawn at once, which fit in a processor's cache


def means(rows: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples] or [resamples, runs] means of resamples: each of as many rows as there are, drawn with replacement.

  Args:
    rows: [n] scores, or [n, runs] with one score per run, which are drawn as a whole; n at least 1.
    resamples: number of resamples.
    seed: of the draws.
  """
  size = len(rows)
  distinct, counts = np.unique(rows, axis=0, return_counts=True)
  if 16 * len(distinct) <= rows.size:  # then drawing the number of each different row is faster than drawing each item
    return scipy.stats.multinomial.rvs(size, counts / size, size=resamples, random_state=seed) @ distinct / size
  batch, how = max(1, BATCH // rows.size), dict(method="percentile", axis=0, rng=seed)
  found = scipy.stats.bootstrap((rows,), np.mean, n_resamples=resamples, batch=batch, **how)
  return np.moveaxis(found.bootstrap_distribution, -1, 0)


def run_weights(runs: int, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples, runs] weights of the runs in the mean of runs - 1 drawn runs; a single run has weight 1."""
  if runs == 1:
    return np.ones((1, 1))
  drawn = scipy.stats.multinomial.rvs(runs - 1, np.full(runs, 1 / runs), size=resamples, random_state=seed)
  return drawn / (runs - 1)


def signed_sums(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples] sums of the values, each with a random sign.

  Args:
    values: [n], n at least 1.
    resamples: number of sums.
    seed: of the draws.
  """
  size, sums = values.size, []
  octets = scipy.stats.randint(0, 256)
  octets.random_state = seed
  for start in range(0, resamples, batch := max(1, BATCH // size)):
    drawn = octets.rvs((min(batch, resamples - start), -(-size // 8))).astype(np.uint8)
    sums.append(2 * np.unpackbits(drawn, axis=1, count=size) @ values - values.sum())
  return np.concatenate(sums)
