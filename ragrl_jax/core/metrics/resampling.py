"""Draws of resampled means and of sums with random signs, for the bootstrap and the permutation test.

Equal values are interchangeable, so one draw gives the number of each value in a resample. With more than FEW different
values, this is done for the FAR values that are farthest from the middle and make heavy tails. The sum of the other
values is drawn from its Cornish-Fisher expansion, by their skewness and kurtosis, with an error of the order n^(-3/2)
standard errors. The bounds of an interval differ from those of item-by-item draws by less than the random error of
10,000 resamples, .027 standard errors; `tests/core/metrics/test_resampling.py` compares them.

Source: Davison and Hinkley, "Bootstrap methods and their application" (1997), sec. 2.3 and 9.5.
"""

import numpy as np
import scipy  # loads scipy.stats, which takes half a second, at its first use

FEW = 32
FAR = 16
PATTERNS = 256  # the same as FEW for rows of several scores


def means(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples] means of resamples: each of as many values as there are, drawn with replacement.

  Args:
    values: [n], n at least 1.
    resamples: number of resamples.
    seed: of the draws.
  """
  size = values.size
  distinct, counts = np.unique(values, return_counts=True)
  if distinct.size <= FEW:
    return scipy.stats.multinomial.rvs(size, counts / size, size=resamples, random_state=seed) @ distinct / size
  far, near = _split(np.abs(distinct - values.mean()))
  rest, times = distinct[near], counts[near]
  shares = np.append(counts[far], times.sum()) / size
  drawn = scipy.stats.multinomial.rvs(size, shares, size=resamples, random_state=seed)
  number, middle = drawn[:, -1], times @ rest / times.sum()
  squares = np.square(rest - middle)
  second, third, fourth = (times @ powers / times.sum() for powers in (squares, squares * (rest - middle), squares**2))
  skewness, excess = third / second**1.5 / times.sum() ** 0.5, (fourth / second**2 - 3) / times.sum()
  noise = _noise(resamples, float(skewness), float(excess))
  return (drawn[:, :-1] @ distinct[far] + number * middle + np.sqrt(number * second) * noise) / size


def row_means(rows: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples, runs] means of resampled rows. A row has one score per run, and is drawn as a whole.

  With more than PATTERNS different rows, the means are drawn from their limiting normal distribution.

  Args:
    rows: [n, runs].
    resamples: number of resamples.
    seed: of the draws.
  """
  size = len(rows)
  distinct, counts = np.unique(rows, axis=0, return_counts=True)
  if len(distinct) <= PATTERNS:
    return scipy.stats.multinomial.rvs(size, counts / size, size=resamples, random_state=seed) @ distinct / size
  variances, axes = np.linalg.eigh(np.atleast_2d(np.cov(rows, rowvar=False, bias=True)) / size)
  noise = scipy.stats.norm.rvs(size=(resamples, len(variances)), random_state=seed)
  return rows.mean(axis=0) + noise * np.sqrt(np.maximum(variances, 0.0)) @ axes.T


def run_weights(runs: int, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples, runs] weights of the runs in the mean of runs - 1 drawn runs; a single run has weight 1."""
  if runs == 1:
    return np.ones((1, 1))
  drawn = scipy.stats.multinomial.rvs(runs - 1, np.full(runs, 1 / runs), size=resamples, random_state=seed)
  return drawn / (runs - 1)


def signed_sums(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples] sums of the values, each with a random sign.

  Args:
    values: [n] above 0, n at least 1.
    resamples: number of sums.
    seed: of the draws.
  """
  distinct, counts = np.unique(values, return_counts=True)
  far, near = _split(distinct) if distinct.size > FEW else (np.arange(distinct.size), np.arange(0))
  size = (resamples, far.size)
  drawn = 2 * scipy.stats.binom.rvs(counts[far], 0.5, size=size, random_state=seed) - counts[far]
  sums = drawn @ distinct[far]
  if near.size:
    second, fourth = (counts[near] @ distinct[near] ** power for power in (2, 4))
    sums = sums + np.sqrt(second) * _noise(resamples, 0.0, float(-2.0 * fourth / second**2))
  return sums


def _split(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Places of the FAR largest, and of the others."""
  order = np.argpartition(distances, distances.size - FAR)
  return order[-FAR:], order[:-FAR]


def _noise(resamples: int, skewness: float, excess: float) -> np.ndarray:
  """[resamples] standard numbers with this skewness and excess kurtosis, at equal steps of their distribution.

  They need no random order, because they are added to independent draws.
  """
  z = scipy.special.ndtri((np.arange(resamples) + 0.5) / resamples)
  bend = skewness * (z**2 - 1) / 6 - skewness**2 * (2 * z**3 - 5 * z) / 36
  return z + bend + excess * (z**3 - 3 * z) / 24
