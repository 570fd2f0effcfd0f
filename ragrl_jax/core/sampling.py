"""Samples tokens by inverse CDF, from one uniform number per token, with the log-probability that the learner uses."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt32


def uniforms(keys: UInt32[Array, "B 2"], positions: Int32[Array, "B"]) -> Float32[Array, "B"]:
  """The uniform number in [0, 1) with which the token at each (key, position) is drawn.

  Args:
    keys: one key per conversation; equal keys give equal numbers at equal positions.
    positions: position of the token in its conversation, from 0.
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
  """Draws one token per row: the first id whose cumulative probability exceeds the row's uniform number.

  Args:
    logits: the model's logits.
    uniform: in [0, 1).
    temperature: divides the logits; 0 takes the likeliest token (of equal ones, the lowest id).
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: of these, keep the smallest set of likeliest tokens with this probability mass; 1 keeps all.

  Returns:
    (tokens, logprobs). The log-probabilities are under the temperature-scaled, unfiltered distribution (temperature 1
    for greedy rows), as the learner computes them. A row's result depends on that row alone.
  """
  greedy = temperature <= 0
  scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
  peak = scaled.max(axis=1)
  weights = jnp.exp(scaled - peak[:, None])
  blocks = _blocked(weights)
  total = blocks.sum(axis=(1, 2))
  filtered = ((top_k > 0) & (top_k < logits.shape[1])) | (top_p < 1)
  # Sorting the vocabulary costs far more than drawing, so it runs only in steps where some row uses top-k or top-p.
  kept = jax.lax.cond(
    (filtered & ~greedy).any(),
    lambda: _blocked(jnp.where(keep(scaled, top_k, top_p) | ~filtered[:, None], weights, 0.0)),
    lambda: blocks,
  )
  tokens = jnp.where(greedy, jnp.argmax(logits, axis=1).astype(jnp.int32), _inverse_cdf(kept, uniform))
  chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
  return tokens, chosen - peak - jnp.log(total)


def keep(scaled: Float32[Array, "B V"], top_k: Int32[Array, "B"], top_p: Float32[Array, "B"]) -> Bool[Array, "B V"]:
  """The tokens that top-k keeps, and of these the tokens that top-p keeps. Of equal logits the lower id goes first.

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
  # Top-p keeps a token if the mass of the likelier tokens is below p: so the token that crosses p is kept.
  before = jnp.cumsum(mass, axis=1) - mass
  within = within & ((before < (top_p * mass.sum(axis=1))[:, None]) | (top_p >= 1)[:, None])
  last = jnp.maximum(within.sum(axis=1) - 1, 0)[:, None]  # the kept tokens are a prefix of the order
  edge, edge_id = (jnp.take_along_axis(x, last, axis=1) for x in (-falling, order))
  return (scaled > edge) | ((scaled == edge) & (ids <= edge_id))


def _blocked(weights: Float[Array, "B V"]) -> Float[Array, "B n m"]:
  """[B, V] as about √V blocks of √V numbers, padded with zeros."""
  size = math.ceil(math.sqrt(weights.shape[1]))
  blocks = -(-weights.shape[1] // size)
  padded = jnp.pad(weights, ((0, 0), (0, blocks * size - weights.shape[1])))
  return padded.reshape(weights.shape[0], blocks, size)


def _inverse_cdf(weights: Float[Array, "B n m"], uniform: Float[Array, "B"]) -> Int32[Array, "B"]:
  """The first index of the flattened weights whose running sum exceeds uniform · total; never an index of weight 0.

  It finds the block first, then the index in it, so no running sum has more than √V terms. On a CPU this is 30 times
  faster than V Gumbel numbers per token, and its rounding error is smaller.
  """
  edges = jnp.cumsum(weights.sum(axis=2), axis=1)
  target = uniform * edges[:, -1]
  block = _first_above(edges, target)
  below = jnp.where(block > 0, jnp.take_along_axis(edges, jnp.maximum(block - 1, 0)[:, None], axis=1)[:, 0], 0.0)
  row = jnp.take_along_axis(weights, block[:, None, None], axis=1)[:, 0]
  return block * weights.shape[2] + _first_above(jnp.cumsum(row, axis=1), target - below)


def _first_above(edges: Float[Array, "B n"], target: Float[Array, "B"]) -> Int32[Array, "B"]:
  """The first index with edges > target; if rounding leaves none, the last index at which the edges rise."""
  rises = jnp.concatenate([edges[:, :1] > 0, edges[:, 1:] > edges[:, :-1]], axis=1)
  last = edges.shape[1] - 1 - jnp.argmax(rises[:, ::-1], axis=1).astype(jnp.int32)
  return jnp.minimum((edges <= target[:, None]).sum(axis=1, dtype=jnp.int32), last)
