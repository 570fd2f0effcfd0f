"""Rewards of a step's episodes → one advantage an episode, or None where it could not be scored."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from ragrl_jax.core import advantages as core


def of_episodes(
  rewards: Sequence[float | None], group_ids: Sequence[int], *, kind: str = "group_relative", std: str = "sample",
  std_floor: float = 0.0, eps: float = 1e-6,
) -> list[float | None]:
  """Advantages in the order of the rewards.

  Args:
    rewards: a number an episode; None: a term or a tool failed. Unscorable is not zero: such an episode leaves the
      statistics of its group, and gets None.
    group_ids: the prompt each episode answers.
    kind: "group_relative" (with std, std_floor, eps) or "leave_one_out".

  Raises:
    ValueError: an unknown kind, or a reward that is not finite.
  """
  if kind not in ("group_relative", "leave_one_out"):
    raise ValueError(f"config.advantage.kind={kind!r}: it must be 'group_relative' or 'leave_one_out'.")
  scored = np.asarray([r is not None for r in rewards], bool)
  values = np.asarray([0.0 if r is None else r for r in rewards], np.float32)
  if not np.isfinite(values).all():
    first = int(np.flatnonzero(~np.isfinite(values))[0])
    raise ValueError(f"reward {first} is {values[first]}: a reward must be finite; a term that is unknown is None.")
  # Whoever could not be scored is a group of its own, so that every step has the same shape. The length is rounded up
  # for the same reason: dynamic sampling collects uneven batches.
  size = max(8, 1 << (len(values) - 1).bit_length())
  ids = np.arange(-1, -size - 1, -1, dtype=np.int32)
  ids[:len(values)][scored] = np.asarray(group_ids, np.int32)[scored]
  padded = np.zeros(size, np.float32)
  padded[:len(values)] = values
  found = np.asarray(_compiled(kind, std, std_floor, eps)(padded, ids))
  return [float(a) if on else None for a, on in zip(found, scored)]


@functools.cache
def _compiled(kind, std, std_floor, eps):
  if kind == "leave_one_out":
    return jax.jit(core.leave_one_out)
  return jax.jit(functools.partial(core.group_relative, std=std, std_floor=std_floor, eps=eps))
