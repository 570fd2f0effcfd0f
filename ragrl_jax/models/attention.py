"""Causal attention within segments, for training and scoring. The engine brings its own, over its cache."""

import jax
import jax.numpy as jnp


def segment_positions(segment_ids: jax.Array) -> jax.Array:
  """The place of each token in its own segment, from segment ids [B, T] whose segments are stretches of a row."""
  index = jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, 1)
  starts = jnp.concatenate(
    [jnp.ones_like(segment_ids[:, :1], bool), segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1)
  return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *, causal: bool = True) -> jax.Array:
  """Softmax attention to the earlier tokens of the same segment, itself included.

  Args:
    q: [B, T, H, h].
    k, v: [B, T, KV, h]; H / KV neighbouring query heads share one.
    segment_ids: int [B, T]; 0 is padding, which attends to nothing and is attended to by nobody.

  Returns:
    [B, T, H, h] in q's dtype; exact zeros at padding.
  """
  B, T, H, h = q.shape
  KV = k.shape[2]
  q = q.reshape(B, T, KV, H // KV, h)
  scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * (h**-0.5)
  index = jnp.arange(T)
  mask = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (segment_ids != 0)[:, :, None]
  if causal:
    mask = mask & (index[:, None] >= index[None, :])[None]
  mask = mask[:, None, None]
  scores = jnp.where(mask, scores, -1e30)
  weights = jnp.where(mask, jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True))), 0.0)
  weights = weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)
  out = jnp.einsum("bkgts,bskh->btkgh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
  return out.reshape(B, T, H, h).astype(q.dtype)
