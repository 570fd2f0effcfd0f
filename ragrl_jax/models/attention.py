"""Attention within segments, for training, scoring and encoders. The engine brings its own, over its cache.

Scores exist for one pair of blocks at a time and are computed again in the backward pass from the saved log-sum-exp,
so that memory grows with T and not with T². Source: FlashAttention-2 (arXiv 2307.08691), sec. 3.1, here in plain JAX.
"""

import functools

import jax
import jax.numpy as jnp

BLOCK = 128  # tokens whose scores exist at once; measured on CPU against 64, 256 and 512 for rows of 128 to 2048
MASKED = -1e30  # finite, so that a row with nothing to attend to gives zeros and no NaN


def segment_positions(segment_ids: jax.Array) -> jax.Array:
  """The place of each token in its own segment, from segment ids [B, T] whose segments are stretches of a row."""
  index = jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, 1)
  starts = jnp.concatenate(
    [jnp.ones_like(segment_ids[:, :1], bool), segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1)
  return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)


def attend(
  q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *, causal: bool = True, block: int = BLOCK,
) -> jax.Array:
  """Softmax attention to the tokens of the same segment: the earlier ones and itself, or all of them.

  Args:
    q: [B, T, H, h].
    k, v: [B, T, KV, h]; H / KV neighbouring query heads share one.
    segment_ids: int [B, T]; 0 is padding, which attends to nothing and is attended to by nobody.
    causal: whether later tokens are hidden.
    block: tokens whose scores exist at once, as queries and as keys.

  Returns:
    [B, T, H, h] in q's dtype; exact zeros at padding.
  """
  B, T, H, h = q.shape
  KV = k.shape[2]
  block = min(block, T)
  # Each head's tokens become rows of one matrix, the heads that share keys beside each other: [B, KV, T, G, h].
  q = q.reshape(B, T, KV, H // KV, h).transpose(0, 2, 1, 3, 4)
  k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
  if rest := -T % block:
    q = jnp.pad(q, ((0, 0), (0, 0), (0, rest), (0, 0), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, rest), (0, 0))) for x in (k, v))
    segment_ids = jnp.pad(segment_ids, ((0, 0), (0, rest)))
  out = _attend(q, k, v, segment_ids, causal, block)
  return out[:, :, :T].transpose(0, 2, 1, 3, 4).reshape(B, T, H, h)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q, k, v, segment_ids, causal, block):
  return _forward(q, k, v, segment_ids, causal, block)[0]


def _attend_forward(q, k, v, segment_ids, causal, block):
  out, sums = _forward(q, k, v, segment_ids, causal, block)
  return out, (q, k, v, segment_ids, out, sums)


def _attend_backward(causal, block, saved, gradient):
  return *_backward(*saved, gradient, causal, block), None


_attend.defvjp(_attend_forward, _attend_backward)


def _dot(a, b, contract_a: int, contract_b: int):
  """Batched over the first two axes, in the inputs' dtype, summed in float32."""
  return jax.lax.dot_general(
    a, b, (((contract_a,), (contract_b,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)


def _scores(q, k, queries, keys, seen):
  """Scores [B, KV, t, G, s] of one pair of blocks, and their mask. `seen` is bool [t, s], or None for everything."""
  B, KV, t, G, h = q.shape
  scores = _dot(q.reshape(B, KV, t * G, h), k, 3, 3).reshape(B, KV, t, G, -1) * (h**-0.5)
  mask = (queries[:, :, None] == keys[:, None, :]) & (queries != 0)[:, :, None]
  if seen is not None:
    mask = mask & seen[None]
  mask = mask[:, None, :, None, :]
  return jnp.where(mask, scores, MASKED), mask


def _seen(i, j, causal: bool, block: int):
  if not causal:
    return None
  index = jnp.arange(block)
  return (i * block + index)[:, None] >= (j * block + index)[None, :]


def _cut(x, i, block: int, axis: int):
  return jax.lax.dynamic_slice_in_dim(x, i * block, block, axis)


def _bounds(segment_ids, causal: bool, block: int):
  """For every block of queries the first and one past the last block of keys that may matter, int [n] each.

  A pair of blocks matters if, in some row, their ranges of segment ids touch: exact for packed rows, whose ids ascend,
  and never too narrow for any others.
  """
  n = segment_ids.shape[1] // block
  ids = segment_ids.reshape(-1, n, block)
  low = jnp.where(ids == 0, jnp.iinfo(ids.dtype).max, ids).min(axis=2)
  high = ids.max(axis=2)
  touch = ((low[:, :, None] <= high[:, None, :]) & (high[:, :, None] >= low[:, None, :])).any(axis=0)
  if causal:
    touch = touch & (jnp.arange(n)[:, None] >= jnp.arange(n)[None, :])
  first = jnp.where(touch.any(axis=1), touch.argmax(axis=1), n)
  last = jnp.where(touch.any(axis=1), n - touch[:, ::-1].argmax(axis=1), 0)
  return first, last


def _forward(q, k, v, segment_ids, causal: bool, block: int):
  """(out like q, log-sum-exp of the scores [B, KV, T, G])."""
  B, KV, T, G, h = q.shape

  def rows(i, first, last):
    queries, ids = _cut(q, i, block, 2), _cut(segment_ids, i, block, 1)

    def pair(j, state):
      top, total, out = state
      scores, mask = _scores(queries, _cut(k, j, block, 2), ids, _cut(segment_ids, j, block, 1),
                             _seen(i, j, causal, block))
      new = jnp.maximum(top, scores.max(axis=-1))
      weights = jnp.where(mask, jnp.exp(scores - new[..., None]), 0.0)
      shrink = jnp.exp(top - new)
      values = _dot(weights.astype(v.dtype).reshape(B, KV, block * G, block), _cut(v, j, block, 2), 3, 2)
      return (new, total * shrink + weights.sum(axis=-1),
              out * shrink[..., None] + values.reshape(B, KV, block, G, h))

    shape = (B, KV, block, G)
    state = jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, h), jnp.float32)
    top, total, out = pair(0, state) if T == block else jax.lax.fori_loop(first, last, pair, state)
    total = jnp.maximum(total, 1e-30)
    return (out / total[..., None]).astype(q.dtype), top + jnp.log(total)

  if T == block:
    return rows(0, 0, 1)
  out, sums = jax.lax.map(lambda x: rows(*x), (jnp.arange(T // block), *_bounds(segment_ids, causal, block)))
  return jnp.moveaxis(out, 0, 2).reshape(q.shape), jnp.moveaxis(sums, 0, 2).reshape(B, KV, T, G)


def _backward(q, k, v, segment_ids, out, sums, gradient, causal: bool, block: int):
  """Gradients of q, k and v."""
  B, KV, T, G, h = q.shape
  # Per query: the part of every score's gradient that comes from the softmax's divisor.
  shared = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), axis=-1)
  flat = lambda x: x.reshape(B, KV, block * G, -1)

  def rows(carry, inputs):
    i, first, last = inputs
    queries, ids, g = _cut(q, i, block, 2), _cut(segment_ids, i, block, 1), flat(_cut(gradient, i, block, 2))
    top, common = _cut(sums, i, block, 2)[..., None], _cut(shared, i, block, 2)[..., None]

    def pair(j, state):
      dq, dk, dv = state
      keys, values = _cut(k, j, block, 2), _cut(v, j, block, 2)
      scores, mask = _scores(queries, keys, ids, _cut(segment_ids, j, block, 1), _seen(i, j, causal, block))
      weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
      ds = weights * (_dot(g, values, 3, 3).reshape(weights.shape) - common) * (h**-0.5)
      ds, weights = flat(ds).astype(q.dtype), flat(weights).astype(q.dtype)
      add = lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, _cut(x, j, block, 2) + y, j * block, 2)
      dq = dq + _dot(ds, keys, 3, 2)
      return dq, add(dk, _dot(ds, flat(queries), 2, 2)), add(dv, _dot(weights, g, 2, 2))

    state = jnp.zeros((B, KV, block * G, h), jnp.float32), *carry
    dq, *carry = pair(0, state) if T == block else jax.lax.fori_loop(first, last, pair, state)
    return tuple(carry), dq.reshape(B, KV, block, G, h).astype(q.dtype)

  zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
  if T == block:
    (dk, dv), dq = rows(zeros, (0, 0, 1))
  else:
    (dk, dv), dq = jax.lax.scan(rows, zeros, (jnp.arange(T // block), *_bounds(segment_ids, causal, block)))
    dq = jnp.moveaxis(dq, 0, 2).reshape(q.shape)
  return dq, dk.astype(k.dtype), dv.astype(v.dtype)
