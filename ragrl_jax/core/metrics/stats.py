"""Statistics: agreement between raters, paired tests, and confidence intervals of a mean."""

from collections.abc import Sequence

import numpy as np
import scipy.stats

ALTERNATIVES = ("two-sided", "greater", "less")
FEW = 512  # distinct values whose numbers are drawn; above, the values themselves are


def cohen_kappa(a: Sequence | np.ndarray, b: Sequence | np.ndarray) -> float:
  """Agreement of two raters beyond chance: (p_o - p_e) / (1 - p_e).

  p_o is the share of items they agree on, p_e the share expected of two raters who label at random with the same
  frequencies. If both raters use one and the same label for all items (0/0), the result is 1.

  Raises:
    ValueError: different lengths, or no items.

  Source: Cohen, "A coefficient of agreement for nominal scales" (1960).
  """
  if len(a) != len(b) or not len(a):
    raise ValueError(f"two raters' labels of the same items are needed, these are {len(a)} and {len(b)}.")
  a, b = list(a), list(b)
  observed = sum(x == y for x, y in zip(a, b)) / len(a)
  expected = sum(a.count(label) * b.count(label) for label in set(a)) / len(a) ** 2
  return _beyond_chance(observed, expected)


def fleiss_kappa(counts: Sequence | np.ndarray) -> float:
  """Agreement of several raters beyond chance.

  With P_i the share of agreeing pairs of raters on item i and p_j the share of category j overall, it is
  (mean P_i - Σ p_j²) / (1 - Σ p_j²). If all items are in one category, the result is 1.

  Args:
    counts: counts[i, j] is the number of raters who put item i into category j. Every item has the same number of
      raters, at least two.

  Raises:
    ValueError: no items, one rater, or items with different numbers of raters.

  Source: Fleiss, "Measuring nominal scale agreement among many raters" (1971).
  """
  table = np.asarray(counts, dtype=np.float64)
  if table.ndim != 2 or not table.size:
    raise ValueError(f"counts must be [items, categories], these have the shape {table.shape}.")
  raters = table.sum(axis=1)
  if raters[0] < 2 or np.any(raters != raters[0]) or np.any(table < 0):
    raise ValueError(
      "every item must have the same number of raters, at least two; the rows' sums are "
      f"{raters.min():g} to {raters.max():g}."
    )
  agreeing = (table * (table - 1)).sum(axis=1) / (raters * (raters - 1))
  shares = table.sum(axis=0) / table.sum()
  return _beyond_chance(float(agreeing.mean()), float(np.square(shares).sum()))


def wilcoxon(
  x: Sequence | np.ndarray, y: Sequence | np.ndarray, *, alternative: str = "two-sided"
) -> tuple[float, float]:
  """The signed-rank test of paired scores: (statistic, p).

  Pairs without a difference are dropped, as Wilcoxon did; if none is left, the result is (0, 1). The statistic is the
  sum of the ranks where x > y; for "two-sided" it is the smaller of the two sums. p is exact for small samples without
  ties, else by the normal approximation.

  Args:
    x: scores, for example one per data set.
    y: the other system's scores, in the same order.
    alternative: "two-sided", "greater" (x tends to be above y) or "less".

  Raises:
    ValueError: different lengths, no pairs, or another alternative.
  """
  if alternative not in ALTERNATIVES:
    raise ValueError(f"alternative={alternative!r}: use {', '.join(map(repr, ALTERNATIVES))}.")
  x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
  if x.shape != y.shape or x.ndim != 1 or not x.size:
    raise ValueError(f"paired scores are needed, these have the shapes {x.shape} and {y.shape}.")
  if not np.any(x != y):
    return 0.0, 1.0
  statistic, p = np.asarray(scipy.stats.wilcoxon(x, y, alternative=alternative, zero_method="wilcox"), np.float64)
  return float(statistic), float(p)


def paired_permutation(
  x: Sequence | np.ndarray, y: Sequence | np.ndarray, *, seed: int = 0, resamples: int = 10_000
) -> tuple[float, float]:
  """The two-sided permutation test of paired scores: (mean of x - y, p).

  Under the null hypothesis the two scores of each pair may be swapped. p is the share of all swaps whose mean
  difference is at least as far from 0 as the observed one. If there are at most `resamples` swaps, all are counted and
  p is exact (for scores of 0 and 1 it is McNemar's). Else `resamples` of them are drawn, and the observed one is added.
  The test is valid for any scores, even with many ties.

  Args:
    x: scores, one per question.
    y: the other system's scores, in the same order.
    seed: seed of the drawn swaps.
    resamples: number of swaps to draw.

  Raises:
    ValueError: different lengths, or no pairs.

  Source: Fisher, "The design of experiments" (1935), sec. 21.
  """
  x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
  if x.shape != y.shape or x.ndim != 1 or not x.size:
    raise ValueError(f"paired scores are needed, these have the shapes {x.shape} and {y.shape}.")
  differences = (x - y)[x != y]  # swapping a pair without a difference changes nothing
  if differences.size < 2:  # swapping one pair only changes the sign
    return float(np.mean(x - y)), 1.0
  result = scipy.stats.permutation_test(
    (differences,),
    np.sum,
    permutation_type="samples",
    vectorized=True,
    n_resamples=resamples,
    batch=max(1, 2**22 // differences.size),
    rng=seed,
  )
  return float(np.mean(x - y)), float(min(1.0, result.pvalue))


def bootstrap_interval(
  values: Sequence | np.ndarray, *, seed: int, level: float = 0.95, resamples: int = 10_000
) -> tuple[float, float]:
  """The percentile bootstrap interval of the mean: (low, high). If all values are equal, it is (value, value).

  How often each distinct value occurs in a resample has a multinomial distribution, so that few distinct values cost
  the same for any number of items.

  Args:
    values: one score per item, for example 0 or 1.
    seed: seed of the resampling; the same seed gives the same interval.
    level: share of the resampled means inside the interval, between 0 and 1.
    resamples: number of resamples.

  Raises:
    ValueError: no values, or a level outside (0, 1).

  Source: Efron, "Bootstrap methods: another look at the jackknife" (1979).
  """
  values = np.asarray(values, dtype=np.float64)
  if values.ndim != 1 or not values.size:
    raise ValueError(f"an interval needs a list of values, these have the shape {values.shape}.")
  if not 0.0 < level < 1.0:
    raise ValueError(f"level={level}: it must be between 0 and 1.")
  if np.all(values == values[0]):
    return float(values[0]), float(values[0])
  size = values.size
  distinct, counts = np.unique(values, return_counts=True)
  if distinct.size <= FEW:
    drawn = scipy.stats.multinomial.rvs(size, counts / size, size=resamples, random_state=seed)
    low, high = np.quantile(drawn @ distinct / size, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
  # Batches of about 2^22 numbers bound the memory, whatever the size of the sample.
  result = scipy.stats.bootstrap(
    (values,),
    np.mean,
    n_resamples=resamples,
    batch=max(1, 2**22 // size),
    vectorized=True,
    confidence_level=level,
    method="percentile",
    rng=seed,
  )
  return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _beyond_chance(observed: float, expected: float) -> float:
  return 1.0 if expected >= 1.0 else (observed - expected) / (1.0 - expected)
