"""The critic's loss, for PPO."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ragrl_jax.core import masked
from ragrl_jax.core.masked import Mask, Number, PerToken, Segments, Totals


def value_loss(
  values: PerToken,
  old_values: PerToken,
  returns: PerToken,
  mask: Mask,
  *,
  clip: Number | None,
  aggregation: str,
  segment_ids: Segments = None,
  totals: Totals | None = None,
) -> Float[Array, ""]:
  """The clipped value loss: half the larger of two squared errors, with the value and with the clipped value.

  The clipped value lies within `clip` of the old value.

  Args:
    values: the critic's values; the gradient flows here.
    old_values: the critic's values at the start of the update; constant.
    returns: the regression targets; constant.
    mask: 1 on trained tokens.
    clip: the largest change of a value in one update, in reward units; None for no clip.
    aggregation, segment_ids, totals: as for `masked.aggregate`.

  Raises:
    ValueError: a negative clip, or an unknown aggregation.

  Source: PPO's authors' code (openai/baselines, ppo2); verl `compute_value_loss`.
  """
  if clip is not None and clip < 0:
    raise ValueError(f"value clip {clip}: it must be >= 0, or None for none.")
  values = masked.keep(values, mask)
  old_values, returns = (jax.lax.stop_gradient(masked.keep(x, mask)) for x in (old_values, returns))
  error = jnp.square(values - returns)
  if clip is not None:
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return 0.5 * masked.aggregate(error, mask, aggregation, segment_ids=segment_ids, totals=totals)
