"""Rewards a token → advantages a token: packed rows are taken apart, compared or discounted, and put back.

Everything happens on the host, over whole sequences: the numbers do not depend on how they were packed.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from ragrl_jax.core import advantages as core
from ragrl_jax.learner.settings import AdvantageSettings
from ragrl_jax.structs import Batch

FOUND = ("return_mean", "value_mean", "explained_variance")  # what `assign` reports


@dataclasses.dataclass(frozen=True)
class Place:
  """Where one sequence lies: block, row, tokens; and whose sample it is."""

  block: int
  row: int
  here: slice
  group_id: int


def sequences(batches: Sequence[Batch]) -> list[Place]:
  """The sequences of these blocks that have anything to train, in the order in which they lie there."""
  found = []
  for number, batch in enumerate(batches):
    ids, mask = np.asarray(batch.segment_ids), np.asarray(batch.loss_mask).astype(bool)
    for row in range(ids.shape[0]):
      edges = np.flatnonzero(np.diff(ids[row], prepend=0, append=0))
      for start, stop in zip(edges[:-1], edges[1:]):
        if ids[row, start] and mask[row, start:stop].any():
          group = int(np.asarray(batch.group_ids)[row, start])
          found.append(Place(number, row, slice(int(start), int(stop)), group))
  return found


def assign(
  batches: Sequence[Batch],
  settings: AdvantageSettings,
  *,
  values: Sequence[np.ndarray] | None = None,
  penalties: Sequence[np.ndarray] | None = None,
) -> tuple[list[Batch], dict[str, float]]:
  """The blocks with advantages and returns.

  Args:
    batches: on the host, with rewards; every group whole. What they hold of advantages and returns is overwritten.
    settings: how rewards become advantages.
    values: the critic's, [R, T] a block, for "gae".
    penalties: taken off the rewards, [R, T] a block: the KL's share where it is paid for in the reward.

  Returns:
    (batches, metrics): return_mean, and with values value_mean and explained_variance, over trained tokens.

  Raises:
    ValueError: a reward that is not finite.
  """
  where = sequences(batches)
  masks = [np.asarray(b.loss_mask).astype(bool) for b in batches]
  rewards = [np.where(mask, np.asarray(b.rewards, np.float32), 0.0) for b, mask in zip(batches, masks)]
  _check(rewards)
  if penalties is not None:
    rewards = [r - np.where(mask, p, 0.0).astype(np.float32) for r, p, mask in zip(rewards, penalties, masks)]
  cut = lambda arrays: [arrays[s.block][s.row, s.here] for s in where]
  ours, on = cut(rewards), cut(masks)
  if settings.compares:
    found = _compared(ours, on, [s.group_id for s in where], settings)
    returns = [np.where(m, np.flip(np.cumsum(np.flip(r))), 0.0) for r, m in zip(ours, on)]
  else:
    found, returns = _discounted(
      ours, on, None if values is None else cut(values), settings, max((b.tokens.shape[1] for b in batches), default=1)
    )
  if settings.whitens:
    found = _whitened(found, on)
  metrics = _describe(returns, on, None if values is None else cut(values))
  return _put_back(batches, where, dict(advantages=found, returns=returns)), metrics


def _check(rewards: Sequence[np.ndarray]) -> None:
  for array in rewards:
    if not np.isfinite(array).all():
      bad = array[~np.isfinite(array)][0]
      raise ValueError(f"a reward is {bad}: rewards must be finite; a term that is unknown is None.")


def compare(
  rewards: Sequence[Sequence[float]], group_ids: Sequence[int], settings: AdvantageSettings
) -> list[np.ndarray]:
  """One advantage a turn, from one reward a turn; an episode without turns counts as one that earned nothing.

  Sizes are rounded up, so that every step runs the same few programs: who fills up is a group of its own.
  """
  turns = max((len(r) for r in rewards), default=1)
  rows, columns = (max(least, 1 << (size - 1).bit_length()) for least, size in ((8, len(rewards)), (1, turns)))
  padded, counts = np.zeros((rows, columns), np.float32), np.ones(rows, np.int32)
  ids = np.arange(-1, -rows - 1, -1, dtype=np.int32)
  for i, (earned, group) in enumerate(zip(rewards, group_ids, strict=True)):
    padded[i, : len(earned)], counts[i], ids[i] = earned, max(len(earned), 1), group
  s = settings
  found = np.asarray(_comparison(s.kind, s.std, s.std_floor, s.eps)(padded, counts, ids))
  return [found[i, : len(earned)] for i, earned in enumerate(rewards)]


@functools.cache
def _comparison(kind, std, std_floor, eps):
  rule = dict(
    group_relative=functools.partial(core.group_relative, std=std, std_floor=std_floor, eps=eps),
    leave_one_out=core.leave_one_out,
    # Whitened over the batch's tokens afterwards.
    reinforce_plus_plus_baseline=functools.partial(core.group_relative, std="none"),
  )[kind]
  return jax.jit(lambda rewards, turns, ids: core.by_turn(rewards, turns, ids, rule))


def _compared(rewards, masks, group_ids, settings) -> list[np.ndarray]:
  """Advantages a token: its episode's, or its turn's, a turn being a stretch of trained tokens."""
  turn_of, earned = [], []
  for r, m in zip(rewards, masks):
    number = np.cumsum(np.diff(m, prepend=False) & m) - 1  # of the turn that this token belongs to, or comes after
    if settings.credit == "episode":
      number = np.zeros_like(number)
    turn_of.append(np.maximum(number, 0))
    earned.append(np.bincount(turn_of[-1], weights=np.where(m, r, 0.0)).astype(np.float32))
  found = compare(earned, group_ids, settings)
  return [np.where(m, a[turn], 0.0).astype(np.float32) for a, turn, m in zip(found, turn_of, masks)]


def _discounted(rewards, masks, values, settings, length) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Advantages and returns along each sequence."""
  rows = max(8, 1 << (len(rewards) - 1).bit_length())
  lay = lambda arrays, dtype: _padded(arrays, rows, length, dtype)
  guesses = np.zeros((rows, length), np.float32) if values is None else lay(values, np.float32)
  found = _gae(settings.gamma, settings.lam)(lay(rewards, np.float32), guesses, lay(masks, bool))
  advantages, returns = (np.asarray(x) for x in found)
  return tuple([x[i, : len(m)] for i, m in enumerate(masks)] for x in (advantages, returns))


@functools.cache
def _gae(gamma, lam):
  return jax.jit(functools.partial(core.gae, gamma=gamma, lam=lam))


def _padded(arrays, rows, length, dtype):
  out = np.zeros((rows, length), dtype)
  for i, array in enumerate(arrays):
    out[i, : len(array)] = array
  return out


def _whitened(advantages, masks) -> list[np.ndarray]:
  """(A − mean) / sqrt(var + 1e-8) over all trained tokens, as `core.masked.whiten`."""
  mine = np.concatenate([a[m] for a, m in zip(advantages, masks)] or [np.zeros(0)]).astype(np.float64)
  mean = mine.sum() / max(mine.size, 1)
  scale = (np.square(mine - mean).sum() / (mine.size - 1) + 1e-8) ** -0.5 if mine.size > 1 else 0.0
  return [np.where(m, (a - mean) * scale, 0.0).astype(np.float32) for a, m in zip(advantages, masks)]


def _describe(returns, masks, values) -> dict[str, float]:
  """What the returns were, and how much of their variance the critic explains."""
  flat = lambda arrays: np.concatenate([a[m] for a, m in zip(arrays, masks)] or [np.zeros(0)]).astype(np.float64)
  got = flat(returns)
  guessed = np.zeros_like(got) if values is None else flat(values)
  error = got - guessed
  total, square, off, off_square, guess = (
    float(x) for x in (got.sum(), np.square(got).sum(), error.sum(), np.square(error).sum(), guessed.sum())
  )
  n = max(got.size, 1)
  found = dict(return_mean=total / n)
  if values is not None:
    variance = square / n - (total / n) ** 2
    unexplained = off_square / n - (off / n) ** 2
    found |= dict(value_mean=guess / n, explained_variance=1.0 - unexplained / variance if variance > 1e-12 else 0.0)
  return found


def _put_back(batches, where, columns) -> list[Batch]:
  out = []
  filled = {name: [np.zeros(np.shape(b.tokens), np.float32) for b in batches] for name in columns}
  for name, arrays in columns.items():
    for s, array in zip(where, arrays):
      filled[name][s.block][s.row, s.here] = array
  for number, batch in enumerate(batches):
    out.append(dataclasses.replace(batch, **{name: filled[name][number] for name in columns}))
  return out
