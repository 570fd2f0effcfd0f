"""Averages of one value per token over the tokens, or over the sequences, of an optimiser step."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from ragrl_jax.core import masked
from ragrl_jax.core.masked import AnyArray, Mask, Number
from ragrl_jax.core.names import AGGREGATIONS as AGGREGATIONS

Count = Shaped[AnyArray, ""] | Number
Totals = tuple[Count, Count]


def aggregate(
  per_token: Shaped[AnyArray, "R T"],
  mask: Mask,
  mode: str,
  *,
  segment_ids: Int[AnyArray, "R T"] | None = None,
  totals: Totals | None = None,
  norm: Number | None = None,
) -> Float[Array, ""]:
  """Reduces one value per token to a scalar.

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

  Returns:
    A scalar; 0 where nothing is trained.

  Raises:
    ValueError: an unknown mode.
  """
  if mode not in AGGREGATIONS:
    raise ValueError(f"aggregation {mode!r}: it must be one of {', '.join(AGGREGATIONS)} (config.loss.aggregation).")
  tokens, sequences = divisors(mask, segment_ids, totals)
  per_token = masked.keep(per_token, mask)
  if mode == "token_mean":
    return per_token.sum() / tokens
  if mode == "seq_mean_token_mean":
    return (per_token / masked.segment_lengths(mask, segment_ids)).sum() / sequences
  # A sum over tokens of a sequence, summed over sequences, is a sum over tokens.
  total = per_token.sum() / sequences
  if mode == "seq_mean_token_sum_norm":
    total = total / (per_token.shape[1] if norm is None else norm)
  return total


def divisors(
  mask: Mask, segment_ids: Int[AnyArray, "R T"] | None, totals: Totals | None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """(tokens, sequences) that a mean divides by, each at least 1: `totals`, or counted from the mask."""
  if totals is None:
    totals = masked.as_bool(mask).sum(), masked.num_sequences(mask, segment_ids)
  tokens, sequences = (jnp.maximum(jnp.asarray(x).astype(jnp.float32), 1.0) for x in totals)
  return tokens, sequences
