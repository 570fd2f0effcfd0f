"""What the tests of attention kernels share: inputs, and what comes out of a call and of its gradient."""

import jax
import jax.numpy as jnp
import numpy as np


def arrays(shape, dtype=jnp.float32):
  """q, k, v and the output's weight for (B, T, H, KV, h)."""
  B, T, H, KV, h = shape
  draw = np.random.default_rng(0)
  return [jnp.asarray(draw.normal(size=(B, T, heads, h)), dtype) for heads in (H, KV, KV, H)]


def run(attend, shape, segments):
  """(output, gradients of q, k, v)."""
  *inputs, weight = arrays(shape)

  @jax.jit
  def f(*inputs):
    out, back = jax.vjp(lambda q, k, v: attend(q, k, v, jnp.asarray(segments)), *inputs)
    return out, back(weight)

  return jax.device_get(f(*inputs))
