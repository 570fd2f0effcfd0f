"""Attention against the formula written out, for every shape of mask, block and number format."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.models import attention

B, T, H, KV, h = 4, 24, 4, 2, 8
# One segment; two and padding behind; padding before and ids that fall; nothing but padding.
SEGMENTS = np.array([[1] * 24, [1] * 5 + [2] * 9 + [0] * 10, [0] * 3 + [2] * 10 + [1] * 11, [0] * 24], np.int32)


def by_formula(q, k, v, causal, segments=SEGMENTS):
  """Softmax over the allowed tokens, head by head, in float64; zeros where nothing is allowed."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  out = np.zeros_like(q)
  for b, t, head in np.ndindex(*q.shape[:3]):
    allowed = (segments[b] == segments[b, t]) & (segments[b, t] != 0)
    if causal:
      allowed &= np.arange(len(allowed)) <= t
    if allowed.any():
      scores = k[b, allowed, head // (H // KV)] @ q[b, t, head] / np.sqrt(h)
      weights = np.exp(scores - scores.max())
      out[b, t, head] = weights @ v[b, allowed, head // (H // KV)] / weights.sum()
  return out


def plain(q, k, v, causal, segments=SEGMENTS):
  """The same in one piece, so that JAX can differentiate it."""
  k, v = (jnp.repeat(x, H // KV, axis=2) for x in (k, v))
  mask = (segments[:, :, None] == segments[:, None, :]) & (segments != 0)[:, :, None]
  if causal:
    mask &= np.tril(np.ones((T, T), bool))[None]
  scores = jnp.where(mask[:, None], jnp.einsum("bthd,bshd->bhts", q, k) / np.float32(np.sqrt(h)), -1e9)
  return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1) * mask[:, None].astype(np.float32), v)


def arrays(seed=0):
  draw = np.random.default_rng(seed)
  return [jnp.asarray(draw.normal(size=(B, T, heads, h)), jnp.float32) for heads in (H, KV, KV, H)]


@functools.partial(jax.jit, static_argnames=("causal", "block"))
def attend(q, k, v, weight, *, causal=True, block=8):
  """(output, gradients of q, k, v where `weight` is the output's)."""
  run = lambda q, k, v: attention.attend(q, k, v, jnp.asarray(SEGMENTS), causal=causal, block=block)
  out, back = jax.vjp(run, q, k, v)
  return out, back(weight)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block", [T, 8, 7])  # one block; three; four, the last with a piece of padding
def test_attention_and_its_gradient(causal, block):
  q, k, v, weight = arrays()
  got, gradients = attend(q, k, v, weight, causal=causal, block=block)
  np.testing.assert_allclose(got, by_formula(q, k, v, causal), atol=2e-6)
  want = jax.jit(lambda *x: jax.vjp(lambda q, k, v: plain(q, k, v, causal), *x)[1](weight))(q, k, v)
  for mine, theirs in zip(gradients, want):
    np.testing.assert_allclose(mine, theirs, atol=5e-6)
  for array in (got, *gradients):  # padding gives zeros and takes no gradient
    np.testing.assert_array_equal(np.asarray(array)[SEGMENTS == 0], 0.0)


def test_huge_scores_stay_finite():
  # Scores of ±1e5: exp overflows float32 beyond 88 unless the largest is taken off first.
  q, k, v, weight = arrays()
  got, gradients = attend(q * 1e3, k * 1e3, v, weight)
  np.testing.assert_allclose(got, by_formula(q * 1e3, k * 1e3, v, True), atol=1e-3)
  assert all(np.isfinite(x).all() for x in gradients)


def test_bfloat16_inputs_are_summed_in_float32():
  half = [x.astype(jnp.bfloat16) for x in arrays()]
  got, _ = attend(*half)
  assert got.dtype == jnp.bfloat16
  # The output and the weights are rounded to 8 bits of mantissa: 2^-8 of values up to 3, twice.
  np.testing.assert_allclose(
    got.astype(jnp.float32), by_formula(*(x.astype(jnp.float32) for x in half[:3]), True), atol=2 * 3 * 2**-8)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_other_segments_are_skipped(causal):
  # Three blocks of 8. Row 0 holds segments 1, 1, 2; row 1 holds 1, 2 and padding, 0.
  segments = jnp.array([[1] * 16 + [2] * 8, [1] * 8 + [2] * 4 + [0] * 12], jnp.int32)
  first, last = attention._bounds(segments, causal, 8)
  # Queries of block 0 need keys of block 0 (and, looking ahead, 1: row 0). Block 1 needs 0 and 1. Block 2 is alone.
  assert first.tolist() == [0, 0, 2] and last.tolist() == ([1, 2, 3] if causal else [2, 2, 3])


def test_positions_restart_with_each_segment():
  got = attention.segment_positions(jnp.array([[1, 1, 1, 2, 2, 0, 0], [0, 0, 3, 3, 1, 1, 1]], jnp.int32))
  assert got.tolist() == [[0, 1, 2, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 2]]
