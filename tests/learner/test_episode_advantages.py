"""Rewards of turns → advantages of tokens: other sequences, untrained tokens and rows have no effect."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.core import advantages as core
from ragrl_jax.learner import advantages, packing
from ragrl_jax.learner.settings import AdvantageSettings

KINDS = ("group_relative", "leave_one_out", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae")


def earning(count=12, seed=0):
  """Sequences in groups of four, with a reward on the last turn and smaller ones on the turn before it."""
  draw, items = np.random.default_rng(seed), small.items(count, seed)
  earned = [small.earning(item, 0.25 * draw.integers(0, 2), draw.integers(0, 2)) for item in items]
  return [dataclasses.replace(item, group_id=number // 4) for number, item in enumerate(earned)]


def assign(items, settings, values=None, penalties=None):
  """(advantages, returns, metrics) of the items."""
  values = values if settings.kind == "gae" else None
  found, returns, metrics = advantages.assign(items, settings, values=values, penalties=penalties)
  return [item.advantages for item in found], returns, metrics


def trained(item):
  return item.loss_mask & (np.arange(len(item.tokens)) > 0)


def test_group_relative_by_hand():
  # Rewards (1, 0, 0, 0) give 1.5 and -0.5 on every trained token of an episode.
  items = [dataclasses.replace(small.earning(item, r), group_id=0) for item, r in zip(small.items(4), (1.0, 0, 0, 0))]
  found, _, metrics = assign(items, AdvantageSettings(eps=0.0))
  for item, got, want in zip(items, found, (1.5, -0.5, -0.5, -0.5)):
    np.testing.assert_allclose(got, np.where(trained(item), want, 0.0), rtol=1e-6)
  assert metrics["return_mean"] > 0


def test_reinforce_plus_plus_has_no_lambda():
  """A config's λ may be left from PPO."""
  one, other = (assign(earning(), AdvantageSettings(kind="reinforce_plus_plus", lam=lam)) for lam in (0.5, 1.0))
  assert one[2] == other[2] and all(np.array_equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@pytest.fixture(params=itertools.product(KINDS, ("episode", "turn")), ids=lambda pair: "-".join(pair))
def settings(request):
  return AdvantageSettings(**dict(zip(("kind", "credit"), request.param)), gamma=0.9, lam=0.8)


def test_the_order_of_the_items_changes_nothing(settings):
  items = earning()
  values = [np.where(item.loss_mask, np.sin(item.tokens), np.nan).astype(np.float32) for item in items]
  one, other = assign(items, settings, values), assign(items[::-1], settings, values[::-1])
  for mine, theirs in zip(one[:2], other[:2]):
    for a, b in zip(mine, theirs[::-1], strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  assert other[2] == pytest.approx(one[2], rel=1e-5)


def stretched(item):
  """The same sequence with untrained tokens inserted."""
  fillers = dict(tokens=7, loss_mask=False, turns=-1, advantages=0.0, sampler_logprobs=0.0)
  longer = {name: np.insert(getattr(item, name), [2, 4], filler) for name, filler in fillers.items()}
  return dataclasses.replace(item, **longer)


def test_inserted_untrained_tokens_change_no_advantage(settings):
  on_trained = []
  for items in (earning(), [stretched(item) for item in earning()]):
    # one value per trained token, the same in both
    values = [np.where(trained(item), np.sin(np.cumsum(trained(item))), 5.0) for item in items]
    found, _, _ = assign(items, settings, values)
    on_trained.append([own[trained(item)] for own, item in zip(found, items)])
  for one, two in zip(*on_trained, strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def turns(*stretches, group, apart=True):
  """A sequence of turns, each given as (tokens, reward), with an observation of one token after each if `apart`."""
  segments = [structs.Segment(structs.ENVIRONMENT, (3 * group,), "?")]
  for size, _ in stretches:
    segments.append(structs.Segment(structs.MODEL, tuple(range(1, size + 1)), "!", logprobs=(0.0,) * size))
    segments += [structs.Segment(structs.ENVIRONMENT, (9,), ".")] * apart
  return packing.of_episode(structs.Episode(tuple(segments), prompt_index=group), [own for _, own in stretches])[0]


def test_a_turns_return_is_its_own_and_later_rewards():
  # Returns to go: (3, 2) and (1, 1). The second sample has one turn, whose return also counts for the second turn.
  items = [turns((2, 1.0), (1, 2.0), group=0), turns((3, 1.0), group=0)]
  (one, other), *_ = assign(items, AdvantageSettings(credit="turn", std="none"))
  np.testing.assert_allclose(one, [0, 1, 1, 0, 0.5, 0])
  np.testing.assert_allclose(other, [0, -1, -1, -1, 0])


@pytest.mark.parametrize("apart", [True, False])
def test_neighbouring_model_segments_are_turns_of_their_own(apart):
  """Turn rewards (1, 0) and (0, 1): the first turns' returns are equal, those of the second turns differ by 1."""
  items = [turns((2, first), (1, 1.0 - first), group=0, apart=apart) for first in (1.0, 0.0)]
  cut = lambda arrays: [own[trained(item)] for own, item in zip(arrays, items)]
  found, returns, _ = assign(items, AdvantageSettings(credit="turn", std="none"))
  np.testing.assert_allclose(cut(found), [[0, 0, -0.5], [0, 0, 0.5]])
  np.testing.assert_allclose(cut(returns), [[1, 1, 0], [1, 1, 1]])
  # GAE with λ = 0 and values of 0: a token's advantage is its own reward, paid at the end of its turn.
  settings = AdvantageSettings(kind="gae", lam=0.0, gamma=1.0, whiten=False)
  found, *_ = assign(items, settings, [np.zeros(item.tokens.shape, np.float32) for item in items])
  np.testing.assert_allclose(cut(found), [[0, 1, 0], [0, 0, 1]])


def test_with_rewards_at_the_end_each_turn_has_its_episodes_advantage():
  items = [turns((2, 0.0), (1, 1.0), group=0), turns((3, 0.0), group=0), turns((1, 0.0), (2, 0.0), (1, 1.0), group=0)]
  one, other = (assign(items, AdvantageSettings(credit=credit))[0] for credit in ("episode", "turn"))
  for a, b in zip(one, other, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["gae", "reinforce_plus_plus"])
def test_a_reward_after_an_observation_counts_for_earlier_turns(kind):
  items = [turns((2, 0.0), (1, 1.0), group=0), turns((2, 0.0), (1, 0.0), group=1)]
  ones = [np.ones(item.tokens.shape, np.float32) for item in items]  # with lam 1, values change no return
  (one, other), (returns, _), _ = assign(items, AdvantageSettings(kind=kind, whiten=False, gamma=0.5), ones)
  np.testing.assert_allclose(returns, [0, 0.25, 0.5, 0, 1, 0])
  assert (one[1:3] > other[1:3]).all()


def whitened(x, mask):
  """(x - mean) / sqrt(unbiased variance + 1e-8) where the mask is 1."""
  own = x[mask > 0]
  return np.where(mask > 0, (x - own.mean()) / np.sqrt(own.var(ddof=1) + 1e-8), 0.0)


def test_whitening_is_over_the_trained_tokens():
  items = earning()
  stack = lambda arrays: np.stack([np.pad(own, (0, 16 - len(own))) for own in arrays])
  mask, rewards = stack([trained(item) for item in items]), np.zeros((len(items), 16), np.float32)
  for row, item in zip(rewards, items):
    for turn, reward in enumerate(item.rewards):
      row[np.flatnonzero(item.turns == turn)[-1]] = reward
  want, _ = core.gae(rewards, np.zeros_like(rewards), mask, gamma=1.0, lam=1.0)
  found, returns, _ = assign(items, AdvantageSettings(kind="reinforce_plus_plus"))
  np.testing.assert_allclose(stack(found), whitened(want, mask), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(stack(returns), want, rtol=1e-6)
  centred, plain = AdvantageSettings(kind="reinforce_plus_plus_baseline"), AdvantageSettings(std="none")
  want = whitened(stack(assign(items, plain)[0]), mask)
  np.testing.assert_allclose(stack(assign(items, centred)[0]), want, rtol=1e-4, atol=1e-6)


def test_a_kl_penalty_is_subtracted_from_the_reward():
  items = [dataclasses.replace(item, group_id=0) for item in earning(4)]
  taken = [np.full(item.tokens.shape, 0.5, np.float32) for item in items]
  found, *_ = assign(items, AdvantageSettings(kind="leave_one_out"), penalties=taken)
  total = np.asarray([item.rewards.sum() - 0.5 * trained(item).sum() for item in items])
  want = core.leave_one_out(jnp.asarray(total), jnp.zeros(4, jnp.int32))
  for item, own, one in zip(items, found, want):
    np.testing.assert_allclose(own[trained(item)], float(one), rtol=1e-4)


def gaining(item, *gains):
  return dataclasses.replace(item, gains=np.asarray([*gains, np.nan], np.float32))


@pytest.mark.parametrize("std, outcome, scale", [("none", 0.5, 1.0), ("population", 1.0, (0.14 / 3) ** 0.5)])
def test_information_gains_by_hand(std, outcome, scale):
  """IGPO: outcomes 1, 0 and gains .2; .6, .1 (mean .3) are compared apart, and summed from each turn on."""
  right = gaining(turns((2, 0.0), (1, 1.0), group=0), 0.2)
  wrong = gaining(turns((1, 0.0), (3, 0.0), (2, 0.0), group=0), 0.6, 0.1)
  lonely = gaining(turns((1, 0.0), (1, 1.0), group=1), 0.4)
  settings = AdvantageSettings(credit="information", std=std, eps=0.0)
  (one, other, alone), _, metrics = assign([right, wrong, lonely], settings)
  each = lambda item, values: np.where(item.turns < 0, 0.0, np.asarray(values)[item.turns])
  np.testing.assert_allclose(one, each(right, [outcome - 0.1 / scale, outcome]), rtol=1e-5)
  np.testing.assert_allclose(other, each(wrong, [0.1 / scale - outcome, -0.2 / scale - outcome, -outcome]), rtol=1e-5)
  assert not alone.any() and metrics["information_gain"] == pytest.approx(1.3 / 4)


def test_information_gains_are_rewards_of_turns_where_tokens_are_credited():
  item = gaining(turns((1, 0.0), (2, 1.0), group=0), 0.2)
  settings = AdvantageSettings(kind="gae", credit="information", whiten=False)
  (found,), _, _ = assign([item], settings, values=[np.zeros(len(item.tokens), np.float32)])
  np.testing.assert_allclose(found[item.turns >= 0], [1.2, 1.0, 1.0], rtol=1e-6)


def test_explained_variance():
  items, settings = earning(), AdvantageSettings(kind="gae")
  explained = lambda values: assign(items, settings, values)[2]["explained_variance"]
  _, returns, _ = assign(items, settings, [np.zeros(item.tokens.shape, np.float32) for item in items])
  assert explained(returns) == pytest.approx(1.0)
  assert explained([np.full(r.shape, 3.0, np.float32) for r in returns]) == pytest.approx(0.0, abs=1e-6)


def test_no_items_give_no_advantages():
  assert assign([], AdvantageSettings()) == ([], [], dict(return_mean=0.0))


def test_invalid_arguments_are_refused():
  refused("a reward is nan", assign, [small.earning(item, np.nan) for item in small.items(2)], AdvantageSettings())
  for how, word in (
    (dict(kind="dpo"), "config.advantage.kind"), (dict(credit="token"), "'episode', 'turn' or 'information'"),
    (dict(gain_over="random"), "gain_over is set: no gain is measured"), (dict(lam=1.5), "between 0 and 1"),
  ):  # fmt: skip
    refused(word, AdvantageSettings, **how)


def cut(item, episode):
  """The same sequence as two items of an episode; the second begins with the untrained token between two turns."""
  at = 1 + int(np.flatnonzero(~item.loss_mask[1:])[0])
  names = "tokens loss_mask advantages sampler_logprobs turns".split()
  part = lambda piece: {name: getattr(item, name)[piece] for name in names}
  return [dataclasses.replace(item, **part(piece), episode=episode) for piece in (slice(at), slice(at, None))]


def test_the_items_of_an_episode_have_the_advantages_of_one(settings):
  drawn = np.random.default_rng(0).integers(0, 3, (6, 2)) / 2
  items = [turns((2 + number, first), (3, last), group=number // 3) for number, (first, last) in enumerate(drawn)]
  parts = [part for number, item in enumerate(items) for part in (cut(item, (0, number)) if number % 2 else [item])]
  found = []
  for some in (items, parts):
    values = [np.where(item.loss_mask, np.sin(item.tokens), np.nan).astype(np.float32) for item in some]
    *columns, metrics = assign(some, settings, values)
    by_episode = advantages.by_episode(some)
    found.append(([np.concatenate([own[i] for i in numbers]) for own in columns for numbers in by_episode], metrics))
  for one, two in zip(found[0][0], found[1][0], strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
  assert found[1][1] == pytest.approx(found[0][1], rel=1e-5) and any(np.abs(one).max() > 0 for one in found[0][0])
