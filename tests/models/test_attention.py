"""Attention against its formula, for all kinds of masks, blocks and dtypes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_kit import PREFIXES, SHARED, UNTIL, agree, arrays, in_windows, plain, positions as positions_of, run

from ragrl_jax.models import attention, kernels
from ragrl_jax.parallel import mesh as mesh_lib

SHAPE = B, T, H, KV, h = 4, 24, 4, 2, 8
# One segment; two segments and padding at the end; padding first and falling ids; only padding.
SEGMENTS = np.array([[1] * 24, [1] * 5 + [2] * 9 + [0] * 10, [0] * 3 + [2] * 10 + [1] * 11, [0] * 24], np.int32)


def by_formula(q, k, v, causal=True):
  mask = (SEGMENTS[:, :, None] == SEGMENTS[:, None, :]) & (SEGMENTS != 0)[:, :, None]
  return plain(q, k, v, mask & np.tril(np.ones((T, T), bool))[None] if causal else mask)


@functools.cache
def formula(causal):
  return run(lambda q, k, v, _: by_formula(q, k, v, causal), SHAPE, SEGMENTS)


def head_by_head(q, k, v):
  """Softmax over the allowed tokens, head by head, in float64; zeros if none is allowed."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  out = np.zeros_like(q)
  for b, t, head in np.ndindex(*q.shape[:3]):
    allowed = (SEGMENTS[b] == SEGMENTS[b, t]) & (SEGMENTS[b, t] != 0) & (np.arange(T) <= t)
    if allowed.any():
      scores = k[b, allowed, head // (H // KV)] @ q[b, t, head] / np.sqrt(h)
      weights = np.exp(scores - scores.max())
      out[b, t, head] = weights @ v[b, allowed, head // (H // KV)] / weights.sum()
  return out


@functools.partial(jax.jit, static_argnames=("causal", "block"))
def attend(q, k, v, weight, *, causal=True, block=8):
  """(output, gradients of q, k, v for the weight `weight` of the output)."""
  out, back = jax.vjp(
    lambda q, k, v: attention.attend(q, k, v, jnp.asarray(SEGMENTS), causal=causal, block=block), q, k, v
  )
  return out, back(weight)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block", [T, 8, 7])  # one block; three; four, the last one with padding
def test_attention_and_its_gradient(causal, block):
  got, gradients = attend(*arrays(SHAPE), causal=causal, block=block)
  want, back = formula(causal)
  np.testing.assert_allclose(got, want, atol=2e-6)
  if causal and block == 8:  # once also without JAX
    np.testing.assert_allclose(got, head_by_head(*arrays(SHAPE)[:3]), atol=2e-6)
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-6), gradients, back)
  for array in (got, *gradients):  # padding gives zeros and gets no gradient
    np.testing.assert_array_equal(np.asarray(array)[SEGMENTS == 0], 0.0)


def test_huge_scores_stay_finite():
  # Scores of ±1e5: exp overflows float32 above 88 unless the largest score is subtracted first.
  q, k, v, weight = arrays(SHAPE)
  got, gradients = attend(q * 1e3, k * 1e3, v, weight)
  np.testing.assert_allclose(got, by_formula(q * 1e3, k * 1e3, v), atol=1e-3)
  assert all(np.isfinite(x).all() for x in gradients)


def test_bfloat16_inputs_are_summed_in_float32():
  half = arrays(SHAPE, jnp.bfloat16)
  got, _ = attend(*half)
  assert got.dtype == jnp.bfloat16
  # Output and weights are rounded to 8 bits of mantissa: 2^-8 of values up to 3, twice.
  want = by_formula(*(x.astype(jnp.float32) for x in half[:3]))
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=2 * 3 * 2**-8)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_other_segments_are_skipped(causal):
  # Three blocks of 8. Row 0 holds segments 1, 1, 2; row 1 holds 1, 2 and padding, 0.
  segments = jnp.array([[1] * 16 + [2] * 8, [1] * 8 + [2] * 4 + [0] * 12], jnp.int32)
  count, which = attention._needed(kernels.Seen.of(segments, causal=causal), 8)
  # Queries of block 0 need keys of block 0 (without a causal mask also of block 1, in row 0). Block 1 needs 0 and 1.
  # Block 2 needs itself.
  assert count.tolist() == ([1, 2, 1] if causal else [2, 2, 1])
  assert [w[:n] for w, n in zip(which.tolist(), count.tolist())] == [[0] if causal else [0, 1], [0, 1], [2]]


@pytest.mark.long  # compiles for long rows
def test_rows_of_16k_tokens_never_materialise_a_square():
  length = 16_384
  segments = np.repeat([1, 2, 0], [10_000, 6_000, 384]).astype(np.int32)[None]
  run = lambda q, k, v: attention.attend(q, k, v, jnp.asarray(segments))
  draw = np.random.default_rng(0)
  q, k, v = (jnp.asarray(draw.normal(size=(1, length, heads, h)), jnp.float32) for heads in (2, 1, 1))
  got = np.asarray(jax.jit(run)(q, k, v))
  for t in (0, 127, 128, 9_999, 10_000, 15_999, 16_000):
    here = (segments[0, : t + 1] == segments[0, t]) & (segments[0, t] != 0)
    scores = np.asarray(k)[0, : t + 1, 0][here] @ np.asarray(q)[0, t].T / np.sqrt(h)
    weights = np.exp(scores - scores.max(0)) if here.any() else scores
    want = weights.T @ np.asarray(v)[0, : t + 1, 0][here] / np.maximum(weights.sum(0)[:, None], 1e-30)
    np.testing.assert_allclose(got[0, t], want, atol=1e-5)
  both = jax.jit(jax.grad(lambda *x: run(*x).sum(), argnums=(0, 1, 2))).lower(q, k, v).compile()
  arrays = re.findall(r"\w\[([\d,]+)\]", both.as_text())
  assert max(np.prod([int(n) for n in sizes.split(",")]) for sizes in arrays) < length**2 // 128
  assert both.memory_analysis().temp_size_in_bytes < length**2 // 8  # not even one bit per pair


def test_positions_restart_with_each_segment():
  got = attention.segment_positions(jnp.array([[1, 1, 1, 2, 2, 0, 0], [0, 0, 3, 3, 1, 1, 1]], jnp.int32))
  assert got.tolist() == [[0, 1, 2, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 2]]


def tree(draw, least, most):
  """Tokens of a random tree in depth-first order: the parent of each, from a token's own index on; -1 for roots."""
  parents, path = [], []
  for index in range(int(draw.integers(least, most))):
    # Nearly every token continues the one before it.
    path = path[: draw.integers(0, len(path) + 1)] if draw.random() < 0.15 else path
    parents.append(path[-1] if path else -1)
    path = [*path, index]
  return parents


def ends(parents, length):
  """`structs.Batch.until` of a row with these parents, from the definition."""
  until = np.zeros(length, np.int32)
  for index in range(len(parents)):
    at = index
    while at >= 0:  # the token and all its ancestors
      until[at], at = index + 1, parents[at]
  return until


@pytest.mark.parametrize("block", [T, 8, 5])
def test_tokens_of_a_tree_attend_to_their_paths(block):
  draw = np.random.default_rng(block)
  parents = [tree(draw, T // 2, T + 1) for _ in range(B)]
  until = jnp.asarray(np.stack([ends(row, T) for row in parents]))
  mask = np.zeros((B, T, T), bool)
  for row, found in enumerate(parents):
    for index, parent in enumerate(found):
      mask[row, index] = (mask[row, parent] if parent >= 0 else False) | (np.arange(T) == index)
  want = run(lambda q, k, v, _: plain(q, k, v, mask), SHAPE, SEGMENTS)
  for mesh in (None, mesh_lib.make(jax.devices()[:1])):
    got = lambda *x, mesh=mesh: attention.attend(*x, until, block=block, mesh=mesh)
    agree(got, want, SHAPE, np.asarray(until), 5e-6)
  # Exactly the blocks with a pair are read.
  size = 4
  pairs = mask[0].reshape(T // size, size, T // size, size).any(axis=(1, 3))
  count, which = attention._needed(kernels.Seen.of_tree(until[:1]), size)
  read = [sorted(w[:n]) for w, n in zip(which.tolist(), count.tolist())]
  assert read == [np.flatnonzero(row).tolist() for row in pairs]


@pytest.mark.parametrize("window, prefixes", [(1, SHARED), (7, PREFIXES), (100, PREFIXES), (10**6, PREFIXES)])
def test_windows_are_by_position(window, prefixes):
  """Rows of 300 tokens in three blocks; a continuation's window reaches into its prefix by position, not by place."""
  at, until = jnp.asarray(positions_of(SHARED, prefixes)), None if prefixes is SHARED else jnp.asarray(UNTIL)
  mine = lambda *x: attention.attend(*x, until, positions=at, window=jnp.int32(window))
  want = lambda q, k, v, segments: in_windows(q, k, v, SHARED, prefixes, window)
  agree(mine, want, (*SHARED.shape, 4, 2, 8), SHARED)


def test_blocks_before_every_window_are_skipped():
  # One segment in six blocks of 4, windows of 5: the first query of block i, at 4 i, attends from 4 i - 4 on.
  segments, at = jnp.ones((1, 24), jnp.int32), jnp.arange(24, dtype=jnp.int32)[None]
  seen = kernels.Seen.of(segments, causal=True)
  count, which = attention._needed(seen, 4, kernels.Windows.from_size(at, 5))
  assert [w[:n] for w, n in zip(which.tolist(), count.tolist())] == [[0]] + [[i, i + 1] for i in range(5)]


def test_a_window_needs_positions():
  with pytest.raises(ValueError, match="pass positions"):
    attention.attend(*arrays(SHAPE)[:3], jnp.asarray(SEGMENTS), window=3)
