"""Gated delta layers, as in Qwen3.5: every head has a state of fixed size instead of the keys and values of all tokens.

At each token a head's state S [dk, dv] fades, and then learns that the key k should give the value v:

    S ← exp(g) S,    S ← S + k ⊗ β (v - Sᵀ k),    out = Sᵀ q / √dk

with g ≤ 0, β in 0..1, and q and k of length 1. Before that, q, k and v are mixed with those of the last tokens by a
convolution over time. A text begins where positions are 0: nothing of the tokens before it remains. In a row whose
texts share their beginning, each rest goes on from the state at its end (`Branches`).

Source: Gated DeltaNet (arXiv 2412.06464) sec. 3; its chunks (arXiv 2406.06484) sec. 3; transformers,
modeling_qwen3_5.py.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import layers, recurrence

CHUNK = 64  # tokens whose updates are computed together


class Memory(NamedTuple):
  """What a layer keeps of the tokens so far.

  Attributes:
    channels: [B, K - 1, C]; q, k and v of the last tokens, as the convolution takes them.
    state: float32 [B, dk, H, dv].
  """

  channels: jax.Array
  state: jax.Array

  @classmethod
  def shapes(cls, config, rows: int, dtype) -> "Memory":
    """The shapes and dtypes of `rows` memories of a layer; `dtype` is that of the matmuls."""
    c = config
    channels = jax.ShapeDtypeStruct((rows, c.delta_conv - 1, c.delta_channels), dtype)
    state = (rows, c.delta_key_dim, c.delta_value_heads, c.delta_value_dim)
    return cls(channels, jax.ShapeDtypeStruct(state, jnp.float32))


class Held(NamedTuple):
  """What a memory would take in from T tokens, of which it is not yet known how many stay: a draft's.

  Attributes:
    joined: [B, K - 1 + T, C]; the memory's channels and the tokens'.
    k, v, fade, beta: as for `chunked`.
  """

  joined: jax.Array
  k: jax.Array
  v: jax.Array
  fade: jax.Array
  beta: jax.Array

  def after(self, memory: Memory, positions: jax.Array, counts: jax.Array) -> Memory:
    """The memory after the first `counts` [B] of the tokens at `positions` [B, T], as if they had come one by one."""
    state = memory.state
    for t in range(positions.shape[1]):
      k, v, fade, beta, position = (x[:, t : t + 1] for x in (*self[1:], positions))
      stays = (t < counts)[:, None, None, None]
      state = jnp.where(stays, one(k, k, v, fade, beta, position == 0, state)[1], state)
    return Memory(_last(self.joined, memory.channels, counts), state)


class Branches(NamedTuple):
  """Where texts part in rows of families: one shared beginning with the rest of a text, then the rests of the others.

      a b c d e, a b c f g    tokens a b c d e f g    start 0 0 0 0 0 0 0    branch 0 0 0 0 0 5 5    first 0 0 0 0 0 3 3

  Attributes:
    start: int32 [B, T]; index of the first token of the token's family.
    branch: int32 [B, T]; index of the first token of its stretch, which begins a family or a rest.
    first: int32 [B, T]; that token's position in its text.
    ends: bool [B, T]; whether a rest goes on from this token.
  """

  start: jax.Array
  branch: jax.Array
  first: jax.Array
  ends: jax.Array

  @classmethod
  def of(cls, positions: jax.Array) -> "Branches":
    """Those of rows with these positions, int [B, T]: a rest begins where positions jump."""
    B, T = positions.shape
    index = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None], (B, T))
    latest = lambda on: jax.lax.cummax(jnp.where(on, index, 0), axis=1)
    rests = (positions > 0) & (positions != jnp.roll(positions, 1, axis=1) + 1)
    start, branch = latest(positions == 0), latest((positions == 0) | rests)
    first = jnp.take_along_axis(positions, branch, axis=1)
    before = jnp.where(rests, start + first - 1, T)
    ends = jnp.zeros((B, T), bool).at[jnp.arange(B)[:, None], before].set(True, mode="drop")
    return cls(start, branch, first, ends)


def mix(
  layer: layers.Layer,
  x: jax.Array,
  positions: jax.Array,
  memory: Memory | None = None,
  counts: jax.Array | None = None,
  branches: Branches | None = None,
  hold: bool = False,
) -> tuple[jax.Array, Memory | Held]:
  """What a delta layer's mixer adds to the residual stream [B, T, D], and the memory after the row.

  Args:
    x: [B, T, D].
    positions: int [B, T]; position of each token in its text.
    memory: of the tokens before the row; None: there are none.
    counts: int [B]; only the row's first `counts` tokens change its memory. None: all.
    branches: of rows whose texts share beginnings; no memory then, before or after.
    hold: return what the memory would take in, instead of the memory after the row.
  """
  c, (B, T, _) = layer.config, x.shape
  x = layer.norm(x, "attention_norm")
  channels, gate = (layer.project(x, name) for name in ("qkv", "z"))
  # XLA for GPUs would join the narrow matrices to the others, and so copy all of them for every token.
  b, a = (layer.project(jax.lax.optimization_barrier(x) if T == 1 else x, name) for name in ("b", "a"))
  if memory is None:
    memory = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), Memory.shapes(c, B, channels.dtype))
  beta = jax.nn.sigmoid(b.astype(jnp.float32))
  step = jax.nn.softplus(a.astype(jnp.float32) + layer.step_bias[...].astype(jnp.float32)[None, None])
  fade = -jnp.exp(layer.log_decay[...].astype(jnp.float32))[None, None] * step
  if counts is not None:  # other tokens neither fade the state nor write to it
    real = (jnp.arange(T, dtype=jnp.int32)[None] < counts[:, None])[..., None]
    beta, fade = jnp.where(real, beta, 0.0), jnp.where(real, fade, 0.0)
  joined = jnp.concatenate((memory.channels.astype(channels.dtype), channels), axis=1)
  q, k, v = _heads(c, x.dtype, joined, layer.conv[...], positions, branches)
  rule = one if T == 1 else functools.partial(chunked, positions=positions, branches=branches)
  out, state = rule(q, k, v, fade, beta, positions == 0, memory.state)
  out = layers.rms_norm(out.astype(x.dtype), layer.delta_norm[...], c.norm_eps)
  out = layers.gated(gate.reshape(out.shape), out, c.traits.activation).reshape(B, T, -1)
  out = layer.project(out, "out")
  if hold:
    return out, Held(joined, k, v, fade, beta)
  return out, Memory(_last(joined, memory.channels, jnp.full(B, T, jnp.int32) if counts is None else counts), state)


def _last(joined, channels, counts):
  """The K - 1 tokens of `joined` up to the `counts`-th one of the row, in the form of `channels` [B, K - 1, C]."""
  at = counts[:, None] + jnp.arange(channels.shape[1])[None]
  return jnp.take_along_axis(joined, at[..., None], axis=1).astype(channels.dtype)


# The backward pass computes it again. It would otherwise store each tap's product, and lengths and norms.
@functools.partial(jax.checkpoint, static_argnums=(0, 1))
def _heads(config, dtype, joined, weight, positions, branches):
  """q and k [B, T, H, dk] of each head, scaled, and v [B, T, H, dv], float32, from what `_convolve` takes."""
  c, (B, T) = config, positions.shape
  mixed = _convolve(joined, weight, positions, branches).astype(dtype)
  heads = mixed.astype(jnp.float32).reshape(B, T, c.delta_key_heads, -1)  # see `families.rows`
  q, k, v = jnp.split(heads, (c.delta_key_dim, 2 * c.delta_key_dim), axis=-1)
  each = lambda y: jnp.repeat(_unit(y), c.delta_value_heads // c.delta_key_heads, axis=2)
  return each(q) * c.delta_key_dim**-0.5, each(k), v.reshape(B, T, c.delta_value_heads, -1)


def _convolve(joined, weight, positions, branches):
  """SiLU of each channel's weighted sum over the last K tokens of its text, float32 [B, T, C].

  joined [B, K - 1 + T, C] has the K - 1 tokens before the row, and the last of weight [K, 1, C] is the token's own.
  """
  T, K = positions.shape[1], len(weight)
  total = 0.0
  for back in range(K):
    earlier = joined[:, K - 1 - back :][:, :T]
    if branches is not None and back:  # before a rest's first token is the shared beginning's last one
      shared = jnp.maximum(branches.start + positions - back, 0)[..., None]
      here = jnp.arange(T, dtype=jnp.int32)[None] - back >= branches.branch
      earlier = jnp.where(here[..., None], earlier, jnp.take_along_axis(joined[:, K - 1 :], shared, axis=1))
    taps = jnp.where((positions >= back)[..., None], weight[K - 1 - back][None].astype(jnp.float32), 0.0)
    total += taps * earlier.astype(jnp.float32)
  return jax.nn.silu(total)


def _unit(x):
  """Vectors of length 1."""
  return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


@jax.custom_vjp
def _inverse(below):
  """The inverse of 1 + below [..., n, n]; only entries below the diagonal are read.

  Its gradient by hand is two matmuls; JAX's would solve two more systems.
  """
  unit = jnp.broadcast_to(jnp.eye(below.shape[-1], dtype=below.dtype), below.shape)
  return jax.lax.linalg.triangular_solve(below, unit, left_side=True, lower=True, unit_diagonal=True)


def _inverse_backward(inverse, gradient):
  turned = inverse.swapaxes(-1, -2)
  return (-jnp.tril(turned @ gradient @ turned, -1),)


_inverse.defvjp(lambda below: (_inverse(below),) * 2, _inverse_backward)


def one(q, k, v, fade, beta, starts, state):
  """`chunked` for rows of one token, as in decoding."""
  state = jnp.where(starts[..., None, None], 0.0, state * jnp.exp(fade)[..., None])
  # Both sums before the update and in one reduction, so that they read the state once. [B, 1, H, dk] → [B, dk, H, 1].
  of_q, of_k = (state * x.swapaxes(1, 3) for x in (q, k))
  add = lambda one, other: (one[0] + other[0], one[1] + other[1])
  of_q, of_k = (x[:, None] for x in jax.lax.reduce((of_q, of_k), (np.float32(0), np.float32(0)), add, (1,)))
  new = (v - of_k) * beta[..., None]
  return of_q + jnp.sum(q * k, axis=-1, keepdims=True) * new, state + k.swapaxes(1, 3) * new


def chunked(q, k, v, fade, beta, starts, state, *, positions=None, branches=None):
  """The delta rule over rows, in chunks: within a chunk by matmuls, from chunk to chunk by the state. All float32.

  A chunk's new values u solve a triangular system, since each one corrects what the earlier ones wrote:
  u_i + β_i Σ_{j<i} exp(g_j+1 + … + g_i) (k_i · k_j) u_j = β_i (v_i - exp(g_1 + … + g_i) Sᵀ k_i).
  With branches, j and the sums are over the tokens of i's own text, and S is a second state beside that of the last
  token, that of the end of the family's shared beginning, where i's rest goes on from it.

  Args:
    q, k: [B, T, H, dk]. v: [B, T, H, dv].
    fade: g, [B, T, H]. beta: [B, T, H].
    starts: bool [B, T]; where a text begins.
    state: [B, dk, H, dv], before the row.
    positions, branches: as in `mix`.

  Returns:
    (out [B, T, H, dv], the state after the row).
  """
  B, T, H, dk = q.shape
  size, state = min(CHUNK, T), state.swapaxes(1, 2)

  def cut(x):  # [B, T, H, …] → [chunks, B, H, size, …]
    x = jnp.pad(x, ((0, 0), (0, -T % size), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(B, -1, size, *x.shape[2:]), (1, 3), (0, 2))

  q, k, v, fade, beta = (cut(x) for x in (q, k, v, fade, beta))
  lower = jnp.tril(jnp.ones((size, size), bool))[None, None, None]
  after = lower & ~jnp.eye(size, dtype=bool)[None, None, None]
  # Entry i, j of `since` is the sum over j + 1 … i. A difference of sums from the chunk's start would lose digits.
  if branches is None:
    text = jnp.cumsum(cut(starts[..., None]), axis=-1, dtype=jnp.int32)  # [chunks, B, 1, size]; 0 goes on
    earlier = lower & (text[..., :, None] == text[..., None, :])
    reaches = [text == 0]
  else:
    position, start, branch, first, ends = (cut(x[..., None]) for x in (positions, *branches))
    begin = size * jnp.arange(len(q), dtype=jnp.int32)[:, None, None, None]
    i, j = lambda x: x[..., :, None], lambda x: x[..., None, :]
    shared = (j(branch) == j(start)) & (j(position) < i(first))
    earlier = lower & (i(start) == j(start)) & ((i(branch) == j(branch)) | shared)
    follows = (branch < begin) | (start + first > begin)  # the token before the chunk, and not the end of the beginning
    reaches = [(start < begin) & follows, (start < begin) & ~follows]
  own = jnp.where(earlier, fade[..., None, :], 0.0)
  # "highest": GPUs would round the summands.
  since, sums = jnp.matmul(own, after.astype(own.dtype), precision="highest"), own.sum(axis=-1)
  ratio = jnp.where(earlier, jnp.exp(since), 0.0)
  of_state = jnp.where(jnp.stack(reaches, axis=-1), jnp.exp(sums)[..., None], 0.0)  # [chunks, B, H, size, states]
  dot = lambda x, y: jnp.einsum("...id,...jd->...ij", x, y)
  beside = lambda make: jnp.concatenate([make(of_state[..., n]) for n in range(len(reaches))], axis=-1)
  inverse = _inverse(dot(k, k) * ratio * beta[..., None])
  wanted = (inverse * beta[..., None, :]) @ v
  reads = beside(lambda of: (inverse * (beta * of)[..., None, :]) @ k)
  scores, asks = dot(q, k) * ratio, beside(lambda of: q * of[..., None])
  last, keep = ratio[..., -1:, :], of_state[..., -1:, :]
  if branches is not None:  # the states after the chunk: of its last token, and of its last end of a beginning, if any
    state = jnp.concatenate((state, jnp.zeros_like(state)), axis=2)
    at = jnp.broadcast_to(jnp.where(ends, jnp.arange(size), -1).max(axis=-1)[..., None, None], (*last.shape[:-1], 1))
    row = lambda x: jnp.take_along_axis(x, jnp.maximum(at, 0), axis=-2)
    last = jnp.concatenate((last, jnp.where(at < 0, 0.0, row(ratio))), axis=-2)
    keep = jnp.concatenate((keep, jnp.where(at < 0, jnp.array([0.0, 1.0]), row(of_state))), axis=-2)
  writes = jnp.concatenate([k * last[..., n, :, None] for n in range(len(reaches))], axis=-1)

  # Since new = wanted - reads @ state, the next state is what is kept + writesᵀ wanted - (writesᵀ reads) @ state.
  # So from chunk to chunk there is one matmul; all others are of all chunks at once.
  writes = writes.swapaxes(-1, -2)

  chunks = recurrence.Step(keep, writes @ reads, writes @ wanted)
  states, state = recurrence.states(chunks, state)
  new = wanted - reads @ states
  out = asks @ states + scores @ new
  out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(B, -1, H, v.shape[-1])
  return out[:, :T], state.swapaxes(1, 2)
