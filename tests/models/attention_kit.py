"""What the tests of attention kernels share: inputs, and what comes out of a call and of its gradient."""

import jax
import jax.numpy as jnp
import numpy as np


def arrays(shape, dtype=jnp.float32):
  """q, k, v and the output's weight for (B, T, H, KV, h)."""
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


# Row 0: 2 and 3 continue 1, 4 stands alone, then padding. Row 1: padding, and ids that fall; nothing is shared.
SHARED = np.array([[1] * 90 + [2] * 60 + [3] * 80 + [4] * 40 + [0] * 30, [0] * 20 + [2] * 140 + [1] * 140], np.int32)
PREFIXES = np.where([[True], [False]], np.where(SHARED == 4, 4, np.minimum(SHARED, 1)), SHARED).astype(np.int32)


def agree(attend, reference, shape, segments, prefixes=None):
  """Checks that `attend` computes what `reference` does, to 1e-5, and zeros at padding; forward and backward."""
  given = () if prefixes is None else (jnp.asarray(prefixes),)
  want, got = (run(lambda *x, f=f: f(*x, *given), shape, segments) for f in (reference, attend))
  for one, two in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(one, two, atol=1e-5)
    np.testing.assert_array_equal(two[segments == 0], 0.0)


def visible(segments, prefixes, block_q, block_k):
  """Which pairs of blocks hold a token and one that it attends to, for a row of ids, by the definition."""
  T = len(segments)
  own, other = (x[:, None] == segments[None] for x in (segments, prefixes))
  mask = (own | other) & (segments != 0)[:, None] & np.tril(np.ones((T, T), bool))
  return mask.reshape(T // block_q, block_q, T // block_k, block_k).any(axis=(1, 3))
