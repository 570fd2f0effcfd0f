"""Rewards of turns → advantages of tokens. Computed on the host from the items, so packing has no effect."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ragrl_jax.core import advantages as core
from ragrl_jax.learner.packing import Item
from ragrl_jax.learner.settings import AdvantageSettings


def assign(
  items: Sequence[Item],
  settings: AdvantageSettings,
  *,
  values: Sequence[np.ndarray] | None = None,
  penalties: Sequence[np.ndarray] | None = None,
) -> tuple[list[Item], list[np.ndarray], dict[str, float]]:
  """The items with advantages.

  Args:
    items: with turns and rewards, and whole groups.
    values: the critic's values of each item's tokens, for "gae".
    penalties: subtracted from the rewards of each item's tokens: the KL penalty if it is part of the reward.

  Returns:
    (items, the returns of each item's tokens, metrics). The metrics are return_mean, and with values value_mean and
    explained_variance, over trained tokens; information_gain, over turns that have one.

  Raises:
    ValueError: a reward that is not finite.
  """
  masks = [item.loss_mask & (np.arange(len(item.tokens)) > 0) for item in items]
  # The items of an episode are joined into one sequence.
  episodes = [members for members in by_episode(items) if any(masks[number].any() for number in members)]
  join = lambda arrays: [np.concatenate([arrays[number] for number in members]) for members in episodes]
  on, turns = join(masks), join([item.turns for item in items])
  earned = [items[members[0]].rewards for members in episodes]
  for array in earned:  # one NaN would spread over its group and, by whitening, over the whole batch
    if not np.isfinite(array).all():
      bad = array[~np.isfinite(array)][0]
      raise ValueError(f"a reward is {bad}: rewards must be finite; a term that is unknown is None.")
  gains = [items[members[0]].gains for members in episodes] if settings.informs else []
  if gains and not settings.compares:
    earned = [reward + np.nan_to_num(gain) for reward, gain in zip(earned, gains)]
  rewards = [_at_last_tokens(*one) for one in zip(earned, turns, on)]
  if penalties is not None:
    rewards = [r - np.where(m, p, 0.0).astype(np.float32) for r, m, p in zip(rewards, on, join(penalties))]
    earned = [np.bincount(t[m], r[m], len(e)) for e, r, t, m in zip(earned, rewards, turns, on)]
  guesses = None if values is None else join(values)
  if settings.compares:
    if settings.credit == "episode":
      earned, turns = [np.asarray([e.sum(dtype=np.float64)]) for e in earned], [np.zeros_like(t) for t in turns]
    groups = [items[members[0]].group_id for members in episodes]
    advantages = _compare(earned, groups, settings)
    if gains:
      advantages = [a + b for a, b in zip(advantages, _informed(gains, groups, settings))]
    advantages = [a[t] for a, t in zip(advantages, turns)]
    # Returns to go, undiscounted: rewards 0 0 1 0 2 → 3 3 3 2 2.
    returns = [np.where(m, np.flip(np.cumsum(np.flip(r))), 0.0) for r, m in zip(rewards, on)]
  else:
    advantages, returns = _discounted(rewards, on, guesses, settings)
  trained = [mask & items[members[0]].trained for mask, members in zip(on, episodes)]
  if settings.whitens:
    advantages = _whitened(advantages, trained)
  advantages = [np.where(m, a, 0.0).astype(np.float32) for a, m in zip(advantages, trained)]
  cut = lambda arrays: _cut(arrays, episodes, masks)
  items = [dataclasses.replace(item, advantages=array) for item, array in zip(items, cut(advantages))]
  finite = [gain for turn_gains in gains for gain in turn_gains[np.isfinite(turn_gains)]]
  informed = dict(information_gain=float(np.mean(finite))) if finite else {}
  return items, cut(returns), _describe(returns, trained, guesses) | informed


def by_episode(items: Sequence[Item]) -> list[list[int]]:
  """The numbers of each episode's items, in order. Nearly all episodes have one item."""
  groups: dict[Any, list[int]] = {}
  for number, item in enumerate(items):
    groups.setdefault(number if item.episode is None else item.episode, []).append(number)
  return list(groups.values())


def _at_last_tokens(turn_rewards: np.ndarray, turns: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Each turn's reward at its last trained token, zeros elsewhere."""
  rewards, on = np.zeros(turns.shape, np.float32), np.flatnonzero(mask)
  # Trained tokens of turns 0 0 1 2 2: the last ones are those before which the next one's turn differs.
  trained_turns = turns[on]
  last = on[[*np.flatnonzero(trained_turns[1:] != trained_turns[:-1]), -1]]
  rewards[last] = turn_rewards[turns[last]]
  return rewards


def _cut(arrays: Sequence[np.ndarray], episodes: Sequence[Sequence[int]], like: Sequence[np.ndarray]):
  """The arrays of episodes cut into those of their items; zeros for items of other episodes."""
  result = [np.zeros(x.shape, np.float32) for x in like]
  for members, array in zip(episodes, arrays, strict=True):
    for number in members:
      size = len(like[number])
      result[number], array = array[:size], array[size:]
  return result


def _compare(rewards: Sequence[np.ndarray], group_ids: Sequence[int], settings: AdvantageSettings) -> list[np.ndarray]:
  """One advantage per turn, from one reward per turn.

  Sizes are rounded up, so that every step runs the same few programs. Each padding row is a group of its own.
  """
  turns = max((len(r) for r in rewards), default=1)
  # 9 episodes of up to 3 turns are padded to 16 of 4.
  rows, columns = (max(least, 1 << (size - 1).bit_length()) for least, size in ((8, len(rewards)), (1, turns)))
  ids = np.arange(-1, -rows - 1, -1, dtype=np.int32)  # prompts count from 0, so no padding row joins a group
  ids[: len(rewards)] = group_ids
  # The turns of each row; entries beyond them are padding.
  counts = np.asarray([*map(len, rewards), *[1] * (rows - len(rewards))], np.int32)
  s, padded = settings, _padded(rewards, rows, columns, np.float32)
  on_device = _comparison(s.kind, s.std, s.std_floor, s.eps)(*jax.device_put((padded, counts, ids)))
  advantages = jax.device_get(on_device)
  return [advantages[i, : len(turn_rewards)] for i, turn_rewards in enumerate(rewards)]


def _informed(gains: Sequence[np.ndarray], group_ids: Sequence[int], settings: AdvantageSettings) -> list[np.ndarray]:
  """For each turn the sum of its gain and later ones, each compared with all gains of the group, as in IGPO."""
  finite = [np.flatnonzero(np.isfinite(turn_gains)) for turn_gains in gains]
  single = [turn_gains[turn : turn + 1] for turn_gains, turns in zip(gains, finite) for turn in turns]
  found = iter(_compare(single, [group for group, turns in zip(group_ids, finite) for _ in turns], settings))
  result = [np.zeros_like(turn_gains) for turn_gains in gains]
  for turn_gains, turns in zip(result, finite):
    for turn in turns:
      turn_gains[: turn + 1] += next(found)[0]
  return result


@functools.cache
def _comparison(kind, std, std_floor, eps):
  rule = dict(
    group_relative=functools.partial(core.group_relative, std=std, std_floor=std_floor, eps=eps),
    leave_one_out=core.leave_one_out,
    # whitened afterwards over the batch's tokens
    reinforce_plus_plus_baseline=functools.partial(core.group_relative, std="none"),
  )[kind]
  return jax.jit(lambda rewards, turns, ids: core.by_turn(rewards, turns, ids, rule))


def _discounted(rewards, masks, values, settings) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Advantages and returns along each sequence."""
  # Each sequence in its own row, in few shapes, because GAE runs backwards over whole rows.
  sizes = len(rewards), max(map(len, rewards), default=1)
  rows, length = (max(least, 1 << (size - 1).bit_length()) for least, size in zip((8, 128), sizes))
  lay = lambda arrays, dtype: _padded(arrays, rows, length, dtype)
  guesses = np.zeros((rows, length), np.float32) if values is None else lay(values, np.float32)
  lam = settings.lam if settings.kind == "gae" else 1.0  # REINFORCE++ has no λ
  inputs = jax.device_put((lay(rewards, np.float32), guesses, lay(masks, bool)))
  advantages, returns = jax.device_get(_gae(settings.gamma, lam)(*inputs))
  cut = lambda x: [x[i, : len(m)] for i, m in enumerate(masks)]
  return cut(advantages), cut(returns)


@functools.cache
def _gae(gamma, lam):
  return jax.jit(functools.partial(core.gae, gamma=gamma, lam=lam))


def _padded(arrays, rows, length, dtype):
  result = np.zeros((rows, length), dtype)
  for i, array in enumerate(arrays):
    result[i, : len(array)] = array
  return result


def _whitened(advantages, masks) -> list[np.ndarray]:
  """(A − mean) / sqrt(var + 1e-8), with the mean and the unbiased variance of the tokens under the masks.

  Source: verl `torch_functional.masked_whiten`.
  """
  # In float64: a mean over a million tokens loses digits in float32.
  trained = np.concatenate([a[m] for a, m in zip(advantages, masks)] or [np.zeros(0)]).astype(np.float64)
  mean = trained.sum() / max(trained.size, 1)
  scale = (np.square(trained - mean).sum() / (trained.size - 1) + 1e-8) ** -0.5 if trained.size > 1 else 0.0
  return [(a - mean) * scale for a in advantages]


def _describe(returns, masks, values) -> dict[str, float]:
  """Statistics of the returns, and the share of their variance that the critic explains."""
  # A batch without trained tokens gives zeros and not NaN.
  flat = lambda arrays: np.concatenate([a[m] for a, m in zip(arrays, masks)] or [np.zeros(0)]).astype(np.float64)
  mean = lambda x: float(x.sum() / max(x.size, 1))
  variance = lambda x: mean(np.square(x - mean(x)))
  targets = flat(returns)
  if values is None:
    return dict(return_mean=mean(targets))
  guesses, spread = flat(values), variance(targets)
  explained = 1.0 - variance(targets - guesses) / spread if spread > 1e-12 else 0.0
  return dict(return_mean=mean(targets), value_mean=mean(guesses), explained_variance=explained)
