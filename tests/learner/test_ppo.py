"""The critic, mini-batches, penalties in the reward, and adaptive coefficients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small
from flax import nnx
from refusals import refused

from ragrl_jax.core import guards, kl as kl_lib
from ragrl_jax.learner import advantages, packing, step
from ragrl_jax.learner.learner import Learner, NonFinite, drain
from ragrl_jax.learner.settings import AdvantageSettings, CriticSettings, OptimizerSettings, Settings
from ragrl_jax.models import lora

pytestmark = pytest.mark.usefixtures("share_programs")
GAE = AdvantageSettings(kind="gae", gamma=0.95, lam=0.9)
FAST = OptimizerSettings(learning_rate=3e-2, total_steps=100, weight_decay=0.0)


def ppo(kind, **how):
  critic = CriticSettings(kind=kind, optimizer=FAST, **{k: how.pop(k) for k in ("alone_steps", "coef") if k in how})
  return Settings(advantage=GAE, critic=critic, logprob_chunk=64, **how)


def earning(count=12):
  """The first token decides the reward, so a critic can predict it."""
  return [small.earning(item, item.tokens[0] % 2) for item in small.items(count)]


@pytest.fixture(scope="module")
def own():
  return small.learner(ppo("own", minibatches=2, kl="k1", kl_in="reward", kl_coef=0.05))


@pytest.mark.long  # some sixty steps
def test_a_critic_of_its_own_learns_the_returns(own):
  minibatches = [earning()[:6], earning()[6:]]
  state, first = small.update(own, own.init(0), *minibatches)
  assert (int(state.step), int(state.critic.step)) == (2, 2)
  for _ in range(30):
    state, metrics = small.update(own, state, *minibatches)
  assert metrics["explained_variance"] > 0.5 > first["explained_variance"]
  assert metrics["value_loss"] < 0.5 * first["value_loss"] and metrics["critic_skipped"] == 0
  assert small.distance(own.critic.params, state.critic.params) > 1e-3  # trunk and head have changed
  assert first["value_mean"] == 0.0  # a new head predicts 0


def test_the_first_step_by_hand(own):
  """GAE over the KL-penalised rewards, whitened over both mini-batches; then the clipped surrogate."""
  state, items = own.init(0), earning()
  halves = small.pack([items[:6], items[6:]])
  reference = jax.tree.map(lambda x: x + 0.02, own.reference)
  moved = small.learner(own.settings, reference=reference)
  ready = moved.prepare(state, [items[:6], items[6:]], small.pack)
  blocks = [b for part in halves for b in part.blocks]
  old = [np.asarray(own.score(state.params, b)) for b in blocks]
  ref = [np.asarray(own.score(reference, b)) for b in blocks]
  values = [np.asarray(own.values(state, b)) for b in blocks]
  paid = [0.05 * (o - r) for o, r in zip(old, ref)]  # k1
  spans = packing.join(halves).spans
  of_items = lambda arrays: [span.of(arrays) for span in spans]
  want, returns, _ = advantages.assign(items, GAE, values=of_items(values), penalties=of_items(paid))
  got = [b for part in ready.minibatches for b in part]
  for name, column in (("advantages", [item.advantages for item in want]), ("returns", returns)):
    for a, b in zip(column, of_items([np.asarray(getattr(b, name)) for b in got]), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  for a, b in zip(want, ready.items, strict=True):
    np.testing.assert_allclose(a.advantages, b.advantages, rtol=1e-4, atol=1e-5)
  for b, o, r, v in zip(got, old, ref, values):
    np.testing.assert_allclose(b.old_logprobs, o, rtol=1e-5)
    np.testing.assert_allclose(b.ref_logprobs, r, rtol=1e-5)
    np.testing.assert_allclose(b.values, v)
  _, metrics = drain(moved.train(state, ready))
  whitened = np.concatenate([np.asarray(b.advantages)[b.loss_mask] for b in got])
  assert abs(whitened.mean()) < 1e-5 and whitened.std(ddof=1) == pytest.approx(1.0, rel=1e-4)
  assert metrics["tokens"] == whitened.size and metrics["sequences"] == 12
  assert metrics["ratio"] != 1.0  # the second step's policy is no longer the old policy


def test_a_shared_trunk_learns_from_both_losses():
  learner = small.learner(ppo("shared", coef=2.0))
  batches, state = earning(), learner.init(0)
  policy = learner.policy(state.params)
  assert set(policy) == set(nnx.split(small.model())[1])  # what engines use
  np.testing.assert_array_equal(policy["embedding"][...], small.model().embedding[...])
  state, first = small.update(learner, state, batches)
  assert first["loss"] == pytest.approx(first["policy_loss"] + 2.0 * first["value_loss"], rel=1e-5)
  for _ in range(30):
    state, metrics = small.update(learner, state, batches)
  assert metrics["value_loss"] < 0.5 * first["value_loss"] and metrics["explained_variance"] > 0.5
  assert state.critic is None


def test_a_value_is_clipped_around_the_old_one():
  """Values of 1 that were 0, returns of 2: half of 1.5 or 1.75 squared, or without a clip half of 1."""
  (batch,) = small.blocks(small.items())
  at = lambda value: np.full(batch.loss_mask.shape, value, np.float32)
  batch, totals = dataclasses.replace(batch, values=at(0.0), returns=at(2.0)), (batch.loss_mask.sum(), 10)
  for clip, want in ((0.5, 1.125), (0.25, 1.53125), (None, 0.5)):
    critic = CriticSettings(kind="own", optimizer=FAST, clip=clip)
    loss = step._value(at(1.0), batch, totals, Settings(advantage=GAE, critic=critic))
    assert float(loss) == pytest.approx(want)


def test_the_critic_can_learn_alone_first():
  learner = small.learner(ppo("own", alone_steps=2))
  batches, state = earning(), learner.init(0)
  before = jax.tree.map(np.asarray, state.params)
  for done in (1, 2):
    state, metrics = small.update(learner, state, batches)
    assert (int(state.critic.step), int(state.step), metrics["skipped"]) == (done, 0, 0.0)
    assert "policy_loss" not in metrics and "entropy" not in metrics  # nothing of the policy was measured
  assert small.distance(before, state.params) == 0.0
  state, _ = small.update(learner, state, batches)
  assert (int(state.critic.step), int(state.step)) == (3, 1) and small.distance(before, state.params) > 0


def test_a_gradient_of_the_critic_that_is_not_finite_is_skipped(own):
  bad = [dataclasses.replace(item, rewards=np.full_like(item.rewards, 1e25)) for item in earning()]
  state = own.init(0)
  before = jax.tree.map(np.asarray, state.critic)
  state, metrics = small.update(own, state, bad)
  assert metrics["critic_skipped"] == 1
  assert small.distance((before.params, before.opt_state), (state.critic.params, state.critic.opt_state)) == 0.0
  state, _ = small.update(own, state, bad)
  says = "critic: 3 optimiser steps in a row.*Lower config.critic.learning_rate, and"
  refused(says, small.update, own, state, bad, error=NonFinite)


def test_mini_batches_are_steps_of_their_own():
  """Two mini-batches take the same steps as two updates that use the old policy of the first."""
  settings = Settings(logprob_chunk=64, epochs=2, minibatches=2)
  learner, items = small.learner(settings), small.items(12)
  halves = [small.blocks(items[:6]), small.blocks(items[6:])]
  state, metrics = small.update(learner, learner.init(0), *halves)
  assert int(state.step) == 4 and metrics["optimizer_step"] == 4 and metrics["ratio"] != 1.0
  hand = learner.init(0)
  blocks = [[dataclasses.replace(b, old_logprobs=learner.score(hand.params, b)) for b in part] for part in halves]
  for part in blocks * 2:
    _, grads = small.gradient(learner, part, hand.params)
    hand, _ = learner.trained.apply(hand, grads, learner.trained.zeros(hand.params)[1])
  assert small.distance(state.params, hand.params) == 0.0
  # A mini-batch without scores takes no step.
  state, metrics = small.update(learner, learner.init(0), halves[0], small.blocks([]))
  assert int(state.step) == 2


def test_the_kl_coefficient_is_adapted_to_its_target():
  how = dict(kl_coef=0.1, kl_target=1e-9, advantage=AdvantageSettings(std="none"))
  learner = small.learner(Settings(logprob_chunk=64, kl="k2", **how))
  batches, state = earning(), learner.init(0)
  state, first = small.update(learner, state, batches)
  assert first["kl_coef"] == pytest.approx(0.1) and first["kl"] < 1e-9
  # At the reference KL is 0: clip(0 / target - 1, -0.2) = -0.2, for 12 of 10,000 sequences.
  assert float(state.kl_coef) == pytest.approx(0.1 * (1 - 0.2 * 0.0012))
  state, second = small.update(learner, state, batches)
  assert second["kl"] > 1e-9 and second["kl_coef"] == pytest.approx(0.1 * (1 - 0.2 * 0.0012))
  want = kl_lib.adapted_coefficient(second["kl_coef"], second["kl"], target=1e-9, num_sequences=12)
  assert float(state.kl_coef) == pytest.approx(want, rel=1e-6)
  # A skipped step has no KL, and leaves the coefficient as it was.
  state = dataclasses.replace(state, params=jax.tree.map(lambda x: x * jnp.nan, state.params))
  state, third = small.update(learner, state, batches)
  assert third["skipped"] == 1 and np.isnan(third["kl"]) and float(state.kl_coef) == pytest.approx(want, rel=1e-6)
  # On resuming, an adaptive coefficient is kept; a fixed one is the settings', and so is that of a run that had none.
  assert learner.resumed(state) is state
  without = dataclasses.replace(state, kl_coef=0 * state.kl_coef)
  assert float(learner.resumed(without).kl_coef) == pytest.approx(0.1)
  fixed = small.learner(Settings(logprob_chunk=64, kl="k2", kl_coef=0.7))
  assert float(fixed.resumed(state).kl_coef) == pytest.approx(0.7)


def test_importance_weights_correct_for_the_sampler():
  learner = small.learner(Settings(logprob_chunk=64, importance_cap=1.5))
  (batch,) = small.blocks(small.items())
  ours, ratios = np.asarray(learner.score(learner.params, batch)), 1 + batch.tokens % 3
  drawn = np.where(batch.loss_mask, ours - np.log(ratios), np.nan).astype(np.float32)
  loss, _ = small.gradient(learner, [dataclasses.replace(batch, sampler_logprobs=drawn)])
  want = -(np.minimum(ratios, 1.5) * batch.advantages)[batch.loss_mask].mean()
  assert loss == pytest.approx(float(want), rel=1e-4)
  capped = guards.importance_weights(jnp.zeros((1, 2)), jnp.asarray([[-200.0, 200.0]]), jnp.ones((1, 2)), cap=2.0)
  np.testing.assert_allclose(capped, [[2.0, np.exp(-20.0)]], rtol=1e-5)
  refused("importance_cap=0.5", guards.importance_weights, *jnp.ones((3, 1, 2)), cap=0.5)


def test_only_adapters_are_trained_and_with_new_ones_the_reference_is_the_base():
  model = small.model()
  lora.add(model, rank=2, alpha=4.0, layers="q v", seed=0)
  learner = Learner(model, ppo("shared", kl="k3", kl_coef=0.1), FAST)
  state, batches = learner.init(0), earning()
  sizes = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  assert sizes(state.params) == 4 * 2 * 2 * 16 + 17  # A and B of two matrices in two layers, and the value head
  assert sizes(state.opt_state) < 2 * sizes(state.params) + 10  # two moments each, and the counts
  before = jax.tree.map(np.asarray, learner.trained.frozen)
  for _ in range(3):
    state, metrics = small.update(learner, state, batches)
  assert metrics["update_norm"] > 0 and small.distance(before, learner.trained.frozen) == 0.0
  base = small.learner()
  for batch in small.blocks(batches):
    want = np.asarray(base.score(base.params, batch))
    np.testing.assert_allclose(learner.score(learner.reference, batch), want, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(learner.score(state.params, batch)) - want).max() > 1e-4
  assert set(learner.policy(state.params)) == {"layers"}  # adapters without the value head, which engines use
