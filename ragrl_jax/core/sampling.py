"""Drawing tokens: one uniform number a token, by inverse CDF, and its log-probability as the learner scores it."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt32


def uniforms(keys: UInt32[Array, "B 2"], positions: Int32[Array, "B"]) -> Float32[Array, "B"]:
  """One number in [0, 1) for each (key, position): what the token at that place of its conversation is drawn with.

  Args:
    keys: one key a conversation; equal keys give equal numbers at equal positions.
    positions: the place of the token in its conversation, from 0.
  """
  draw = lambda key, position: jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(key), position))
  return jax.vmap(draw)(keys, positions)


def draw(
  logits: Float32[Array, "B V"],
  uniform: Float32[Array, "B"],
  temperature: Float32[Array, "B"],
  top_k: Int32[Array, "B"],
  top_p: Float32[Array, "B"],
) -> tuple[Int32[Array, "B"], Float32[Array, "B"]]:
  """Draws one token a row: the first id whose cumulative probability exceeds the row's uniform number.

  Args:
    logits: the model's.
    uniform: in [0, 1).
    temperature: divides the logits; 0 takes the likeliest token (the lowest id of equals).
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: of those, keep the smallest set of likeliest tokens with this mass; 1 keeps all.

  Returns:
    (tokens, logprobs). Log-probabilities are those of the temperature-scaled, unfiltered distribution (temperature 1
    for greedy rows): what the learner scores. A row's result depends on that row alone.
  """
  greedy = temperature <= 0
  scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
  peak = scaled.max(axis=1)
  weights = jnp.exp(scaled - peak[:, None])
  blocks = _blocked(weights)
  total = blocks.sum(axis=(1, 2))
  filtered = ((top_k > 0) & (top_k < logits.shape[1])) | (top_p < 1)
  # Sorting the vocabulary costs far more than the draw: it is done only in steps where some row filters.
  kept = jax.lax.cond(
    (filtered & ~greedy).any(),
    lambda: _blocked(jnp.where(keep(scaled, top_k, top_p) | ~filtered[:, None], weights, 0.0)),
    lambda: blocks,
  )
  tokens = jnp.where(greedy, jnp.argmax(logits, axis=1).astype(jnp.int32), _inverse_cdf(kept, uniform))
  chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
  return tokens, chosen - peak - jnp.log(total)


def keep(scaled: Float32[Array, "B V"], top_k: Int32[Array, "B"], top_p: Float32[Array, "B"]) -> Bool[Array, "B V"]:
  """Which tokens top-k, and after it top-p over what it left, keep. Of equal logits the lower id goes first.

  Args:
    scaled: logits, divided by the temperature.
    top_k: 0 keeps all.
    top_p: in (0, 1]; at least the likeliest token is kept.
  """
  vocabulary = scaled.shape[1]
  ids = jnp.broadcast_to(jnp.arange(vocabulary, dtype=jnp.int32)[None], scaled.shape)
  falling, order = jax.lax.sort((-scaled, ids), dimension=1, num_keys=1, is_stable=True)
  limit = jnp.where(top_k > 0, top_k, vocabulary)
  within = jnp.arange(vocabulary)[None] < limit[:, None]
  mass = jnp.where(within, jnp.exp(falling[:, :1] - falling), 0.0)
  before = jnp.cumsum(mass, axis=1) - mass
  within = within & ((before < (top_p * mass.sum(axis=1))[:, None]) | (top_p >= 1)[:, None])
  last = jnp.maximum(within.sum(axis=1) - 1, 0)[:, None]  # what is kept is a prefix of the order
  edge, edge_id = (jnp.take_along_axis(x, last, axis=1) for x in (-falling, order))
  return (scaled > edge) | ((scaled == edge) & (ids <= edge_id))


def _blocked(weights: Float[Array, "B V"]) -> Float[Array, "B n m"]:
  """[B, V] as about √V blocks of √V, filled up with zeros."""
  size = math.ceil(math.sqrt(weights.shape[1]))
  blocks = -(-weights.shape[1] // size)
  padded = jnp.pad(weights, ((0, 0), (0, blocks * size - weights.shape[1])))
  return padded.reshape(weights.shape[0], blocks, size)


def _inverse_cdf(weights: Float[Array, "B n m"], uniform: Float[Array, "B"]) -> Int32[Array, "B"]:
  """The first index of the flattened weights whose running sum exceeds uniform · total. Never one of weight 0.

  Two levels: first the block, then the place in it, so that no running sum is longer than √V: 30 times faster than
  V Gumbel numbers a token on a CPU, and it errs less.
  """
  edges = jnp.cumsum(weights.sum(axis=2), axis=1)
  target = uniform * edges[:, -1]
  block = _first_above(edges, target)
  below = jnp.where(block > 0, jnp.take_along_axis(edges, jnp.maximum(block - 1, 0)[:, None], axis=1)[:, 0], 0.0)
  row = jnp.take_along_axis(weights, block[:, None, None], axis=1)[:, 0]
  return block * weights.shape[2] + _first_above(jnp.cumsum(row, axis=1), target - below)


def _first_above(edges: Float[Array, "B n"], target: Float[Array, "B"]) -> Int32[Array, "B"]:
  """The first index with edges > target; where rounding leaves none, the last one at which the edges still rise."""
  rises = jnp.concatenate([edges[:, :1] > 0, edges[:, 1:] > edges[:, :-1]], axis=1)
  last = edges.shape[1] - 1 - jnp.argmax(rises[:, ::-1], axis=1).astype(jnp.int32)
  return jnp.minimum((edges <= target[:, None]).sum(axis=1, dtype=jnp.int32), last)
