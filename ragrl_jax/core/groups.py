"""Groups of samples for the same prompt: which are constant, which teach something."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragrl_jax.core.masked import AnyArray

# A reward is a sum of terms, and equal sums may differ in their last bits: so many units of float32's rounding,
# relative to the group's largest reward, are no spread.
TOLERANCE = 4 * float(np.finfo(np.float32).eps)


def same_group(group_ids: Int[AnyArray, "B"]) -> Bool[Array, "B B"]:
  """[i, j]: whether i and j answer the same prompt. B is a few thousand at most."""
  ids = jnp.asarray(group_ids)
  return ids[:, None] == ids[None, :]


def sizes(group_ids: Int[AnyArray, "B"]) -> Float[Array, "B"]:
  """For every episode, the size of its group."""
  return same_group(group_ids).sum(axis=1).astype(jnp.float32)


def constant(
  values: Shaped[AnyArray, "B"], group_ids: Int[AnyArray, "B"], *, tolerance: float = 0.0
) -> Bool[Array, "B"]:
  """For every episode, whether its group's values are all equal up to rounding. A group of one is constant.

  Args:
    values: of the episodes.
    group_ids: the prompt each answers.
    tolerance: a spread (largest less smallest) of up to this is none either, whatever the size of the values.
  """
  x = jnp.asarray(values).astype(jnp.float32)
  same = same_group(group_ids)
  low = jnp.where(same, x[None, :], jnp.inf).min(axis=1)
  high = jnp.where(same, x[None, :], -jnp.inf).max(axis=1)
  rounding = TOLERANCE * jnp.maximum(jnp.abs(high), jnp.abs(low))
  return high - low <= jnp.maximum(rounding, jnp.float32(tolerance))


def informative(
  values: Shaped[AnyArray, "B"], group_ids: Int[AnyArray, "B"], *, tolerance: float = 1e-6
) -> Bool[Array, "B"]:
  """The keep-mask of dynamic sampling: True for the episodes of groups whose values differ by more than the tolerance.

  Ask it of the unshaped outcome rather than of the reward: a shaped reward has spread where nothing was right or wrong.

  Source: DAPO (arXiv 2503.14476) sec. 3.2. There (and in verl) a group of one is kept; here it teaches nothing.
  """
  return ~constant(values, group_ids, tolerance=tolerance)
