"""Guards of the loss equal their sources on tensors worked out by hand or recorded there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.core import guards, losses, masked

OPEN = dict(clip_low=1e6, clip_high=1e6, aggregation="token_mean")  # no clip


def test_weights_out_of_the_band_are_zero_as_in_icepop():
  gaps, mask = np.log([[0.4, 0.5001, 1.0, 4.999, 5.1, 3.0]]), np.array([[1, 1, 1, 1, 1, 0]])
  weigh = lambda **how: guards.importance_weights(gaps, np.zeros((1, 6)), mask, cap=5.0, **how)
  np.testing.assert_allclose(weigh(floor=0.5), [[0.0, 0.5001, 1.0, 4.999, 0.0, 0.0]], rtol=1e-6)
  np.testing.assert_allclose(weigh(floor=0.0), [[0.4, 0.5001, 1.0, 4.999, 0.0, 0.0]], rtol=1e-6)
  np.testing.assert_allclose(weigh(), [[0.4, 0.5001, 1.0, 4.999, 5.0, 0.0]], rtol=1e-6)


def test_tokens_that_moved_too_far_are_left_out_as_in_dppo():
  # The tensors of prime-rl's own test of its default loss, without its temperature and KL.
  policy, sampler = np.array([[0.5, 0.1, 0.2, 0.3]]), np.array([[0.1, 0.5, 0.2, 0.25]])
  advantages, mask = np.array([[1.0, -1.0, 0.0, 0.5]]), np.array([[1, 1, 1, 0]])
  bounds = dict(max_fall=0.2, max_rise=0.2)
  kept = guards.kept_tokens(np.log(policy), np.log(sampler), advantages, mask, **bounds)
  np.testing.assert_array_equal(kept, [[0, 0, 1, 0]])  # up by .4 with A > 0; down by .4 with A < 0; the same
  # Against the advantage any distance is allowed, and A = 0 counts as negative.
  kept = guards.kept_tokens(np.log(policy), np.log(sampler), -advantages, np.ones((1, 4)), **bounds)
  np.testing.assert_array_equal(kept, [[1, 1, 1, 1]])
  kept = guards.kept_tokens(np.log(sampler), np.log(policy), 0 * advantages, np.ones((1, 4)), **bounds)
  np.testing.assert_array_equal(kept, [[0, 1, 1, 1]])
  # The whole loss: -A pi / pi_sampler of the kept tokens, which the ratio and the importance weight give together.
  draw = np.random.default_rng(0)
  x, old, sampled = np.log(draw.uniform(0.1, 0.9, (3, 4, 9)))
  advantages, mask = draw.normal(size=(4, 9)), draw.random((4, 9)) < 0.7
  moved = np.exp(x) - np.exp(sampled)
  keep = mask & ~np.where(advantages > 0, moved > 0.2, moved < -0.2)
  want = -(keep * advantages * np.exp(x - sampled)).sum() / mask.sum()
  weights = guards.importance_weights(old, sampled, mask, cap=1e6)
  weights = weights * guards.kept_tokens(x, sampled, advantages, mask, **bounds)
  got, _ = losses.policy_loss(x, old, advantages, mask, **OPEN, weights=weights)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert 0 < keep.sum() < mask.sum()


def test_sequences_are_left_out_by_the_geometric_mean_of_their_ratio():
  # Segment 1: ratios 2 and 8, mean 4; 2: ratios .2 and 5, mean 1; 3: ratio .05. Other tokens do not count.
  ratios = np.array([[2.0, 99.0, 8.0, 0.2, 5.0, 0.05, np.nan]])
  mask, segments = np.array([[1, 0, 1, 1, 1, 1, 0]]), np.array([[1, 1, 1, 2, 2, 3, 0]])
  given = np.log(ratios), 0 * segments, mask
  kept = lambda low, high: guards.kept_sequences(*given, low=low, high=high, segment_ids=segments).tolist()[0]
  assert kept(0.1, 3.99) == [0, 0, 0, 1, 1, 0, 0]
  assert kept(None, 4.01) == kept(0.04, None) == [1, 0, 1, 1, 1, 1, 0]
  rows = np.log([[2.0, 8.0], [0.2, 5.0]])
  of_rows = guards.kept_sequences(rows, 0 * rows, np.ones((2, 2)), low=0.5, high=2.0)
  np.testing.assert_array_equal(of_rows, [[0, 0], [1, 1]])


def test_llds_by_hand():
  # old - new of three actions: falls by .3 - .1, rises by .4 - .1, and falls with A < 0. The others are untrained.
  drops = jnp.array([[0.3, -0.1, 9.0, 0.1, -0.4, np.nan, 0.5]])
  mask = jnp.array([[1, 1, 0, 1, 1, 0, 1]])
  advantages = jnp.array([[1.0, 1.0, 1.0, 0.0, 0.0, np.nan, -1.0]])
  f = lambda x: guards.fallen_likelihood(x, 0 * drops, advantages, mask)
  total = lambda x: ((found := f(x))[0].sum(), found)
  (_, (falls, fell)), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(-drops)
  np.testing.assert_allclose(falls, [[0.3, 0, 0, 0, 0, 0, 0]], rtol=1e-6)
  np.testing.assert_array_equal(fell, [[1, 1, 0, 0, 0, 0, 0]])
  np.testing.assert_array_equal(slopes, [[-1, 0, 0, 0, 0, 0, 0]])
  # Neighbours of two sequences are two actions, also where a shared beginning leaves no untrained token between them.
  x, ones = -jnp.array([[0.3, -0.4]]), jnp.ones((1, 2))
  for ids, want in ((None, [[False, False]]), (jnp.array([[2, 3]]), [[True, False]])):
    assert guards.fallen_likelihood(x, 0 * x, ones, ones, segment_ids=ids)[1].tolist() == want


def test_an_action_has_fallen_below_nine_tenths_of_its_likelihood():
  """Two turns of one sequence, then one of the next: only what earned more counts, and each turn as a whole."""
  mask = jnp.array([[True, True, False, True, True, True, True]])
  old = jnp.zeros((1, 7))
  fell = lambda new, advantages: guards.fallen_actions(
    jnp.array([new]), old, jnp.array([advantages]), mask, segment_ids=jnp.array([[1, 1, 1, 1, 1, 2, 2]])
  )[0].astype(int)
  ones = [1.0] * 7
  assert fell([-0.2, 0.0, -9.0, -0.2, 0.15, -0.05, -0.05], ones).tolist() == [1, 1, 0, 0, 0, 0, 0]  # .82, .95, .90
  assert fell([0.0, 0.0, 0.0, 0.0, 0.0, -0.1, -0.1], ones).tolist() == [0, 0, 0, 0, 0, 1, 1]
  assert not fell([-1.0] * 7, [0.0, 0.0, 1.0, -1.0, -1.0, 0.0, -1.0]).any()


def test_llds_equals_its_source():
  """The published code's steps, action by action, in float64: gate, fall, mean over all trained tokens."""
  draw = np.random.default_rng(0)
  old, new = draw.normal(-2.0, 1.0, (2, 6, 40))
  advantages = np.repeat(draw.normal(size=(6, 1)), 40, axis=1)
  mask = draw.random((6, 40)) < 0.8
  total = 0.0
  for row in range(6):
    kept = np.flatnonzero(mask[row] & (advantages[row] >= 0))
    for action in np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1):
      drop = old[row, action] - new[row, action]
      total += np.maximum(drop, 0.0).sum() if drop.sum() > 0 else 0.0
  falls, fell = guards.fallen_likelihood(new, old, advantages, mask)
  np.testing.assert_allclose(masked.aggregate(falls, mask, "token_mean"), total / mask.sum(), rtol=1e-6)
  assert 0 < fell.sum() < mask.sum()


@pytest.mark.parametrize("far", [-120.0, 120.0])
def test_masks_are_finite_and_constant(far):
  x = jnp.array([[far, 0.0, jnp.nan]])
  ones, mask = jnp.ones((1, 3)), jnp.array([[1, 1, 0]])
  f = lambda x: (
    guards.kept_sequences(x, 0 * ones, mask, low=0.1, high=10.0)
    + guards.kept_tokens(x, 0 * ones, ones, mask, max_fall=0.2, max_rise=0.2)
  ).sum()
  assert jnp.isfinite(f(x))
  np.testing.assert_array_equal(jax.grad(f)(x), 0.0)
