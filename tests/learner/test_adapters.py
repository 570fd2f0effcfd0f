"""Training adapters: the arrays with an optimizer state, the unchanged arrays, and the reference policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as kit
from flax import nnx

from ragrl_jax.learner.learner import Learner
from ragrl_jax.learner.settings import AdvantageSettings, CriticSettings, Settings
from ragrl_jax.models import lora
from ragrl_jax.parallel import rules

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("share_programs")]  # a learner for each objective


def learner(**settings):
  model = kit.model()
  lora.add(model, rank=4, alpha=8.0, layers="q v|down", seed=0)
  return Learner(model, Settings(logprob_chunk=64, **settings), kit.OPTIMIZER)


def names(tree):
  return {"/".join(rules.names_of(path)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf.ndim}


def test_supervised_steps_train_adapters_and_nothing_else():
  made = learner(objective="sft")
  before = jax.tree.map(lambda x: np.asarray(x).tobytes(), made.trained.frozen)
  state = made.init(0)
  adapters = {f"layers/{n}_lora_{s}" for n in ("q", "v", "down") for s in "ab"}
  assert names(state.params) == adapters
  assert {"/".join(name.split("/")[-2:]) for name in names(state.opt_state)} == adapters
  batches = kit.blocks([dataclasses.replace(item, advantages=np.ones_like(item.advantages)) for item in kit.items()])
  losses = []
  for _ in range(8):
    state, metrics = kit.update(made, state, batches)
    losses.append(metrics["loss"])
  assert losses[-1] < losses[0] - 0.01
  assert jax.tree.map(lambda x: np.asarray(x).tobytes(), made.trained.frozen) == before


def test_a_critic_over_a_base_of_16_bits_is_trained_in_32():
  model = kit.model()
  nnx.update(model, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), nnx.state(model, nnx.Param)))
  lora.add(model, rank=4, alpha=8.0, layers="q v", seed=0)
  critic = CriticSettings(kind="own", optimizer=kit.OPTIMIZER)
  settings = Settings(logprob_chunk=64, advantage=AdvantageSettings(kind="gae"), critic=critic)
  state = Learner(model, settings, kit.OPTIMIZER).init(0)
  assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.critic.params))} == {jnp.dtype("float32")}
  assert model.embedding[...].dtype == jnp.bfloat16  # the base itself is as it was


def test_the_reference_is_the_policy_at_the_start_however_it_is_stored_or_the_base_on_request():
  # What was learnt before is in adapters or merged: KL is 0 at the first step, and the reference stays as it is.
  model, draw = kit.model(), np.random.default_rng(0)
  lora.add(model, rank=4, alpha=8.0, layers="q v|down", seed=0)
  begun = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.1, x.shape), x.dtype), nnx.state(model, lora.Adapter))
  nnx.update(model, begun)
  settings = Settings(logprob_chunk=64, kl="k3", kl_coef=0.1)
  batches = kit.blocks(kit.items())
  of_base = kit.learner().score(kit.learner().params, batches[0])
  made, whole = (Learner(one, settings, kit.OPTIMIZER) for one in (model, lora.merged(model)))
  np.testing.assert_allclose(*(one.score(one.reference, batches[0]) for one in (made, whole)), atol=1e-5)
  assert np.abs(np.asarray(made.score(made.reference, batches[0])) - of_base).max() > 1e-3
  state, first = kit.update(made, made.init(0, keep=False), batches)
  assert first["kl"] == 0.0 and kit.update(whole, whole.init(0), batches)[1]["kl"] == 0.0
  kept = jax.tree.map(np.asarray, made.reference)
  state, second = kit.update(made, state, batches)
  assert second["kl"] > 0.0
  jax.tree.map(np.testing.assert_array_equal, kept, jax.tree.map(np.asarray, made.reference))
  # A run that goes on reads the same adapters: it has this reference, whatever its state.
  again = Learner(model, settings, kit.OPTIMIZER)
  np.testing.assert_array_equal(again.score(again.reference, batches[0]), made.score(made.reference, batches[0]))
  # On request it is the base, before and after steps that move away from it.
  based = Learner(model, dataclasses.replace(settings, reference="base"), kit.OPTIMIZER)
  gain = lambda params: float((np.asarray(based.score(params, batches[0])) * batches[0].advantages).sum())
  state = based.init(0)
  first = gain(state.params)
  for steps in (0, 4):
    for _ in range(steps):
      state, metrics = kit.update(based, state, batches)
    np.testing.assert_allclose(based.score(based.reference, batches[0]), of_base, atol=1e-5)
  assert metrics["kl"] > 1e-6 and gain(state.params) > first
  new = learner(kl="k3", kl_coef=0.1, reference="base")
  assert kit.update(new, new.init(0), batches)[1]["kl"] == 0.0  # new adapters have no effect yet
