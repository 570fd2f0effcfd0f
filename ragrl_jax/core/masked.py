"""Masked sums; sums over each sequence of a packed row; averages over an optimiser step.

Values where the mask is 0 may be inf or NaN. So they are replaced before any arithmetic, never multiplied by 0.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

AGGREGATIONS = ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")

# Functions accept arrays of JAX and of NumPy. Masks are bool, or 0/1 of any dtype.
AnyArray = jax.Array | np.ndarray
Number = float | int | np.number
Mask = Shaped[AnyArray, "*s"]
PerToken = Shaped[AnyArray, "R T"]  # a number for each token of packed rows
Segments = Int[AnyArray, "R T"] | None  # the sequence of each token in its row; None: each row is one sequence
Count = Shaped[AnyArray, ""] | Number
Totals = tuple[Count, Count]


def as_bool(mask: Mask) -> Bool[Array, "*s"]:
  """The mask as bool, whatever its dtype."""
  return jnp.asarray(mask).astype(bool)


def keep(x: Shaped[AnyArray, "*s"], mask: Mask) -> Float[Array, "*s"]:
  """x in float32 where the mask is 1, exact zeros elsewhere (also where x is inf or NaN)."""
  return jnp.where(as_bool(mask), jnp.asarray(x).astype(jnp.float32), 0.0)


def total(x: Shaped[AnyArray, "*s"], mask: Mask) -> Float[Array, ""]:
  """Sum of x where the mask is 1."""
  return keep(x, mask).sum()


def segment_sums(x: PerToken, mask: Mask, segment_ids: Segments) -> Float[Array, "R T"]:
  """For every token, the sum of x over the masked-in tokens of its sequence, whose id in its row is in [0, T]."""
  kept = keep(x, mask)
  if segment_ids is None:
    return jnp.broadcast_to(kept.sum(axis=1, keepdims=True), kept.shape)
  ids, number = _flat_ids(segment_ids)
  return jax.ops.segment_sum(kept.reshape(-1), ids, num_segments=number)[ids].reshape(kept.shape)


def segment_lengths(mask: Mask, segment_ids: Segments) -> Float[Array, "R T"]:
  """For every token, the number of masked-in tokens of its sequence, at least 1. Arguments as for `segment_sums`."""
  return jnp.maximum(segment_sums(jnp.ones(mask.shape, jnp.float32), mask, segment_ids), 1.0)


def num_sequences(mask: Mask, segment_ids: Segments = None) -> Float[Array, ""]:
  """Number of sequences with at least one token where the mask is 1, as float32."""
  on = as_bool(mask)
  if segment_ids is None:
    return on.any(axis=1).sum().astype(jnp.float32)
  ids, number = _flat_ids(segment_ids)
  counts = jax.ops.segment_sum(on.reshape(-1).astype(jnp.int32), ids, num_segments=number)
  return (counts > 0).sum().astype(jnp.float32)


def aggregate(
  per_token: PerToken,
  mask: Mask,
  mode: str,
  *,
  segment_ids: Segments = None,
  totals: Totals | None = None,
  norm: Number | None = None,
) -> Float[Array, ""]:
  """Reduces one value per token to a scalar, which is 0 where nothing is trained.

  | mode                    | formula (over sequences with at least one trained token)         | as in |
  |-------------------------|------------------------------------------------------------------|-------|
  | token_mean              | sum over tokens / number of trained tokens                        | DAPO  |
  | seq_mean_token_sum      | mean over sequences of their sums                                 | RLOO  |
  | seq_mean_token_mean     | mean over sequences of their means                                | GRPO  |
  | seq_mean_token_sum_norm | mean over sequences of their sums, divided by `norm`              | Dr. GRPO |

  Args:
    per_token: entry t belongs to token t. Values where the mask is 0 are ignored, even inf and NaN.
    mask: 1 on trained tokens.
    mode: a mode of the table.
    segment_ids: the sequence of each token in its row; if None, each row is one sequence.
    totals: (tokens, sequences) of the whole optimiser step, for a call that sees only a part of it. The results of all
      parts then add up to the result of one call over everything. Counted from the mask if None.
    norm: divisor of the last mode, in tokens; the padded length T if None.

  Raises:
    ValueError: an unknown mode.
  """
  if mode not in AGGREGATIONS:
    raise ValueError(f"aggregation {mode!r}: it must be one of {', '.join(AGGREGATIONS)} (config.loss.aggregation).")
  tokens, sequences = divisors(mask, segment_ids, totals)
  per_token = keep(per_token, mask)
  if mode == "token_mean":
    return per_token.sum() / tokens
  if mode == "seq_mean_token_mean":
    return (per_token / segment_lengths(mask, segment_ids)).sum() / sequences
  # A sum over tokens of a sequence, summed over sequences, is a sum over tokens.
  total = per_token.sum() / sequences
  if mode == "seq_mean_token_sum_norm":
    total = total / (per_token.shape[1] if norm is None else norm)
  return total


def divisors(mask: Mask, segment_ids: Segments, totals: Totals | None) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """(tokens, sequences) that a mean divides by, each at least 1: `totals`, or counted from the mask."""
  if totals is None:
    totals = as_bool(mask).sum(), num_sequences(mask, segment_ids)
  tokens, sequences = (jnp.maximum(jnp.asarray(x).astype(jnp.float32), 1.0) for x in totals)
  return tokens, sequences


def _flat_ids(segment_ids):
  """(flattened segment ids [R · T], made unique over all rows; the number of ids that there may be)."""
  rows, length = segment_ids.shape
  first = jnp.arange(rows, dtype=jnp.int32)[:, None] * (length + 1)
  return (first + jnp.asarray(segment_ids).astype(jnp.int32)).reshape(-1), rows * (length + 1)
