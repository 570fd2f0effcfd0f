import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from refusals import refused

from ragrl_jax.core import losses, masked
from ragrl_jax.core.masked import AGGREGATIONS
from ragrl_jax.core.value import value_loss

MASK = jnp.array([[1, 1, 1, 0], [1, 0, 0, 0]])
X = jnp.array([[1.0, 2.0, 3.0, 100.0], [8.0, 100.0, 100.0, 100.0]])
HOW = dict(clip_low=0.2, clip_high=0.3, aggregation="token_mean")
BY_HAND = dict(
  token_mean=14 / 4,  # (1 + 2 + 3 + 8) / 4 tokens
  seq_mean_token_sum=14 / 2,  # (6 + 8) / 2 sequences
  seq_mean_token_mean=10 / 2,  # (6 / 3 + 8) / 2
  seq_mean_token_sum_norm=7 / 4,  # ... of the sums, divided by T = 4
)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_aggregate_by_hand_and_the_same_in_other_layouts(mode):
  agree = lambda found: np.testing.assert_allclose(found, BY_HAND[mode], rtol=1e-6)
  agree(masked.aggregate(X, MASK, mode))
  # The two rows above as two segments of one row, followed by padding.
  packed = jnp.array([[1.0, 2.0, 3.0, 8.0, 100.0, 100.0]])
  mask, segments = jnp.array([[1, 1, 1, 1, 0, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])
  agree(masked.aggregate(packed, mask, mode, segment_ids=segments, norm=4))
  agree(sum(masked.aggregate(X[i : i + 1], MASK[i : i + 1], mode, totals=(4, 2)) for i in range(2)))
  # A sequence without trained tokens does not count.
  agree(masked.aggregate(jnp.concatenate([X, X[:1]]), jnp.pad(MASK, ((0, 1), (0, 0))), mode))
  assert float(masked.aggregate(X, jnp.zeros_like(MASK), mode)) == 0.0
  if mode == "seq_mean_token_sum_norm":
    np.testing.assert_allclose(masked.aggregate(X, MASK, mode, norm=10), 0.7, rtol=1e-6)


def one(gap, advantage, **how):
  """(loss, slope in logprobs, metrics) of a single token."""
  how = HOW | how
  f = lambda x: losses.policy_loss(x, jnp.zeros((1, 1)), jnp.full((1, 1), advantage), jnp.ones((1, 1)), **how)
  (loss, metrics), slope = jax.value_and_grad(f, has_aux=True)(jnp.full((1, 1), gap))
  return float(loss), float(slope[0, 0]), {k: float(v) for k, v in metrics.items()}


@pytest.mark.parametrize("ratio, advantage, want, clipped", [
  (1.1, 1.0, -1.1, 0.0),  # inside the bounds: -A rho
  (1.5, 1.0, -1.3, 1.0),  # above 1 + .3 and A > 0: clipped
  (0.5, 1.0, -0.5, 0.0),  # below the bound and A > 0: not clipped
  (0.5, -1.0, 0.8, 1.0),  # below 1 - .2 and A < 0: clipped
  (1.5, -1.0, 1.5, 0.0),
])  # fmt: skip
def test_clipping_by_hand(ratio, advantage, want, clipped):
  loss, slope, metrics = one(np.log(ratio), advantage)
  assert loss == pytest.approx(want, rel=1e-5)
  assert slope == pytest.approx(0.0 if clipped else -advantage * ratio, rel=1e-5)
  assert metrics["clip_fraction"] == clipped and metrics["ratio"] == pytest.approx(ratio, rel=1e-5)
  assert metrics["old_kl"] == pytest.approx(ratio - 1 - np.log(ratio), rel=1e-3)


def test_dual_clip_by_hand():
  # A = -2, rho = 5: 10 without the dual clip, at most 2 · 3 with it. A positive advantage is not affected.
  assert one(np.log(5.0), -2.0)[0] == pytest.approx(10.0, rel=1e-5)
  loss, slope, metrics = one(np.log(5.0), -2.0, dual_clip=3.0)
  assert (loss, slope, metrics["dual_clip_fraction"]) == (pytest.approx(6.0), 0.0, 1.0)
  assert one(np.log(1.1), 2.0, dual_clip=3.0)[0] == one(np.log(1.1), 2.0)[0]


def test_cispo_equals_its_source():
  # The numbers of verl's own test of its CISPO: the weights are min(e^.5, 1.2) and e^-1, and a clipped token learns.
  x, old = jnp.array([[-1.5, -3.0, -1.0]]), jnp.full((1, 3), -2.0)
  advantages, mask = jnp.array([[2.0, -3.0, 100.0]]), jnp.array([[1, 1, 0]])
  how = dict(clip_low=10.0, clip_high=0.2, aggregation="token_mean", surrogate="cispo")
  f = lambda x, **more: losses.policy_loss(x, old, advantages, mask, **how, **more)
  (loss, metrics), slope = jax.value_and_grad(f, has_aux=True)(x)
  np.testing.assert_allclose(loss, (1.2 * 2.0 * 1.5 - np.exp(-1.0) * 3.0 * 3.0) / 2, rtol=1e-6)
  np.testing.assert_allclose(slope, [[-1.2 * 2.0 / 2, np.exp(-1.0) * 3.0 / 2, 0.0]], rtol=1e-6)
  assert metrics["clip_fraction"] == 0.5
  slope = jax.grad(lambda x: f(x, weights=jnp.array([[0.5, 2.0, 9.0]]))[0])(x)
  np.testing.assert_allclose(slope, [[-0.6, np.exp(-1.0) * 3.0, 0.0]], rtol=1e-6)
  # Where no ratio has moved, the gradient is that of the clipped surrogate.
  clipped = lambda x: losses.policy_loss(x, old, advantages, mask, **HOW)[0]
  np.testing.assert_allclose(jax.grad(lambda x: f(x)[0])(old), jax.grad(clipped)(old), rtol=1e-6)
  refused("clipped, cispo", losses.policy_loss, x, old, advantages, mask, **HOW, surrogate="soft")


def test_sequence_ratio_by_hand():
  # Segment 1 has gaps (.2, .4): mean .3, so rho e^.3 for both tokens. Segment 2 has -.1. All are within bounds of 50 %.
  gaps, segments = jnp.array([[0.2, 9.0, 0.4, -0.1]]), jnp.array([[1, 1, 1, 2]])
  mask, advantages = jnp.array([[1, 0, 1, 1]]), jnp.array([[1.0, 1.0, 1.0, -2.0]])
  how = dict(clip_low=0.5, clip_high=0.5, aggregation="seq_mean_token_mean", ratio="sequence", segment_ids=segments)
  f = lambda x: losses.policy_loss(x, jnp.zeros((1, 4)), advantages, mask, **how)[0]
  np.testing.assert_allclose(f(gaps), (-np.exp(0.3) + 2 * np.exp(-0.1)) / 2, rtol=1e-6)
  # d/dx of -e^{mean}: each of segment 1's two tokens gets half of it. The mean over two sequences halves it again.
  np.testing.assert_allclose(jax.grad(f)(gaps), [[-np.exp(0.3) / 4, 0.0, -np.exp(0.3) / 4, np.exp(-0.1)]], rtol=1e-5)


def test_the_kl_to_the_old_policy_is_that_of_tokens_whatever_the_ratio():
  gaps = np.random.default_rng(0).normal(0, 0.1, (8, 200)).astype(np.float32)
  wide, ones = gaps.astype(np.float64), np.ones_like(gaps)
  how = dict(clip_low=0.2, clip_high=0.2, aggregation="token_mean", segment_ids=ones.astype(np.int32))
  for ratio in ("token", "sequence"):
    _, metrics = losses.policy_loss(gaps, 0 * gaps, ones, ones, ratio=ratio, **how)
    assert metrics["old_kl"] == pytest.approx(np.mean(np.expm1(wide) - wide), rel=1e-3), ratio


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("way", [dict(), dict(ratio="sequence", dual_clip=3.0), dict(surrogate="cispo")], ids=str)
def test_untrained_tokens_have_finite_values_and_no_gradient_however_far_off_policy(aggregation, way):
  first = [-120.0, 120.0, -30.0, 30.0, 0.0, 120.0, jnp.nan, jnp.inf]
  gaps = jnp.array([first, [120.0, -120.0, 88.5, -88.5, 1.0, jnp.nan, -jnp.inf, -120.0]])
  mask = jnp.array([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]])
  advantages = jnp.array([[1.0] * 7 + [jnp.nan], [-1.0] * 7 + [jnp.inf]])
  how = HOW | dict(aggregation=aggregation, **way)
  f = lambda x: losses.policy_loss(x, jnp.zeros((2, 8)), advantages, mask, **how)
  (loss, metrics), gradient = jax.value_and_grad(f, has_aux=True)(gaps)
  assert jnp.isfinite(loss) and jnp.isfinite(gradient).all() and all(jnp.isfinite(x) for x in metrics.values())
  np.testing.assert_array_equal(gradient[:, 5:], 0.0)


def test_policy_gradient_is_the_derivative():
  x, old, advantages = 0.3 * jax.random.normal(jax.random.key(0), (3, 2, 5))
  mask = jnp.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]])
  for aggregation, ratio in itertools.product(AGGREGATIONS[:3:2], ["token", "sequence"]):
    how = dict(clip_low=0.2, clip_high=0.2, aggregation=aggregation, ratio=ratio)
    f = lambda x, how=how: losses.policy_loss(x, old, advantages, mask, **how)[0]
    check_grads(jax.jit(f), (x,), order=1, modes=["rev"], eps=1e-3, atol=2e-3, rtol=2e-3)


def test_metrics_of_parts_add_up():
  x, advantages = jax.random.normal(jax.random.key(1), (2, 2, 4))
  whole = losses.policy_loss(x, jnp.zeros((2, 4)), advantages, MASK, **HOW)[1]
  of = lambda i: losses.policy_loss(x[i], jnp.zeros((1, 4)), advantages[i], MASK[i], totals=(4, 2), **HOW)[1]
  parts = [of(slice(i, i + 1)) for i in range(2)]
  for name, value in whole.items():
    np.testing.assert_allclose(parts[0][name] + parts[1][name], value, rtol=1e-6)


def test_value_loss_by_hand():
  # Old values 0, clip .5. Value 1, return 2: clipped to .5, errors 1 and 2.25; the loss is half the larger. Value .2 is
  # not clipped: (1.8)^2. Value -1, return -2: as the first. Value 1, return -2: errors 9 and, clipped, 6.25.
  values, returns = jnp.array([[[1.0, 0.2, -1.0, 1.0, 7.0]], [[2.0, 2.0, -2.0, -2.0, 2.0]]])
  args = values, jnp.zeros((1, 5)), returns, jnp.array([[1, 1, 1, 1, 0]])
  got = value_loss(*args, clip=0.5, aggregation="token_mean")
  np.testing.assert_allclose(got, (2.25 + 1.8**2 + 2.25 + 9.0) / 2 / 4, rtol=1e-6)
  got = value_loss(*args, clip=None, aggregation="seq_mean_token_sum")
  np.testing.assert_allclose(got, (1.0 + 1.8**2 + 1.0 + 9.0) / 2, rtol=1e-6)


@pytest.mark.parametrize("how, word", [
  (dict(ratio="step"), "ratio='step'"), (dict(clip_low=-0.1), "negative"), (dict(dual_clip=1.0), "above 1"),
  (dict(aggregation="mean"), "token_mean"),
])  # fmt: skip
def test_invalid_arguments_are_refused(how, word):
  refused(word, losses.policy_loss, X, X, X, MASK, **(HOW | how))
  refused("value clip -0.5", value_loss, X, X, X, MASK, clip=-0.5, aggregation="token_mean")


def test_masked_values_have_no_effect_and_segment_sums_and_the_number_of_trained_sequences_by_hand():
  x = jnp.array([[1.0, jnp.nan, jnp.inf, 3.0]])
  mask = jnp.array([[1, 0, 0, 1]])
  assert float(masked.total(x, mask)) == 4.0
  gradient = jax.grad(lambda x: masked.total(jnp.square(masked.keep(x, mask)), mask))(x)
  # d/dx of x0^2 + x3^2 is 2 x0 and 2 x3. All other gradients are 0.
  np.testing.assert_array_equal(gradient, [[2.0, 0.0, 0.0, 6.0]])
  off = jnp.zeros((1, 4), bool)
  assert float(masked.total(x, off)) == float(masked.num_sequences(off)) == 0.0
  x = jnp.array([[1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
  mask = jnp.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]])
  segments = jnp.array([[1, 1, 1, 2, 0], [1, 2, 2, 2, 2]])
  # Row 0: segment 1 sums to 1 + 2, segment 2 to 8, segment 0 (padding) to 16. Row 1: 1, and 1 + 1. Rows stay separate.
  want = [[3.0, 3.0, 3.0, 8.0, 16.0], [1.0, 2.0, 2.0, 2.0, 2.0]]
  np.testing.assert_array_equal(masked.segment_sums(x, mask, segments), want)
  np.testing.assert_array_equal(masked.segment_sums(x, mask, None), [[27.0] * 5, [3.0] * 5])
  mask = jnp.array([[1, 0, 0, 1], [0, 0, 0, 0]])
  segments = jnp.array([[1, 2, 2, 3], [1, 1, 2, 0]])
  assert float(masked.num_sequences(mask, segments)) == 2.0  # segments 1 and 3 of row 0; segment 2 has no trained token
  assert float(masked.num_sequences(mask)) == 1.0  # without segments, a row is a sequence
