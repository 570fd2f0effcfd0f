"""Rewards per token → advantages per token, sequence by sequence, read and written through the spans of the packing.

Everything is computed on the host over whole sequences, so the results do not depend on the packing.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from ragrl_jax.core import advantages as core
from ragrl_jax.learner.packing import Packed, Span
from ragrl_jax.learner.settings import AdvantageSettings


def assign(
  packed: Packed,
  settings: AdvantageSettings,
  *,
  values: Sequence[np.ndarray] | None = None,
  penalties: Sequence[np.ndarray] | None = None,
) -> tuple[Packed, dict[str, float]]:
  """The same rows with advantages and returns.

  Args:
    packed: rows on the host, with rewards and whole groups. Their advantages and returns are replaced.
    settings: how rewards become advantages.
    values: the critic's values, [R, T] per block, for "gae".
    penalties: subtracted from the rewards, [R, T] per block: the KL penalty if it is part of the reward.

  Returns:
    (packed, metrics): return_mean, and with values value_mean and explained_variance, over trained tokens.

  Raises:
    ValueError: a reward that is not finite.
  """
  masks = [np.asarray(b.loss_mask).astype(bool) for b in packed.blocks]
  rewards = [np.where(mask, np.asarray(b.rewards, np.float32), 0.0) for b, mask in zip(packed.blocks, masks)]
  _check(rewards)  # one NaN would spread over its group and, by whitening, over the whole batch
  if penalties is not None:
    rewards = [r - np.where(mask, p, 0.0).astype(np.float32) for r, p, mask in zip(rewards, penalties, masks)]
  # Sums of floats depend on their order. It stays the order of the rows, so that older runs resume bit for bit.
  # The rows of an episode are joined into one.
  spans = sorted([span for span in own if span.of(masks).any()] for own in packed.by_episode())
  spans = [own for own in spans if own]
  cut = lambda arrays: [np.concatenate([span.of(arrays) for span in own]) for own in spans]
  ours, on = cut(rewards), cut(masks)
  guesses = None if values is None else cut(values)
  if settings.compares:
    group_ids = [int(own[0].of([np.asarray(b.group_ids) for b in packed.blocks])[0]) for own in spans]
    found = _compared(ours, on, group_ids, settings)
    # Returns to go, undiscounted: rewards 0 0 1 0 2 → 3 3 3 2 2.
    returns = [np.where(m, np.flip(np.cumsum(np.flip(r))), 0.0) for r, m in zip(ours, on)]
  else:
    longest = max((b.tokens.shape[1] for b in packed.blocks), default=1)
    longest *= max((-(-len(mask) // longest) for mask in on), default=1)  # an episode of several rows is longer
    found, returns = _discounted(ours, on, guesses, settings, longest)
  if settings.whitens:
    found = _whitened(found, on)
  metrics = _describe(returns, on, guesses)
  return _written(packed, spans, dict(advantages=found, returns=returns)), metrics


def _check(rewards: Sequence[np.ndarray]) -> None:
  for array in rewards:
    if not np.isfinite(array).all():
      bad = array[~np.isfinite(array)][0]
      raise ValueError(f"a reward is {bad}: rewards must be finite; a term that is unknown is None.")


def compare(
  rewards: Sequence[Sequence[float]], group_ids: Sequence[int], settings: AdvantageSettings
) -> list[np.ndarray]:
  """One advantage per turn, from one reward per turn. An episode without turns counts as one turn with reward 0.

  Sizes are rounded up, so that every step runs the same few programs. Each padding row is a group of its own.
  """
  turns = max((len(r) for r in rewards), default=1)
  # 9 episodes of up to 3 turns are padded to 16 of 4.
  rows, columns = (max(least, 1 << (size - 1).bit_length()) for least, size in ((8, len(rewards)), (1, turns)))
  padded, counts = np.zeros((rows, columns), np.float32), np.ones(rows, np.int32)
  ids = np.arange(-1, -rows - 1, -1, dtype=np.int32)  # prompts count from 0, so no padding row joins a group
  # `counts` gives the turns of each row; entries beyond it are padding.
  for i, (earned, group) in enumerate(zip(rewards, group_ids, strict=True)):
    padded[i, : len(earned)], counts[i], ids[i] = earned, max(len(earned), 1), group
  s = settings
  compared = _comparison(s.kind, s.std, s.std_floor, s.eps)(*jax.device_put((padded, counts, ids)))
  found = jax.device_get(compared)
  return [found[i, : len(earned)] for i, earned in enumerate(rewards)]


@functools.cache
def _comparison(kind, std, std_floor, eps):
  rule = dict(
    group_relative=functools.partial(core.group_relative, std=std, std_floor=std_floor, eps=eps),
    leave_one_out=core.leave_one_out,
    # whitened afterwards over the batch's tokens
    reinforce_plus_plus_baseline=functools.partial(core.group_relative, std="none"),
  )[kind]
  return jax.jit(lambda rewards, turns, ids: core.by_turn(rewards, turns, ids, rule))


def _compared(rewards, masks, group_ids, settings) -> list[np.ndarray]:
  """Advantages per token: its episode's, or its turn's. A turn is a stretch of trained tokens."""
  turn_of, earned = [], []
  for r, m in zip(rewards, masks):
    # Mask 0 1 1 0 1 has turns -1 0 0 0 1: a turn begins where the mask rises.
    number = np.cumsum(np.diff(m, prepend=False) & m) - 1  # the turn that the token belongs to, or that it follows
    if settings.credit == "episode":
      number = np.zeros_like(number)
    turn_of.append(np.maximum(number, 0))  # tokens before the first turn are untrained, so any index is valid
    earned.append(np.bincount(turn_of[-1], weights=np.where(m, r, 0.0)).astype(np.float32))
  found = compare(earned, group_ids, settings)
  return [np.where(m, a[turn], 0.0).astype(np.float32) for a, turn, m in zip(found, turn_of, masks)]


def _discounted(rewards, masks, values, settings, length) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Advantages and returns along each sequence."""
  # Each sequence in its own row, in few shapes, because GAE runs backwards over whole rows.
  rows = max(8, 1 << (len(rewards) - 1).bit_length())
  lay = lambda arrays, dtype: _padded(arrays, rows, length, dtype)
  guesses = np.zeros((rows, length), np.float32) if values is None else lay(values, np.float32)
  lam = settings.lam if settings.kind == "gae" else 1.0  # REINFORCE++ has no λ
  given = jax.device_put((lay(rewards, np.float32), guesses, lay(masks, bool)))
  advantages, returns = jax.device_get(_gae(settings.gamma, lam)(*given))
  cut = lambda x: [x[i, : len(m)] for i, m in enumerate(masks)]
  return cut(advantages), cut(returns)


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
  # In float64: a mean over a million tokens loses digits in float32.
  mine = np.concatenate([a[m] for a, m in zip(advantages, masks)] or [np.zeros(0)]).astype(np.float64)
  mean = mine.sum() / max(mine.size, 1)
  scale = (np.square(mine - mean).sum() / (mine.size - 1) + 1e-8) ** -0.5 if mine.size > 1 else 0.0
  return [np.where(m, (a - mean) * scale, 0.0).astype(np.float32) for a, m in zip(advantages, masks)]


def _describe(returns, masks, values) -> dict[str, float]:
  """Statistics of the returns, and the share of their variance that the critic explains."""
  flat = lambda arrays: np.concatenate([a[m] for a, m in zip(arrays, masks)] or [np.zeros(0)]).astype(np.float64)
  got = flat(returns)
  guessed = np.zeros_like(got) if values is None else flat(values)
  error = got - guessed
  total, square, off, off_square, guess = (
    float(x) for x in (got.sum(), np.square(got).sum(), error.sum(), np.square(error).sum(), guessed.sum())
  )
  n = max(got.size, 1)
  # Var = E[x²] − E[x]², from sums, so that a batch without trained tokens gives zeros and not NaN.
  found = dict(return_mean=total / n)
  if values is not None:
    variance = square / n - (total / n) ** 2
    unexplained = off_square / n - (off / n) ** 2
    found |= dict(value_mean=guess / n, explained_variance=1.0 - unexplained / variance if variance > 1e-12 else 0.0)
  return found


def _written(packed: Packed, spans: Sequence[Sequence[Span]], columns: dict[str, list[np.ndarray]]) -> Packed:
  """The rows with these columns, one array per episode; zeros elsewhere."""
  blocks = packed.blocks
  for name, arrays in columns.items():
    filled = [np.zeros(np.shape(b.tokens), np.float32) for b in blocks]
    for own, array in zip(spans, arrays, strict=True):
      edges = np.cumsum([span.stop - span.start for span in own])[:-1]
      for span, part in zip(own, np.split(array, edges), strict=True):
        span.of(filled)[:] = part  # the span is a view, so this writes into the row
    blocks = [dataclasses.replace(b, **{name: column}) for b, column in zip(blocks, filled)]
  return dataclasses.replace(packed, blocks=blocks)
