"""Gated delta layers, as in Qwen3.5: every head has a state of fixed size instead of the keys and values of all tokens.

At each token a head's state S [dk, dv] fades, and then learns that the key k should give the value v:

    S ← exp(g) S,    S ← S + k ⊗ β (v - Sᵀ k),    out = Sᵀ q / √dk

with g ≤ 0, β in 0..1, and q and k of length 1. Before that, q, k and v are mixed with those of the last tokens by a
convolution over time. A text begins where positions are 0: nothing of the tokens before it remains.

Source: Gated DeltaNet (arXiv 2412.06464) sec. 3; its chunks (arXiv 2406.06484) sec. 3; transformers,
modeling_qwen3_5.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ragrl_jax.models import layers

CHUNK = 64  # tokens whose updates are computed together


class Memory(NamedTuple):
  """What a layer keeps of the tokens so far.

  Attributes:
    channels: [B, K - 1, C]; q, k and v of the last tokens, as the convolution takes them.
    state: float32 [B, H, dk, dv].
  """

  channels: jax.Array
  state: jax.Array

  @classmethod
  def shapes(cls, config, rows: int, dtype) -> "Memory":
    """The shapes and dtypes of `rows` memories of a layer; `dtype` is that of the matmuls."""
    c = config
    channels = jax.ShapeDtypeStruct((rows, c.delta_conv - 1, c.delta_channels), dtype)
    state = (rows, c.delta_value_heads, c.delta_key_dim, c.delta_value_dim)
    return cls(channels, jax.ShapeDtypeStruct(state, jnp.float32))


def mix(
  layer: layers.Layer, x: jax.Array, positions: jax.Array, memory: Memory | None = None, counts: jax.Array | None = None
) -> tuple[jax.Array, Memory]:
  """What a delta layer's mixer adds to the residual stream [B, T, D], and the memory after the row.

  Args:
    x: [B, T, D].
    positions: int [B, T]; position of each token in its text.
    memory: of the tokens before the row; None: there are none.
    counts: int [B]; only the row's first `counts` tokens change its memory. None: all.
  """
  c, (B, T, _) = layer.config, x.shape
  x = layer.norm(x, "attention_norm")
  channels, gate, b, a = (layer.project(x, name) for name in ("qkv", "z", "b", "a"))
  if memory is None:
    memory = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), Memory.shapes(c, B, channels.dtype))
  beta = jax.nn.sigmoid(b.astype(jnp.float32))
  step = jax.nn.softplus(a.astype(jnp.float32) + layer.step_bias[...].astype(jnp.float32)[None, None])
  fade = -jnp.exp(layer.log_decay[...].astype(jnp.float32))[None, None] * step
  if counts is not None:  # other tokens neither fade the state nor write to it
    real = (jnp.arange(T, dtype=jnp.int32)[None] < counts[:, None])[..., None]
    beta, fade = jnp.where(real, beta, 0.0), jnp.where(real, fade, 0.0)
  joined = jnp.concatenate((memory.channels.astype(channels.dtype), channels), axis=1)
  mixed = _convolve(joined, layer.conv[...], positions).astype(x.dtype)
  widths = c.delta_key_heads * c.delta_key_dim, c.delta_value_heads * c.delta_value_dim
  q, k, v = jnp.split(mixed.astype(jnp.float32), (widths[0], 2 * widths[0]), axis=-1)
  q, k = (_unit(y.reshape(B, T, c.delta_key_heads, -1)) for y in (q, k))
  q, k = (jnp.repeat(y, c.delta_value_heads // c.delta_key_heads, axis=2) for y in (q * c.delta_key_dim**-0.5, k))
  rule = one if T == 1 else chunked
  out, state = rule(q, k, v.reshape(B, T, c.delta_value_heads, -1), fade, beta, positions == 0, memory.state)
  out = layers.rms_norm(out.astype(x.dtype), layer.delta_norm[...], c.norm_eps)
  out = layers.gated(gate.reshape(out.shape), out, c.traits.activation).reshape(B, T, -1)
  at = (jnp.full(B, T, jnp.int32) if counts is None else counts)[:, None] + jnp.arange(c.delta_conv - 1)[None]
  last = jnp.take_along_axis(joined, at[..., None], axis=1)
  return layer.project(out, "out"), Memory(last.astype(memory.channels.dtype), state)


def _convolve(joined, weight, positions):
  """SiLU of each channel's weighted sum over the last K tokens of its text, float32 [B, T, C].

  Args:
    joined: [B, K - 1 + T, C], with the K - 1 tokens before the row.
    weight: [K, 1, C]; the last entry is that of the token itself.
  """
  T, K = positions.shape[1], len(weight)
  total = jnp.zeros((len(joined), T, joined.shape[2]), jnp.float32)
  for back in range(K):
    tap = weight[K - 1 - back][None].astype(jnp.float32) * joined[:, K - 1 - back :][:, :T].astype(jnp.float32)
    total += jnp.where((positions >= back)[..., None], tap, 0.0)
  return jax.nn.silu(total)


def _unit(x):
  """Vectors of length 1."""
  return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def one(q, k, v, fade, beta, starts, state):
  """`chunked` for rows of one token, as in decoding."""
  q, k, v, fade, beta = (y[:, 0] for y in (q, k, v, fade, beta))
  state = jnp.where(starts[:, 0, None, None, None], 0.0, state * jnp.exp(fade)[..., None, None])
  new = (v - jnp.sum(state * k[..., None], axis=2)) * beta[..., None]
  state += k[..., None] * new[:, :, None]
  return jnp.sum(state * q[..., None], axis=2)[:, None], state


def chunked(q, k, v, fade, beta, starts, state):
  """The delta rule over rows, in chunks: within a chunk by matmuls, from chunk to chunk by the state. All float32.

  A chunk's new values u solve a triangular system, since each one corrects what the earlier ones wrote:
  u_i + β_i Σ_{j<i} exp(g_j+1 + … + g_i) (k_i · k_j) u_j = β_i (v_i - exp(g_1 + … + g_i) Sᵀ k_i).

  Args:
    q, k: [B, T, H, dk]. v: [B, T, H, dv].
    fade: g, [B, T, H]. beta: [B, T, H].
    starts: bool [B, T]; where a text begins.
    state: [B, H, dk, dv], before the row.

  Returns:
    (out [B, T, H, dv], the state after the row).
  """
  B, T, H, _ = q.shape
  size = min(CHUNK, T)

  def cut(x):  # [B, T, H, …] → [chunks, B, H, size, …]
    x = jnp.pad(x, ((0, 0), (0, -T % size), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(B, -1, size, *x.shape[2:]), (1, 3), (0, 2))

  q, k, v, fade, beta = (cut(x) for x in (q, k, v, fade, beta))
  text = jnp.cumsum(cut(starts[..., None]), axis=-1, dtype=jnp.int32)  # [chunks, B, 1, size]: 0 continues the last one
  lower = jnp.tril(jnp.ones((size, size), bool))
  # Entry i, j is the sum over j + 1 … i. A difference of two sums from the chunk's start would lose digits.
  since = jnp.cumsum(jnp.where((lower & ~jnp.eye(size, dtype=bool))[None, None, None], fade[..., None], 0.0), axis=-2)
  ratio = jnp.where(lower[None, None, None] & (text[..., :, None] == text[..., None, :]), jnp.exp(since), 0.0)
  of_state = jnp.where(text == 0, jnp.exp(jnp.cumsum(fade, axis=-1)), 0.0)[..., None]
  dot = lambda x, y: jnp.einsum("...id,...jd->...ij", x, y)
  system = dot(k * beta[..., None], k) * ratio
  wanted = jnp.concatenate((v, k * of_state), axis=-1) * beta[..., None]
  # Unit diagonal: the system's own diagonal is not read.
  solved = jax.lax.linalg.triangular_solve(system, wanted, left_side=True, lower=True, unit_diagonal=True)
  new, reads = jnp.split(solved, (v.shape[-1],), axis=-1)
  scores, asks, writes = dot(q, k) * ratio, q * of_state, k * ratio[..., -1, :, None]

  def over(state, chunk):
    new, reads, scores, asks, writes, keep = chunk
    new = new - reads @ state
    return state * keep[..., None] + writes.swapaxes(-1, -2) @ new, asks @ state + scores @ new

  state, out = jax.lax.scan(over, state, (new, reads, scores, asks, writes, of_state[..., -1, :]))
  out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(B, -1, H, v.shape[-1])
  return out[:, :T], state
