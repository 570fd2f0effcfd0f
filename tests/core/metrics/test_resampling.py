"""Resampled means and signed sums, against draws of single items."""

import numpy as np
import pytest

from ragrl_jax.core.metrics import resampling

RNG = np.random.default_rng(0)
KINDS = dict(
  uniform=lambda n: RNG.random(n),
  lognormal=lambda n: RNG.lognormal(size=n),
  heavy=lambda n: RNG.pareto(1.1, n),  # no variance
  outlier=lambda n: np.append(RNG.random(n - 1), 1e4),  # its number decides: 0, 1, 2, …
  counts=lambda n: RNG.integers(0, 20, n).astype(float),
)


def apart(drawn, items, spread):
  """The largest distance of five quantiles, in standard errors."""
  levels = [0.005, 0.025, 0.5, 0.975, 0.995]
  return np.abs(np.quantile(drawn, levels) - np.quantile(items, levels)).max() / spread


@pytest.mark.parametrize("n", [33, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_means_are_distributed_as_those_of_drawn_items(kind, n):
  values = KINDS[kind](n)
  items = np.concatenate([values[RNG.integers(0, n, (4000, n))].mean(axis=1) for _ in range(10)])
  drawn = resampling.means(values, resamples=40_000, seed=0)
  # The random error of the 0.5 % and 99.5 % quantiles of 40,000 draws is .03; of a heavy tail's, .06.
  assert apart(drawn, items, values.std() / np.sqrt(n)) < 0.15
  assert drawn.mean() == pytest.approx(values.mean(), abs=0.03 * values.std() / np.sqrt(n))


def test_a_draw_of_many_values_is_of_the_right_size():
  values = RNG.lognormal(size=5000)
  drawn = resampling.means(values, resamples=10_000, seed=0)
  assert drawn.shape == (10_000,) and drawn.std() == pytest.approx(values.std() / np.sqrt(5000), rel=0.04)
  assert np.array_equal(drawn, resampling.means(values, resamples=10_000, seed=0))
  assert resampling.means(values + 7, resamples=10_000, seed=0) == pytest.approx(drawn + 7)


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "heavy", "counts"])
def test_signed_sums_are_distributed_as_those_of_single_signs(kind):
  values = KINDS[kind](200) + 1.0
  items = np.concatenate([(2 * RNG.integers(0, 2, (4000, 200)) - 1) @ values for _ in range(10)])
  drawn = resampling.signed_sums(values, resamples=40_000, seed=0)
  assert apart(drawn, items, np.sqrt(np.square(values).sum())) < 0.12


def test_row_means_keep_what_runs_have_in_common():
  """Both ways of drawing rows: a score that is the sum of two stays it, and variances are those of means."""
  for values in (RNG.integers(0, 2, (500, 2)).astype(float), RNG.random((500, 2))):
    rows = np.column_stack([values, values.sum(axis=1)])
    drawn = resampling.means(rows, resamples=20_000, seed=0)
    assert drawn[:, 2] == pytest.approx(drawn[:, 0] + drawn[:, 1], abs=1e-6)
    assert np.cov(drawn.T) == pytest.approx(np.cov(rows.T) / 500, abs=0.05 * np.var(rows[:, 2]) / 500)


def test_weights_of_runs():
  drawn = resampling.run_weights(3, resamples=20_000, seed=0)
  assert np.unique(drawn).tolist() == [0.0, 0.5, 1.0] and np.all(drawn.sum(axis=1) == 1)
  # The mean of S - 1 draws of the values 0, 1, 5 has the variance s² / S = 7 / 3, s² with S - 1.
  assert (drawn @ [0.0, 1.0, 5.0]).var() == pytest.approx(7 / 3, rel=0.03)
  assert resampling.run_weights(1, resamples=9, seed=0).tolist() == [[1.0]]
