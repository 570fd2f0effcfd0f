import itertools
import math

import numpy as np
import pytest
import scipy.stats

from ragrl_jax.core.metrics import stats


def test_cohen_by_hand():
  # 50 grants: both yes 20, only the first yes 5, only the second yes 10, both no 15. p_o = 35/50 = 0.7;
  # p_e = 25/50 * 30/50 + 25/50 * 20/50 = 0.5; kappa = 0.2 / 0.5.
  a = ["y"] * 25 + ["n"] * 25
  b = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
  assert stats.cohen_kappa(a, b) == stats.cohen_kappa(b, a) == pytest.approx(0.4)
  assert stats.cohen_kappa([1, 1], [1, 1]) == 1.0  # 0/0: full agreement
  assert stats.cohen_kappa([0, 1, 0, 1], [1, 0, 1, 0]) == -1.0
  assert stats.cohen_kappa([1, 1, 1, 0], [1, 1, 0, 0]) == pytest.approx(0.5)  # p_o 3/4, p_e 3/4*2/4 + 1/4*2/4 = 1/2


def fleiss_kappa(counts):
  return stats.fleiss_kappas(counts, np.ones((1, len(counts))))[0]


def test_fleiss_published_example():
  # Fleiss's table as it is widely reprinted: 10 subjects, 14 raters, 5 categories; its kappa is 0.210.
  counts = [
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1], [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
  ]  # fmt: skip
  assert fleiss_kappa(counts) == pytest.approx(0.210, abs=5e-4)
  assert fleiss_kappa(np.array(counts)[::-1, ::-1].copy()) == pytest.approx(fleiss_kappa(counts))
  assert fleiss_kappa([[3, 0], [3, 0]]) == fleiss_kappa([[2, 0], [0, 2]]) == 1.0
  # P_i = 0 for both, shares 1/2 each: (0 - 1/2) / (1 - 1/2).
  assert fleiss_kappa([[1, 1], [1, 1]]) == -1.0


def test_wilcoxon_exact():
  # Seven data sets, all better. One of the 2^7 sign patterns has a sum of 1 + … + 7, the largest: p = 1/128.
  x = [0.447, 0.65, 0.463, 0.445, 0.423, 0.206, 0.456]
  y = [0.446, 0.64, 0.45, 0.42, 0.38, 0.15, 0.3]
  assert stats.wilcoxon(x, y, alternative="greater") == (28.0, pytest.approx(1 / 128))
  assert stats.wilcoxon(x, y) == (0.0, pytest.approx(2 / 128))
  assert stats.wilcoxon(x, y, alternative="less")[1] == pytest.approx(1.0)
  assert stats.wilcoxon([1, 2], [1, 2]) == (0.0, 1.0)
  same = stats.wilcoxon([1, 2, 3], [1, 1, 1], alternative="greater")  # pairs without a difference are dropped
  assert same == stats.wilcoxon([2, 3], [1, 1], alternative="greater")


def test_paired_permutation_by_enumeration_and_its_edges():
  # Questions right in one system only: five for the one, one for the other. Exact McNemar: 2 (1 + 6) / 2^6.
  x, y = [1, 1, 1, 1, 1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 1, 1, 0, 0, 1]
  assert stats.paired_permutation(x, y) == (pytest.approx(0.4), pytest.approx(14 / 64))
  differences = [1.5, -0.4, 2.2, 0.9, -3.0, 4.1]
  sums = [sum(s * d for s, d in zip(signs, differences)) for signs in itertools.product((-1, 1), repeat=6)]
  expected = sum(abs(s) >= sum(differences) - 1e-9 for s in sums) / len(sums)
  assert stats.paired_permutation(differences, [0.0] * 6) == (pytest.approx(5.3 / 6), pytest.approx(expected))
  # 60 against 40 questions and 900 ties: 2^100 swaps. Scores of 0 and 1 need no draws: 2 P(X >= 60 | 100, 1/2).
  many = stats.paired_permutation([1] * 60 + [0] * 40 + [1] * 900, [0] * 60 + [1] * 40 + [1] * 900)
  exact = 2 * sum(math.comb(100, k) for k in range(60, 101)) / 2**100
  assert many == (pytest.approx(0.02), pytest.approx(exact))
  assert stats.paired_permutation([1, 0.5], [1, 0.5]) == stats.paired_permutation([1, 0], [0, 1]) == (0.0, 1.0)
  assert stats.paired_permutation([1], [0]) == (1.0, 1.0)  # both signs are as far from 0


@pytest.mark.parametrize("levels", [5, 0])
def test_drawn_permutations_fit_scipys(levels):
  """Few sizes of differences (F1 of short answers) and all different ones, against SciPy's permutation of items."""
  rng = np.random.default_rng(0)
  x, y = rng.random((2, 150))
  x = np.minimum(1.0, x + 0.06)
  if levels:
    x, y = np.round(levels * x) / levels, np.round(levels * y) / levels
  how = dict(permutation_type="samples", vectorized=True, n_resamples=40_000, rng=0)
  theirs = scipy.stats.permutation_test((x - y,), np.sum, **how)
  difference, p = stats.paired_permutation(x, y)
  assert difference == pytest.approx(np.mean(x - y))
  # Both are shares of draws: four standard deviations of 10,000.
  assert 0.01 < p < 0.5 and abs(p - theirs.pvalue) < 4 * math.sqrt(p * (1 - p) / 10_000)


def test_holm_by_hand():
  # .01 · 4, .02 · 3, .03 · 2 (the same .06 as the one before), .8 · 1; in the order given.
  assert stats.holm([0.8, 0.01, 0.03, 0.02]) == pytest.approx([0.8, 0.04, 0.06, 0.06])
  assert stats.holm([0.04, 0.03]) == pytest.approx([0.06, 0.06])  # .04 · 1 stays below .03 · 2 and is raised to it
  assert stats.holm([0.5, 0.9]) == [1.0, 1.0] and stats.holm([]) == [] and stats.holm([0.2]) == [0.2]


def test_bootstrap_of_many_items_and_of_many_different_ones_depends_on_values_and_seed_only():
  """Both ways of drawing fit the normal interval: counts of few values, and values that are all different."""
  for values in ([1.0] * 30_000 + [0.0] * 70_000, list(np.linspace(0.0, 1.0, 2000))):
    low, high = stats.bootstrap_interval(values, seed=0)
    half = 1.96 * np.std(values) / math.sqrt(len(values))
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.05 * half)
  values = [0.0, 1.0, 1.0, 0.5, 0.25]
  first = stats.bootstrap_interval(values, seed=1, resamples=500)
  assert first == stats.bootstrap_interval(values, seed=1, resamples=500)
  assert first != stats.bootstrap_interval([v + 1e-3 for v in values], seed=1, resamples=500)
  assert stats.bootstrap_interval([0.5], seed=0) == (0.5, 0.5)
  assert stats.bootstrap_interval([1, 1, 1], seed=0) == (1.0, 1.0)


def test_students_interval_by_hand():
  # Mean 2, deviation 1, and 4.303 is the .975 quantile of two degrees of freedom: 2 ± 4.303 / sqrt 3.
  assert stats.t_interval([1, 2, 3]) == pytest.approx((-0.484, 4.484), abs=1e-3)
  assert stats.t_interval([0.5, 0.5]) == (0.5, 0.5) and stats.t_interval([1]) == (-math.inf, math.inf)


def test_several_runs_of_two_arms():
  """Against SciPy where only runs or only questions differ, and by hand where both do."""
  runs = [[0.1, 0.2, 0.6], [0.3, 0.2]]
  x, y = (np.repeat(np.asarray(arm)[:, None], 50, axis=1) for arm in runs)
  welch = scipy.stats.ttest_ind(*runs, equal_var=False).confidence_interval()
  assert stats.seeds_interval(x, y) == pytest.approx((0.05, welch.low, welch.high))
  one, other = np.random.default_rng(0).random((2, 40))
  paired = scipy.stats.ttest_rel(one, other).confidence_interval()
  for arms in ([one], [other]), ([one, one], [other, other, other]):
    assert stats.seeds_interval(*arms) == pytest.approx((np.mean(one - other), paired.low, paired.high))
  # Questions: differences -.5, 0, variance .125 / 2. Runs of x: means .25, .75, variance .125 / 2; y has a single one.
  # Together .125, with .125² / (2 · .0625²) = 2 degrees of freedom: 4.3027 · √.125 = 1.5212.
  assert stats.seeds_interval([[0, 0.5], [0.5, 1]], [[0.75, 0.75]]) == pytest.approx((-0.25, -1.7712, 1.2712), abs=1e-4)
  assert stats.seeds_interval([[1.0], [1.0]], [[0.0], [0.0]]) == (1.0, 1.0, 1.0)
  assert stats.seeds_interval([[0.0], [1.0]], [[0.0], [0.0]])[1] == pytest.approx(0.5 - 12.706 * 0.5, abs=1e-3)


def test_kappas_of_resamples_are_those_of_the_items():
  a, b = list("001122"), list("010121")
  times = np.asarray([[1, 1, 1, 1, 1, 1], [3, 0, 2, 1, 0, 1]])
  drawn = [i for i, number in enumerate(times[1]) for _ in range(number)]
  again = stats.cohen_kappa([a[i] for i in drawn], [b[i] for i in drawn])
  assert stats.cohen_kappas(a, b, times).tolist() == pytest.approx([stats.cohen_kappa(a, b), again])
  votes = stats.label_counts(list(zip(a, b, "111111")))
  assert stats.fleiss_kappas(votes, times).tolist() == pytest.approx([fleiss_kappa(votes), fleiss_kappa(votes[drawn])])


def test_brier_and_calibration_error_by_hand():
  assert stats.brier([0.9, 0.6, 0.2], [1, 0, 0]) == pytest.approx((0.01 + 0.36 + 0.04) / 3)
  assert stats.brier([1.0, 0.0], [1, 0]) == 0.0
  # Two bins: {.2, .4} with none right, gap .3; {.6, .8, 1} with two right, gap .8 - 2/3. Weights 2/5 and 3/5.
  found = stats.calibration_error([0.2, 0.4, 0.6, 0.8, 1.0], [0, 0, 1, 0, 1], bins=2)
  assert found == pytest.approx(2 / 5 * 0.3 + 3 / 5 * (0.8 - 2 / 3))
  # An edge belongs to the bin below: .5 and 0 are in the first.
  assert stats.calibration_error([0.5, 0.0, 0.9], [1, 0, 1], bins=2) == pytest.approx((0.5 + 0.1) / 3)
  assert stats.calibration_error([0.7] * 10, [1] * 7 + [0] * 3) == pytest.approx(0.0)
  # Answers that are right as often as they say are calibrated.
  said, drawn = np.random.default_rng(0).random((2, 50_000))
  assert stats.calibration_error(said, drawn < said) < 0.01
  assert stats.brier(said, drawn < said) == pytest.approx(1 / 6, abs=0.005)  # the mean of p (1 - p)


@pytest.mark.parametrize("measure, how, wrong, words", [
  (stats.cohen_kappa, {}, [([1], [1, 0])], "same items"), (fleiss_kappa, {}, [([],)], "items, categories"),
  (fleiss_kappa, {}, [([[1, 1], [2, 1]],)], "same number of raters"),
  (stats.wilcoxon, {}, [([1], [1, 2])], "paired"), (stats.paired_permutation, {}, [([1], [1, 2])], "paired"),
  (stats.wilcoxon, dict(alternative="more"), [([1], [2])], "two-sided"),
  (stats.bootstrap_interval, dict(seed=0), [([],), ([0.5, math.nan],)], "list of finite values"),
  (stats.t_interval, {}, [([],), ([0.5, math.nan],)], "list of finite values"),
  (stats.seeds_interval, {}, [([0], [1]), ([[0, 1]], [[1]]), ([], [[0, 1]])], "same questions are needed"),
  (stats.brier, {}, [([], []), ([0.5], [1, 0]), ([-0.1], [1]), ([0.5], [2])], "are needed|between 0 and 1"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(measure, how, wrong, words):
  for given in wrong:
    with pytest.raises(ValueError, match=words):
      measure(*given, **how)


RNG = np.random.default_rng(0)
KINDS = dict(
  uniform=RNG.random,
  lognormal=lambda n: RNG.lognormal(size=n),
  heavy=lambda n: RNG.pareto(1.1, n),  # no variance
  outlier=lambda n: np.append(RNG.random(n - 1), 1e4),  # its number decides: 0, 1, 2, …
  counts=lambda n: RNG.integers(0, 20, n).astype(float),
)


def apart(drawn, items, spread):
  """The largest distance of five quantiles, in standard errors."""
  levels = [0.005, 0.025, 0.5, 0.975, 0.995]
  return np.abs(np.quantile(drawn, levels) - np.quantile(items, levels)).max() / spread


@pytest.mark.parametrize("kind, n", [*((kind, 33) for kind in KINDS), ("uniform", 300), ("counts", 300)])
def test_means_are_distributed_as_those_of_drawn_items(kind, n):
  values = KINDS[kind](n)
  items = np.concatenate([values[RNG.integers(0, n, (4000, n))].mean(axis=1) for _ in range(10)])
  drawn = stats.resampled_means(values, resamples=40_000, seed=0)
  # The random error of the 0.5 % and 99.5 % quantiles of 40,000 draws is .03; of a heavy tail's, .06.
  assert apart(drawn, items, values.std() / np.sqrt(n)) < 0.15
  assert drawn.mean() == pytest.approx(values.mean(), abs=0.03 * values.std() / np.sqrt(n))


def test_a_draw_of_many_values_is_of_the_right_size():
  values = RNG.lognormal(size=5000)
  drawn = stats.resampled_means(values, resamples=10_000, seed=0)
  assert drawn.shape == (10_000,) and drawn.std() == pytest.approx(values.std() / np.sqrt(5000), rel=0.04)
  assert np.array_equal(drawn, stats.resampled_means(values, resamples=10_000, seed=0))
  assert stats.resampled_means(values + 7, resamples=10_000, seed=0) == pytest.approx(drawn + 7)


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "heavy", "counts"])
def test_signed_sums_are_distributed_as_those_of_single_signs(kind):
  values = KINDS[kind](200) + 1.0
  items = np.concatenate([(2 * RNG.integers(0, 2, (4000, 200)) - 1) @ values for _ in range(10)])
  drawn = stats.signed_sums(values, resamples=40_000, seed=0)
  assert apart(drawn, items, np.sqrt(np.square(values).sum())) < 0.12
