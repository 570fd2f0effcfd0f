"""Rewards → advantages over whole sequences: packing, the number of hosts and untrained tokens have no effect."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small

from ragrl_jax.core import advantages as core
from ragrl_jax.core import masked
from ragrl_jax.learner import advantages
from ragrl_jax.learner.settings import AdvantageSettings

KINDS = ("group_relative", "leave_one_out", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae")


def earning(count=12, seed=0):
  """Sequences in groups of four, with a reward on the last trained token and smaller ones before it."""
  draw = np.random.default_rng(seed)
  made = []
  for number, item in enumerate(small.items(count, seed)):
    trained = np.flatnonzero(item.loss_mask[1:]) + 1
    rewards = np.zeros(len(item.tokens), np.float32)
    rewards[trained[-1]] = draw.integers(0, 2)
    rewards[trained[0]] += 0.25 * draw.integers(0, 2)
    made.append(dataclasses.replace(item, rewards=rewards, group_id=number // 4))
  return made


def read(packed, name="advantages"):
  """Token ids of a sequence → its values. The items of a test have different tokens."""
  ids, column = ([getattr(b, what) for b in packed.blocks] for what in ("tokens", name))
  return {span.of(ids).tobytes(): span.of(column) for span in packed.spans}


def test_group_relative_by_hand():
  # Rewards (1, 0, 0, 0) give 1.5 and -0.5 on every trained token of an episode.
  items = [
    dataclasses.replace(item, rewards=np.where(np.arange(len(item.tokens)) == len(item.tokens) - 1, r, 0.0))
    for item, r in zip(earning(4), (1.0, 0.0, 0.0, 0.0))
  ]
  packed, metrics = advantages.assign(small.packed(items), AdvantageSettings(eps=0.0))
  for item, want in zip(items, (1.5, -0.5, -0.5, -0.5)):
    on = np.where(np.arange(len(item.tokens)) > 0, item.loss_mask, False)
    np.testing.assert_allclose(read(packed)[item.tokens.tobytes()], np.where(on, want, 0.0), rtol=1e-6)
  assert metrics["return_mean"] > 0


def test_reinforce_plus_plus_has_no_lambda():
  """A config's λ may be left from PPO."""
  found = [
    advantages.assign(small.packed(earning()), AdvantageSettings(kind="reinforce_plus_plus", lam=lam))
    for lam in (0.5, 1.0)
  ]
  assert found[0][1] == found[1][1]
  one, other = read(found[0][0]), read(found[1][0])
  assert all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("credit", ["episode", "turn"])
@pytest.mark.parametrize("kind", KINDS)
def test_packing_changes_nothing(kind, credit):
  settings = AdvantageSettings(kind=kind, credit=credit, gamma=0.9, lam=0.8)
  items, found = earning(), []
  for packed in (small.packed(items), small.padded(items), small.packed(items[::-1])):
    draw = lambda b: np.where(b.loss_mask, np.sin(b.tokens + b.positions), np.nan).astype(np.float32)
    values = [draw(b) for b in packed.blocks] if kind == "gae" else None
    packed, metrics = advantages.assign(packed, settings, values=values)
    found.append((read(packed), read(packed, "returns"), metrics))
  for other in found[1:]:
    for one, two in zip(found[0][:2], other[:2]):
      assert one.keys() == two.keys()
      for key in one:
        np.testing.assert_allclose(one[key], two[key], rtol=1e-4, atol=1e-6)
    assert other[2] == pytest.approx(found[0][2], rel=1e-5)


def stretched(item, where=(2, 4)):
  """The same sequence with untrained tokens inserted."""
  insert = lambda x, filler: np.insert(x, list(where), filler)
  return dataclasses.replace(
    item,
    tokens=insert(item.tokens, 7),
    loss_mask=insert(item.loss_mask, False),
    rewards=insert(item.rewards, 0.0),
    advantages=insert(item.advantages, 0.0),
    sampler_logprobs=insert(item.sampler_logprobs, 0.0),
  )


@pytest.mark.parametrize("kind", KINDS)
def test_inserted_untrained_tokens_change_no_advantage(kind):
  settings = AdvantageSettings(kind=kind, gamma=0.9, lam=0.8)
  items = earning()
  on_trained = []
  for variant in (items, [stretched(item) for item in items]):
    packed = small.padded(variant, rows=12)
    # one value per trained token, the same in both
    values = [np.where(b.loss_mask, np.sin(np.cumsum(b.loss_mask, axis=1)), 5.0) for b in packed.blocks]
    batches = advantages.assign(packed, settings, values=values if kind == "gae" else None)[0].blocks
    on_trained.append([batches[0].advantages[row][batches[0].loss_mask[row]] for row in range(12)])
  for one, two in zip(*on_trained, strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def turns(*stretches, group):
  """A sequence of trained stretches, each given as (tokens, reward on the last one), with observations between."""
  mask, rewards = [False], [0.0]
  for size, reward in stretches:
    mask += [True] * size + [False]
    rewards += [0.0] * (size - 1) + [reward, 0.0]
  n = len(mask)
  return dataclasses.replace(
    small.items(1)[0],
    tokens=np.arange(n, dtype=np.int32) + 3 * group,
    loss_mask=np.asarray(mask),
    advantages=np.zeros(n, np.float32),
    sampler_logprobs=np.zeros(n, np.float32),
    rewards=np.asarray(rewards, np.float32),
    group_id=group,
  )


def test_a_turns_return_is_its_own_and_later_rewards():
  # Returns to go: (3, 2) and (1, 1). The second sample has one turn, whose return also counts for the second turn.
  items = [turns((2, 1.0), (1, 2.0), group=0), turns((3, 1.0), group=0)]
  settings = AdvantageSettings(credit="turn", std="none")
  batches = advantages.assign(small.padded(items), settings)[0].blocks
  np.testing.assert_allclose(batches[0].advantages[0, :6], [0, 1, 1, 0, 0.5, 0])
  np.testing.assert_allclose(batches[0].advantages[1, :5], [0, -1, -1, -1, 0])


def test_with_rewards_at_the_end_each_turn_has_its_episodes_advantage():
  items = [turns((2, 0.0), (1, 1.0), group=0), turns((3, 0.0), group=0), turns((1, 0.0), (2, 0.0), (1, 1.0), group=0)]
  found = [
    read(advantages.assign(small.padded(items), AdvantageSettings(credit=credit))[0]) for credit in ("episode", "turn")
  ]
  for key in found[0]:
    np.testing.assert_allclose(found[0][key], found[1][key], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["gae", "reinforce_plus_plus"])
def test_a_reward_after_an_observation_counts_for_earlier_turns(kind):
  items = [turns((2, 0.0), (1, 1.0), group=0), turns((2, 0.0), (1, 0.0), group=1)]
  packed = small.padded(items)
  zeros = [np.zeros(b.tokens.shape, np.float32) for b in packed.blocks]
  settings = AdvantageSettings(kind=kind, whiten=False)
  batches = advantages.assign(packed, settings, values=zeros if kind == "gae" else None)[0].blocks
  np.testing.assert_allclose(batches[0].returns[0, :6], [0, 1, 1, 0, 1, 0])
  assert (batches[0].advantages[0, 1:3] > batches[0].advantages[1, 1:3]).all()


def test_whitening_equals_core_masked():
  batches = advantages.assign(small.padded(earning()), AdvantageSettings(kind="reinforce_plus_plus"))[0].blocks
  stack = lambda name: np.concatenate([getattr(b, name) for b in batches])
  rewards, mask = stack("rewards"), stack("loss_mask")
  returns, _ = core.gae(rewards, np.zeros_like(rewards), mask, gamma=1.0, lam=1.0)
  np.testing.assert_allclose(stack("advantages"), masked.whiten(returns, mask), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(stack("returns"), returns, rtol=1e-6)
  of = lambda settings: advantages.assign(small.padded(earning()), settings)[0].blocks
  centred, plain = of(AdvantageSettings(kind="reinforce_plus_plus_baseline")), of(AdvantageSettings(std="none"))
  want = masked.whiten(np.concatenate([b.advantages for b in plain]), stack("loss_mask"))
  np.testing.assert_allclose(np.concatenate([b.advantages for b in centred]), want, rtol=1e-4, atol=1e-6)


def test_a_kl_penalty_is_subtracted_from_the_reward():
  items = earning(4)
  packed = small.padded(items, rows=4)
  taken = [np.full(b.tokens.shape, 0.5, np.float32) for b in packed.blocks]
  got = read(advantages.assign(packed, AdvantageSettings(kind="leave_one_out"), penalties=taken)[0])
  total = np.asarray([(item.rewards - 0.5 * item.loss_mask)[1:][item.loss_mask[1:]].sum() for item in items])
  want = core.leave_one_out(jnp.asarray(total), jnp.zeros(4, jnp.int32))
  for item, one in zip(items, want):
    assert got[item.tokens.tobytes()].sum() == pytest.approx(float(one) * item.loss_mask[1:].sum(), rel=1e-4)


def test_explained_variance():
  packed = small.padded(earning())
  settings = AdvantageSettings(kind="gae")
  found, _ = advantages.assign(packed, settings, values=[0 * b.rewards for b in packed.blocks])
  returns = [b.returns for b in found.blocks]
  assert advantages.assign(packed, settings, values=returns)[1]["explained_variance"] == pytest.approx(1.0)
  constant = [np.full(r.shape, 3.0, np.float32) for r in returns]
  assert advantages.assign(packed, settings, values=constant)[1]["explained_variance"] == pytest.approx(0.0, abs=1e-6)


def test_no_trained_tokens_give_no_advantages():
  packed, metrics = advantages.assign(small.packed([]), AdvantageSettings())
  assert not packed.blocks[0].advantages.any() and metrics == dict(return_mean=0.0)


def test_invalid_arguments_are_refused():
  items = [dataclasses.replace(item, rewards=np.full(len(item.tokens), np.nan, np.float32)) for item in small.items(2)]
  with pytest.raises(ValueError, match="a reward is nan"):
    advantages.assign(small.packed(items), AdvantageSettings())
  for how, word in (
    (dict(kind="dpo"), "config.advantage.kind"),
    (dict(credit="token"), "'episode' or 'turn'"),
    (dict(lam=1.5), "between 0 and 1"),
  ):
    with pytest.raises(ValueError, match=word):
      AdvantageSettings(**how)


def joined(packed, name):
  """The values of each episode, its rows one after the other."""
  column = [getattr(b, name) for b in packed.blocks]
  return [np.concatenate([span.of(column) for span in own]) for own in packed.by_episode()]


def cut(item, episode):
  """The same sequence as two rows of an episode; the second begins with the untrained token between two turns."""
  at = 1 + int(np.flatnonzero(~item.loss_mask[1:])[0])
  part = lambda piece: {
    name: getattr(item, name)[piece] for name in ("tokens", "loss_mask", "advantages", "sampler_logprobs", "rewards")
  }
  return [dataclasses.replace(item, **part(piece), episode=episode) for piece in (slice(at), slice(at, None))]


@pytest.mark.parametrize("credit", ["episode", "turn"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_an_episode_have_the_advantages_of_one(kind, credit):
  """An episode in two rows, of which one has no reward, is compared as one episode."""
  settings = AdvantageSettings(kind=kind, credit=credit, gamma=0.9, lam=0.8)
  drawn = np.random.default_rng(0).integers(0, 3, (6, 2)) / 2
  items = [turns((2 + number, first), (3, last), group=number // 3) for number, (first, last) in enumerate(drawn)]
  rows = [row for number, item in enumerate(items) for row in (cut(item, (0, number)) if number % 2 else [item])]
  found = []
  for some in (items, rows):
    packed = small.packed(some)
    values = [np.where(b.loss_mask, np.sin(b.tokens), np.nan).astype(np.float32) for b in packed.blocks]
    packed, metrics = advantages.assign(packed, settings, values=values if kind == "gae" else None)
    found.append((joined(packed, "advantages"), joined(packed, "returns"), metrics))
  for mine, theirs in zip(found[0][:2], found[1][:2]):
    for one, two in zip(mine, theirs, strict=True):
      np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
  assert found[1][2] == pytest.approx(found[0][2], rel=1e-5) and any(np.abs(one).max() > 0 for one in found[0][0])
