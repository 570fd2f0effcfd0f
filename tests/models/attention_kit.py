"""Shared by the tests of attention kernels: inputs, and the outputs and gradients of a call."""

import jax
import jax.numpy as jnp
import numpy as np


def arrays(shape, dtype=jnp.float32):
  """q, k, v and a weight for the output, of sizes (B, T, H, KV, h)."""
  B, T, H, KV, h = shape
  draw = np.random.default_rng(0)
  return [jnp.asarray(draw.normal(size=(B, T, heads, h)), dtype) for heads in (H, KV, KV, H)]


def run(attend, shape, segments, dtype=jnp.float32):
  """(output, gradients of q, k, v)."""
  *inputs, weight = arrays(shape, dtype)

  @jax.jit
  def f(*inputs):
    out, back = jax.vjp(lambda q, k, v: attend(q, k, v, jnp.asarray(segments)), *inputs)
    return out, back(weight)

  return jax.device_get(f(*inputs))


# Row 0: segments 2 and 3 continue 1, 4 is alone, then padding. Row 1: padding, and falling ids; nothing is shared.
SHARED = np.array([[1] * 90 + [2] * 60 + [3] * 80 + [4] * 40 + [0] * 30, [0] * 20 + [2] * 140 + [1] * 140], np.int32)
PREFIXES = np.where([[True], [False]], np.where(SHARED == 4, 4, np.minimum(SHARED, 1)), SHARED).astype(np.int32)
# The same rows as trees.
UNTIL = np.array([[230] * 90 + [150] * 60 + [230] * 80 + [270] * 40 + [0] * 30, [0] * 20 + [160] * 140 + [300] * 140])
UNTIL = UNTIL.astype(np.int32)


def agree(attend, reference, shape, segments, atol=1e-5):
  """Checks that `attend` equals `reference`, or is what it computed, and is zero at padding, forward and backward."""
  want, got = (run(f, shape, segments) if callable(f) else f for f in (reference, attend))
  for one, two in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(one, two, atol=atol)
    np.testing.assert_array_equal(two[segments == 0], 0.0)


def visible(segments, prefixes, block_q, block_k):
  """Pairs of blocks in which a token attends to another, for a row of ids, from the definition."""
  T = len(segments)
  own, other = (x[:, None] == segments[None] for x in (segments, prefixes))
  mask = (own | other) & (segments != 0)[:, None] & np.tril(np.ones((T, T), bool))
  return mask.reshape(T // block_q, block_q, T // block_k, block_k).any(axis=(1, 3))


def positions(segments, prefixes):
  """Positions of the tokens of these segments, which continue after their prefixes."""
  found = np.zeros_like(segments)
  for row, ids in enumerate(segments):
    for segment in set(ids) - {0}:
      here = np.flatnonzero(ids == segment)
      prefix = prefixes[row, here[0]]
      found[row, here] = np.arange(len(here)) + (0 if prefix == segment else (ids == prefix).sum())
  return found


def in_windows(q, k, v, segments, prefixes, window):
  """Causal attention to the nearest `window` tokens by position."""
  T, at = q.shape[1], positions(segments, prefixes)
  same = (segments[:, :, None] == segments[:, None]) | (prefixes[:, :, None] == segments[:, None])
  near = at[:, None, :] > at[:, :, None] - window
  return plain(q, k, v, same & near & (segments != 0)[:, :, None] & np.tril(np.ones((T, T), bool))[None])


def plain(q, k, v, mask):
  """Attention to the keys of mask [B, T, T], in one piece, which JAX can differentiate; zeros where there is none."""
  k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
  scores = jnp.where(mask[:, None], jnp.einsum("bthd,bshd->bhts", q, k) / np.float32(q.shape[3] ** 0.5), -1e9)
  return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1) * mask[:, None].astype(np.float32), v)
