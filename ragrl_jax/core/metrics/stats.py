"""Statistics: agreement between raters, calibration, paired tests, and confidence intervals of a mean.

Source of the drawn means and sums: Davison and Hinkley, "Bootstrap methods and their application" (1997), sec. 2.2 and
4.3.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import scipy  # loads scipy.stats, which takes half a second, at its first use

ALTERNATIVES = ("two-sided", "greater", "less")

RESAMPLES = 10_000
BATCH = 2**17  # items drawn at once, which fit in a processor's cache
COUNTS = 2**25  # counts drawn at once: 256 MB

Values = Sequence | np.ndarray


def mean_known(values: Iterable[float | int | None]) -> float | None:
  """The mean of the values (numbers, or whether something holds) that are not None; None without any."""
  known = [float(value) for value in values if value is not None]
  return math.fsum(known) / len(known) if known else None  # equal in any order


# ---- agreement -------------------------------------------------------------------------------------------------------


def cohen_kappa(a: Values, b: Values) -> float:
  """Agreement of two raters beyond chance: (p_o - p_e) / (1 - p_e).

  p_o is the share of items they agree on, p_e the share expected of two raters who label at random with the same
  frequencies. If both raters use one and the same label for all items (0/0), the result is 1.

  Raises:
    ValueError: different lengths, or no items.

  Source: Cohen, "A coefficient of agreement for nominal scales" (1960).
  """
  return float(cohen_kappas(a, b, np.ones((1, len(a))))[0])


def cohen_kappas(a: Values, b: Values, times: np.ndarray) -> np.ndarray:
  """[R] κ of two raters if item i counts times[r, i] times, for resamples or for groups of items with equal labels.

  Args:
    a, b: the labels of I items.
    times: [R, I].

  Raises:
    ValueError: as in `cohen_kappa`.
  """
  if len(a) != len(b) or not len(a):
    raise ValueError(f"two raters' labels of the same items are needed, these are {len(a)} and {len(b)}.")
  votes = label_counts(list(zip(a, b)))
  labels = list(dict.fromkeys([*a, *b]))
  first, second = (np.asarray([[rating == label for label in labels] for rating in rater], float) for rater in (a, b))
  total = times.sum(axis=1, keepdims=True)
  expected = (times @ first / total * (times @ second / total)).sum(axis=1)
  return _beyond_chance(agreement(votes, times), expected)


def fleiss_kappas(counts: Values, times: np.ndarray) -> np.ndarray:
  """[R] agreement of several raters beyond chance, where item i counts times[r, i] times.

  With P_i the share of agreeing pairs of raters on item i and p_j the share of category j overall, it is
  (mean P_i - Σ p_j²) / (1 - Σ p_j²). If all items are in one category, the result is 1.

  Args:
    counts: counts[i, j] is the number of raters who put item i into category j. Every item has the same number of
      raters, at least two.
    times: [R, I].

  Raises:
    ValueError: no items, one rater, or items with different numbers of raters.

  Source: Fleiss, "Measuring nominal scale agreement among many raters" (1971).
  """
  table = _of_raters(counts)
  shares = times @ table / (times.sum(axis=1, keepdims=True) * table[0].sum())
  return _beyond_chance(agreement(table, times), np.square(shares).sum(axis=1))


def agreement(counts: Values, times: np.ndarray) -> np.ndarray:
  """[R] share of agreeing pairs of raters, mean over the items, where item i counts times[r, i] times.

  Args:
    counts: [I, L] as in `fleiss_kappas`, with its errors.
    times: [R, I].
  """
  table = _of_raters(counts)
  raters = table[0].sum()
  return times @ ((table * (table - 1)).sum(axis=1) / (raters * (raters - 1))) / times.sum(axis=1)


def label_counts(ratings: Sequence[Sequence]) -> np.ndarray:
  """[I, L]: how many raters give item i the label l; `ratings` holds the raters' labels of each item."""
  labels = list(dict.fromkeys(label for item in ratings for label in item))
  return np.asarray([[list(item).count(label) for label in labels] for item in ratings], np.float64)


def _of_raters(counts: Values) -> np.ndarray:
  table = np.asarray(counts, dtype=np.float64)
  if table.ndim != 2 or not table.size:
    raise ValueError(f"counts must be [items, categories], these have the shape {table.shape}.")
  raters = table.sum(axis=1)
  if raters[0] < 2 or np.any(raters != raters[0]) or np.any(table < 0):
    raise ValueError(
      "every item must have the same number of raters, at least two; the rows' sums are "
      f"{raters.min():g} to {raters.max():g}."
    )
  return table


def _beyond_chance(observed: np.ndarray, expected: np.ndarray) -> np.ndarray:
  certain = expected >= 1.0
  return np.where(certain, 1.0, (observed - expected) / np.where(certain, 1.0, 1.0 - expected))


# ---- calibration -----------------------------------------------------------------------------------------------------


def brier(confidences: Values, outcomes: Values) -> float:
  """Mean of (confidence - outcome)²; 0 is best, and .25 is what a constant .5 gets.

  Args:
    confidences: in [0, 1].
    outcomes: 0 or 1, of the same answers.

  Raises:
    ValueError: different lengths, no answers, or a value outside [0, 1].

  Source: Brier, "Verification of forecasts expressed in terms of probability" (1950).
  """
  p, y = _answers(confidences, outcomes)
  return float(np.square(p - y).mean())


def calibration_error(confidences: Values, outcomes: Values, *, bins: int = 10) -> float:
  """The expected calibration error: mean over the answers of |share right - mean confidence| of their bin.

  Bins are equally wide; an edge belongs to the bin below, and 0 to the first. Arguments and errors as in `brier`.

  Source: Guo et al., "On calibration of modern neural networks" (arXiv 1706.04599), eq. 3.
  """
  said, right = _answers(confidences, outcomes)
  places = np.clip(np.ceil(said * bins).astype(int) - 1, 0, bins - 1)
  gaps = np.bincount(places, weights=right - said, minlength=bins)
  return float(np.abs(gaps).sum() / said.size)


def _answers(confidences: Values, outcomes: Values) -> tuple[np.ndarray, np.ndarray]:
  p, y = np.asarray(confidences, np.float64), np.asarray(outcomes, np.float64)
  if p.shape != y.shape or p.ndim != 1 or not p.size:
    raise ValueError(f"a confidence and an outcome per answer are needed, these are {p.shape} and {y.shape}.")
  if np.any((p < 0) | (p > 1) | (y < 0) | (y > 1)):
    raise ValueError("confidences and outcomes must be between 0 and 1: pass probabilities, not log-probabilities.")
  return p, y


# ---- paired tests ----------------------------------------------------------------------------------------------------


def wilcoxon(x: Values, y: Values, *, alternative: str = "two-sided") -> tuple[float, float]:
  """The signed-rank test of paired scores: (statistic, p).

  Pairs without a difference are dropped, as Wilcoxon did; if none is left, the result is (0, 1). The statistic is the
  sum of the ranks where x > y; for "two-sided" it is the smaller of the two sums. p is exact for small samples, with
  ties for up to 13 pairs, else by the normal approximation.

  Args:
    x: scores, for example one per data set.
    y: the other system's scores, in the same order.
    alternative: "two-sided", "greater" (x tends to be above y) or "less".

  Raises:
    ValueError: different lengths, no pairs, or another alternative.
  """
  if alternative not in ALTERNATIVES:
    raise ValueError(f"alternative={alternative!r}: use {', '.join(map(repr, ALTERNATIVES))}.")
  x, y = _paired(x, y)
  differences = np.round(x - y, 12)  # equal differences of decimal scores may differ in their last bits
  if not np.any(differences):
    return 0.0, 1.0
  statistic, p = np.asarray(scipy.stats.wilcoxon(differences, alternative=alternative), np.float64)
  return float(statistic), float(p)


def paired_permutation(x: Values, y: Values) -> tuple[float, float]:
  """The two-sided permutation test of paired scores: (mean of x - y, p).

  Under the null hypothesis the two scores of each pair may be swapped. p is the share of all swaps whose mean
  difference is at least as far from 0 as the observed one. It is exact where at most RESAMPLES swaps exist, and where
  all differences have one size (for scores of 0 and 1 it is McNemar's test). Else RESAMPLES swaps are drawn
  (`signed_sums`), and the observed one is added. The test is valid for any scores, even with many ties.

  Args:
    x: scores, one per question.
    y: the other system's scores, in the same order.

  Raises:
    ValueError: different lengths, or no pairs.

  Source: Fisher, "The design of experiments" (1935), sec. 21.
  """
  x, y = _paired(x, y)
  differences = (x - y)[x != y]  # swapping a pair without a difference changes nothing
  mean = float(np.mean(x - y))
  if not differences.size:
    return mean, 1.0
  sizes = np.abs(differences)
  if np.ptp(sizes) < 1e-12 * sizes.max():
    return mean, float(scipy.stats.binomtest(int((differences > 0).sum()), sizes.size).pvalue)
  observed = abs(differences.sum()) - 1e-12 * sizes.sum()  # sums of the same numbers differ by their order
  if 2**sizes.size <= RESAMPLES:
    signs = 1 - 2 * ((np.arange(2**sizes.size)[:, None] >> np.arange(sizes.size)) & 1)
    return mean, float((np.abs(signs @ sizes) >= observed).mean())
  sums = signed_sums(sizes, resamples=RESAMPLES, seed=0)
  return mean, float(((np.abs(sums) >= observed).sum() + 1) / (RESAMPLES + 1))


def holm(ps: Values) -> list[float]:
  """Adjusts the p-values of several tests, so that the chance of any false rejection stays below the level.

  The smallest of m p-values is multiplied by m, the next by m - 1, and so on. An adjusted value is at least that of any
  smaller p-value, and at most 1. The tests need not be independent.

  Source: Holm, "A simple sequentially rejective multiple test procedure" (1979).
  """
  values = np.asarray(ps, np.float64)
  order = np.argsort(values, kind="stable")
  raised = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)))
  adjusted = np.empty_like(values)
  adjusted[order] = raised
  return adjusted.tolist()


def _paired(x: Values, y: Values) -> tuple[np.ndarray, np.ndarray]:
  x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
  if x.shape != y.shape or x.ndim != 1 or not x.size:
    raise ValueError(f"paired scores are needed, these have the shapes {x.shape} and {y.shape}.")
  return x, y


# ---- intervals -------------------------------------------------------------------------------------------------------


def bootstrap_interval(values: Values, *, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
  """The 95 % percentile bootstrap interval of the mean: (low, high). If all values are equal, it is (value, value).

  The cost hardly depends on the number of values; see `resampled_means` for the method and its error. For the
  difference of two systems on the same questions, pass the differences (the paired bootstrap).

  Args:
    values: one score per item, for example 0 or 1.
    seed: seed of the resampling; the same seed gives the same interval.

  Raises:
    ValueError: no values, or one that is not finite.

  Source: Efron, "Bootstrap methods: another look at the jackknife" (1979).
  """
  values = np.asarray(values, dtype=np.float64)
  if values.ndim != 1 or not values.size or not np.isfinite(values).all():
    raise ValueError(f"an interval needs a list of finite values, these have the shape {values.shape}.")
  if np.all(values == values[0]):
    return float(values[0]), float(values[0])
  low, high = np.quantile(resampled_means(values, resamples=resamples, seed=seed), [0.025, 0.975])
  return float(low), float(high)


def t_interval(values: Values) -> tuple[float, float]:
  """Student's 95 % interval of the mean of a few independent values: (low, high). One value has no finite bounds.

  For one value a seed, such as its gain: the noise of its questions is in it. A bootstrap of few values is too narrow:
  even with S - 1 of S draws its percentiles hold the mean of five normal values in 86 % of cases, of three in 75 %.

  Raises:
    ValueError: no values, or one that is not finite.

  Source: Student, "The probable error of a mean" (1908).
  """
  values = np.asarray(values, np.float64)
  if values.ndim != 1 or not values.size or not np.isfinite(values).all():
    raise ValueError(f"an interval needs a list of finite values, these have the shape {values.shape}.")
  if values.size == 1:
    return -math.inf, math.inf
  mean, half = values.mean(), scipy.stats.t.ppf(0.975, values.size - 1) * scipy.stats.sem(values)
  return float(mean - half), float(mean + half)


def seeds_interval(x: Values, y: Values) -> tuple[float, float, float]:
  """The difference of two arms with several runs (seeds) each on the same questions: (mean of x - y, low, high).

  Student's 95 % interval. The variance of the difference is the sum of three: of the questions' differences over the
  number of questions, and of the runs' means over the number of runs, for each arm. The degrees of freedom are Welch's
  and Satterthwaite's. An arm of a single run adds no variance: the interval then holds for its weights only.

  In simulations (`python benchmarks/seeds_coverage.py`) this interval holds the true difference in 95 to 96 % of cases
  with 2 to 10 runs an arm that differ by .02 to .1, and in 88 % (2 runs) to 95 % if one arm's runs differ by .1 and the
  other's not at all. If no runs differ it is too wide (99 %), since the noise of single answers counts both for
  questions and for runs.

  Args:
    x: scores [runs, questions].
    y: the other arm's, [its runs, the same questions].

  Raises:
    ValueError: no two tables of the same questions.

  Source: Satterthwaite, "An approximate distribution of estimates of variance components" (1946).
  """
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if x.ndim != 2 or y.ndim != 2 or not x.size or not y.size or x.shape[1] != y.shape[1]:
    raise ValueError(f"scores [runs, questions] of the same questions are needed, these are {x.shape} and {y.shape}.")
  questions = x.mean(axis=0) - y.mean(axis=0)
  known = [values for values in (questions, x.mean(axis=1), y.mean(axis=1)) if values.size > 1]
  parts = [(scipy.stats.sem(values) ** 2, values.size - 1) for values in known]
  difference, variance = float(questions.mean()), sum(part for part, _ in parts)
  if not variance:
    return difference, difference, difference
  freedom = variance**2 / sum(part**2 / count for part, count in parts)
  half = float(scipy.stats.t.ppf(0.975, freedom) * math.sqrt(variance))
  return difference, difference - half, difference + half


# ---- drawn means and sums --------------------------------------------------------------------------------------------


def resampled_means(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples] means of resamples: each of as many of the values [n] as there are, drawn with replacement."""
  size = len(values)
  distinct, counts = np.unique(values, return_counts=True)
  if 16 * len(distinct) <= size:  # then drawing the number of each different value is faster than drawing each item
    times = scipy.stats.multinomial(size, counts / size, seed=seed)  # its calls go on drawing where the last one ended
    batch = max(1, COUNTS // len(distinct))
    sizes = (min(batch, resamples - start) for start in range(0, resamples, batch))
    return np.concatenate([times.rvs(some) @ distinct / size for some in sizes])
  batch, options = max(1, BATCH // size), dict(method="percentile", rng=seed)
  return scipy.stats.bootstrap((values,), np.mean, n_resamples=resamples, batch=batch, **options).bootstrap_distribution


def signed_sums(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
  """[resamples] sums of the values, each with a random sign.

  Args:
    values: [n], n at least 1.
  """
  size, sums = values.size, []
  octets = scipy.stats.randint(0, 256)
  octets.random_state = seed
  for start in range(0, resamples, batch := max(1, BATCH // size)):
    bits = octets.rvs((min(batch, resamples - start), -(-size // 8))).astype(np.uint8)
    sums.append(2 * np.unpackbits(bits, axis=1, count=size) @ values - values.sum())
  return np.concatenate(sums)
