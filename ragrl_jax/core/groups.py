"""Groups of samples for the same prompt: their sizes, and which of them are constant, so that they teach nothing."""

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragrl_jax.core.masked import AnyArray

# A reward is a sum of terms, and equal sums may differ in their last bits. Differences up to this share of the group's
# largest reward count as rounding, and so do differences up to LEAST, which is what terms that cancel each other leave.
TOLERANCE, LEAST = 4 * float(np.finfo(np.float32).eps), 1e-12


def equal(values: Iterable[float], *, tolerance: float = 0.0) -> bool:
  """Whether numbers of one group differ by rounding alone, or by at most the tolerance; on the host."""
  array = np.asarray([*values], np.float32)
  least = float(np.float32(max(LEAST, tolerance)))
  return float(np.ptp(array)) <= max(least, TOLERANCE * float(np.abs(array).max()))


def same_group(group_ids: Int[AnyArray, "B"]) -> Bool[Array, "B B"]:
  """Entry [i, j]: whether episodes i and j answer the same prompt. B is a few thousand at most."""
  ids = jnp.asarray(group_ids)
  return ids[:, None] == ids[None, :]


def sizes(group_ids: Int[AnyArray, "B"]) -> Float[Array, "B"]:
  """The group size of every episode, float32 [B]."""
  return same_group(group_ids).sum(axis=1).astype(jnp.float32)


def constant(values: Shaped[AnyArray, "B"], group_ids: Int[AnyArray, "B"]) -> Bool[Array, "B"]:
  """For every episode, whether all values of its group are equal up to rounding. A group of one is constant."""
  x = jnp.asarray(values).astype(jnp.float32)
  same = same_group(group_ids)
  low = jnp.where(same, x[None, :], jnp.inf).min(axis=1)
  high = jnp.where(same, x[None, :], -jnp.inf).max(axis=1)
  rounding = TOLERANCE * jnp.maximum(jnp.abs(high), jnp.abs(low))
  return high - low <= jnp.maximum(rounding, LEAST)
