"""Samples tokens by inverse CDF, from one uniform number per token, with the log-probability that the learner uses.

Weights [B, V] are handled as blocks [B, n, m] of about √V numbers, so no running sum has more than √V terms. No block
crosses a sixteenth of the vocabulary. So where the vocabulary is sharded over up to 16 devices, a block stays on one
device, and only the blocks' sums and the block that holds the drawn token move. Sums over blocks are added in a fixed
order, or as whole numbers: no sharding changes a draw.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt32

SHARES = 16  # a vocabulary of 151,936 is 16 shares of 9,496 numbers; a share is 24 blocks of 396
UNITS = 2.0**30  # the mass of a row in the whole numbers that top-p adds up
Blocks = Float[Array, "B n m"]
Chosen = Bool[Array, "B n m"]


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
    uniform: in [0, 1).
    temperature: divides the logits; 0 takes the likeliest token (of equal ones, the lowest id).
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: of these, keep the smallest set of likeliest tokens with this probability mass; 1 keeps all.

  Returns:
    (tokens, logprobs). The log-probabilities are under the temperature-scaled, unfiltered distribution (temperature 1
    for greedy rows), as the learner computes them. A row's result depends on that row alone.
  """
  greedy, vocabulary = temperature <= 0, logits.shape[1]
  blocks = lambda: _blocked(logits / jnp.where(greedy, 1.0, temperature)[:, None], -jnp.inf)
  scaled = blocks()
  peaks = _gather(scaled.max(axis=2))
  peak = peaks.max(axis=1)
  weights = jnp.exp(scaled - peak[:, None, None])
  filtered = ((top_k > 0) & (top_k < vocabulary)) | (top_p < 1)
  sums, edges = _edges(weights)

  sampled = _icdf(weights, sums, edges, uniform)

  def of_kept():
    scaled = blocks()  # again: what a branch reads is stored in every step
    weights = jnp.exp(scaled - peak[:, None, None])
    filtered_weights = jnp.where(_kept(scaled, vocabulary, top_k, top_p) | ~filtered[:, None, None], weights, 0.0)
    return _icdf(filtered_weights, *_edges(filtered_weights), uniform)

  # The filters cost far more than drawing, so they run only in steps where some row uses top-k or top-p.
  sampled = jax.lax.cond((filtered & ~greedy).any(), of_kept, lambda: sampled)
  index = jnp.where(greedy, _likeliest(scaled, peaks), sampled)
  return _id(index, vocabulary), _at(scaled, index) - peak - jnp.log(edges[:, -1])


# ---- filters ---------------------------------------------------------------------------------------------------------


def keep(scaled: Float32[Array, "B V"], top_k: Int32[Array, "B"], top_p: Float32[Array, "B"]) -> Bool[Array, "B V"]:
  """The tokens that top-k keeps, and of these the tokens that top-p keeps. Of equal logits the lower id goes first.

  Top-p keeps a token if the mass of the likelier tokens is below top_p times the mass of all that top-k kept. So it
  keeps the token that crosses top_p. Masses that differ by about 1e-7 of the row's may count as equal, on every mesh
  alike.

  Args:
    scaled: logits, divided by the temperature.
    top_k: 0 keeps all.
    top_p: in (0, 1]; at least the likeliest token is kept.
  """
  vocabulary = scaled.shape[1]
  shares, share, *_ = _sizes(vocabulary)
  kept = _kept(_blocked(scaled, -jnp.inf), vocabulary, top_k, top_p)
  return kept.reshape(len(scaled), shares, -1)[:, :, :share].reshape(scaled.shape)


def _kept(blocks: Blocks, vocabulary: int, top_k: Int32[Array, "B"], top_p: Float32[Array, "B"]) -> Chosen:
  """What `keep` keeps. A filter that no row uses costs nothing."""
  all_ids = _blocked(jnp.ones((len(blocks), vocabulary), bool), False)  # False at the blocks' padding
  limited, nucleus = (top_k > 0) & (top_k < vocabulary), top_p < 1
  count = lambda on: on.sum(axis=(1, 2), dtype=jnp.int32)
  kept = jax.lax.cond(
    limited.any(), lambda: _smallest_set(blocks, all_ids, count, jnp.where(limited, top_k, vocabulary)), lambda: all_ids
  )

  def of_mass():
    weights = jnp.where(kept, jnp.exp(blocks - blocks.max(axis=(1, 2), keepdims=True)), 0.0)
    scale = UNITS / _edges(weights)[1][:, -1:]
    # Whole numbers add up to the same in any order, so no mesh moves the edge.
    mass = lambda on: (
      jnp.round(jnp.where(on, weights, 0.0).sum(axis=2) * scale).astype(jnp.int32).sum(axis=1, dtype=jnp.int32)
    )
    total = mass(kept)
    target = jnp.clip(jnp.ceil(top_p * total.astype(jnp.float32)).astype(jnp.int32), 1, total)
    return _smallest_set(blocks, kept, mass, target) | (kept & ~nucleus[:, None, None])

  return jax.lax.cond(nucleus.any(), of_mass, lambda: kept)


def _smallest_set(
  blocks: Blocks, among: Chosen, measure: Callable[[Chosen], Int32[Array, "B"]], target: Int32[Array, "B"]
) -> Chosen:
  """The fewest likeliest of these tokens whose measure reaches the target, which is at least 1."""
  wide = lambda x: x[:, None, None]
  # Others need not be looked at here: padding is -inf, and what top-k left out has no mass.
  edge = wide(_largest(lambda edge: measure(blocks >= wide(edge)) >= target, len(blocks)))
  above, equal = among & (blocks > edge), among & (blocks == edge)
  below, equals = measure(above), equal.sum(axis=(1, 2), dtype=jnp.int32)
  # Of 5 equal tokens that measure 10, with a target 3 above the sum of the likelier ones, the first 2 are kept.
  per_token = (measure(above | equal) - below).astype(jnp.float32) / equals.astype(jnp.float32)
  needed = jnp.clip(jnp.ceil((target - below).astype(jnp.float32) / per_token), 1.0, equals.astype(jnp.float32))
  ones = equal.astype(jnp.float32)
  last = _first_above(ones, *_edges(ones), needed - 0.5)
  places = jnp.arange(blocks.shape[1] * blocks.shape[2], dtype=jnp.int32).reshape(1, *blocks.shape[1:])
  return above | (equal & (places <= wide(last)))


def _largest(holds: Callable[[Float32[Array, "B"]], Bool[Array, "B"]], rows: int) -> Float32[Array, "B"]:
  """The largest float32 for which `holds` is true. It is true for -inf, and false from some number on.

  It bisects numbers whose order is that of the float32s: the bits of a positive float with the sign bit set, and the
  inverted bits of a negative one. 32 halvings are exact.
  """
  sign = jnp.uint32(1 << 31)
  number = lambda key: jax.lax.bitcast_convert_type(jnp.where(key >= sign, key ^ sign, ~key), jnp.float32)

  def halve(_, bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    true = holds(number(middle))
    return jnp.where(true, middle, low), jnp.where(true, high, middle)

  lowest, highest = (jnp.full(rows, key, jnp.uint32) for key in (0x007FFFFF, 0xFF800001))  # of -inf, and past inf
  return number(jax.lax.fori_loop(0, 32, halve, (lowest, highest))[0])


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _sizes(vocabulary: int) -> tuple[int, int, int, int]:
  """(shares of the vocabulary, numbers of a share, blocks of a share, numbers of a block, padding included)."""
  shares = math.gcd(vocabulary, SHARES)
  share = vocabulary // shares
  blocks = max(1, round(share / math.sqrt(vocabulary)))
  return shares, share, blocks, -(-share // blocks)


def _blocked(x: Array, fill: Any) -> Array:
  """[B, V] as blocks [B, n, m]; each share is padded with `fill`."""
  shares, share, blocks, size = _sizes(x.shape[1])
  x = jnp.pad(x.reshape(len(x), shares, share), ((0, 0), (0, 0), (0, blocks * size - share)), constant_values=fill)
  return x.reshape(len(x), shares * blocks, size)


def _id(place: Int32[Array, "B"], vocabulary: int) -> Int32[Array, "B"]:
  """The token id at a place of the flattened blocks."""
  _, share, blocks, size = _sizes(vocabulary)
  return place // (blocks * size) * share + place % (blocks * size)


def _edges(blocks: Blocks) -> tuple[Float[Array, "B n"], Float[Array, "B n"]]:
  """The blocks' sums, and their running sums."""
  sums = _gather(blocks.sum(axis=2))
  return sums, jnp.cumsum(sums, axis=1)


def _gather(x: Array) -> Array:
  """Brings the parts of a small array together. In a running sum over shards every step would wait for a neighbour."""
  mesh = jax.sharding.get_abstract_mesh()  # of the `shard_map` around it, whose other axes are the compiler's
  sharded = any(kind == AxisType.Auto for kind in mesh.axis_types)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * x.ndim)) if sharded else x


def _at(blocks: Blocks, place: Int32[Array, "B"]) -> Float[Array, "B"]:
  """The numbers at these places of the flattened blocks."""
  size = blocks.shape[2]
  return jnp.take_along_axis(_block(blocks, place // size), (place % size)[:, None], axis=1)[:, 0]


def _block(blocks: Blocks, number: Int32[Array, "B"]) -> Float[Array, "B m"]:
  return _gather(jnp.take_along_axis(blocks, number[:, None, None], axis=1)[:, 0])


def _likeliest(blocks: Blocks, peaks: Float[Array, "B n"]) -> Int32[Array, "B"]:
  """The first place of the largest number. On a CPU one argmax over V numbers would be ten times as slow."""
  number = jnp.argmax(peaks, axis=1).astype(jnp.int32)
  return number * blocks.shape[2] + jnp.argmax(_block(blocks, number), axis=1).astype(jnp.int32)


def _icdf(
  weights: Blocks, sums: Float[Array, "B n"], edges: Float[Array, "B n"], uniform: Float[Array, "B"]
) -> Int32[Array, "B"]:
  """The first place whose running sum exceeds uniform · total."""
  total = edges[:, -1]
  # The minimum changes no number. Without it a compiler may round uniform · total − below once in some rows (a fused
  # multiply-add) and twice in others: a draw near an edge would depend on the row, and with it on timing.
  return _first_above(weights, sums, edges, jnp.minimum(uniform * total, total))


def _first_above(
  blocks: Blocks, sums: Float[Array, "B n"], edges: Float[Array, "B n"], target: Float[Array, "B"]
) -> Int32[Array, "B"]:
  """The first place of the flattened blocks whose running sum exceeds the target; never a place of weight 0.

  It finds the block first, then the place in it. On a CPU this is 30 times faster than V Gumbel numbers per token, and
  its rounding error is smaller than that of V running sums.
  """
  number = _first(sums, edges, target)
  below = jnp.where(number > 0, jnp.take_along_axis(edges, jnp.maximum(number - 1, 0)[:, None], axis=1)[:, 0], 0.0)
  block = _block(blocks, number)
  return number * blocks.shape[2] + _first(block, jnp.cumsum(block, axis=1), target - below)


def _first(weights: Float[Array, "B n"], edges: Float[Array, "B n"], target: Float[Array, "B"]) -> Int32[Array, "B"]:
  """The first index with a weight and edges > target; if rounding leaves none, the last one with a weight.

  `edges` are running sums. A compiler adds them up in trees, so rounding lets some rise at a weight of 0.
  """
  n = weights.shape[1]
  index, reached = jnp.arange(n, dtype=jnp.int32), (edges > target[:, None]) | (edges >= edges[:, -1:])
  # One minimum for both: indices that are reached, from 0, then the others, the last one first.
  least = jnp.where(weights > 0, jnp.where(reached, index, 2 * n - index), 2 * n).min(axis=1)
  return jnp.where(least < n, least, 2 * n - least)
