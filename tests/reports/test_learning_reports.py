"""Faults of learning that users of other trainers reported, tried here with our own inputs; threads name the kind."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_learner
from flax import nnx

from ragrl_jax import recipes, structs
from ragrl_jax.core import logprobs
from ragrl_jax.learner import advantages, optimizer
from ragrl_jax.learner.learner import Learner
from ragrl_jax.learner.settings import AdvantageSettings, OptimizerSettings, Settings
from ragrl_jax.models import lora
from ragrl_jax.run import rewards
from ragrl_jax.structs import Episode, Example

RECIPE = recipes.get("search_r1")
EXAMPLE = Example("q", "What is the capital of France?", ("Paris",))


def episode(answer, sample, *, prompt=0, failed=False, tokens=2):
  said = structs.Segment(structs.MODEL, (5, 6)[:tokens], f"<answer>{answer}</answer>", (-0.5,) * tokens, "</answer>")
  segments = (structs.Segment(structs.ENVIRONMENT, (1,), "q"), said)
  ended = dict(ended="failed", failure="down") if failed else dict(ended="answer")
  return Episode(segments, facts=dict(answer=answer), prompt_index=prompt, sample=sample, example_id="q", **ended)


def trained(episodes, kind="group_relative", **how):
  """The mean advantage of each episode's trained tokens; None for one that does not train."""
  scored = rewards.score(RECIPE, [EXAMPLE] * len(episodes), episodes, 0)
  items, *_ = advantages.assign(rewards.items(scored), AdvantageSettings(kind=kind, **how))
  return [one.advantage for one in rewards.with_advantages(scored, items)]


@pytest.mark.parametrize(
  ("how", "right", "wrong"),
  [
    # Rewards 1, 0, 0: mean 1/3; sample deviation sqrt((4/9 + 1/9 + 1/9) / 2) = .57735.
    (dict(std="sample"), 1.1547, -0.57735),
    (dict(std="none"), 2 / 3, -1 / 3),
    (dict(kind="leave_one_out"), 1.0, -0.5),
  ],
)
@pytest.mark.parametrize("masked", [dict(failed=True), dict(tokens=0)])
def test_samples_that_do_not_train_count_in_no_mean(how, right, wrong, masked):
  """NeMo-RL #3467: masked samples stay in their group's mean and deviation."""
  group = [episode("Paris", 0), episode("Paris", 1, **masked), episode("Rome", 2), episode("Oslo", 3)]
  assert trained(group, **how) == [pytest.approx(right, rel=1e-3), None, *[pytest.approx(wrong, rel=1e-3)] * 2]


def test_a_question_that_is_drawn_twice_is_two_groups():
  """rllm #605, #776, NeMo-RL #4013: groups by the rendered prompt, or by the sample."""
  draws = [episode(answer, i % 2, prompt=i // 2) for i, answer in enumerate(("Paris", "Rome", "Paris", "Paris"))]
  # The first draw has a right and a wrong answer, the second two right ones: no signal. As one group all would train.
  assert trained(draws, std="none") == [0.5, -0.5, 0.0, 0.0]


def test_a_resumed_schedule_goes_on_where_it_was():
  """optax #1036, jNO #115: the schedule begins again after a resume."""
  settings = OptimizerSettings(learning_rate=0.4, warmup_steps=2, schedule="cosine", total_steps=6, kind="adamw")
  params, pull = dict(layers=dict(q=jnp.ones((2, 4)))), lambda tree: jax.tree.map(lambda x: 0.1 * x, tree)

  def steps(count, params, state):
    for _ in range(count):
      updates, state = optimizer.make(settings).update(pull(params), state, params)
      params = optax.apply_updates(params, updates)
    return params, state

  whole, _ = steps(6, params, optimizer.make(settings).init(params))
  for stop in (1, 3, 5):
    half = steps(stop, params, optimizer.make(settings).init(params))
    again, _ = steps(6 - stop, *jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), half))
    np.testing.assert_array_equal(whole["layers"]["q"], again["layers"]["q"])


def test_the_reference_of_a_run_from_adapters_is_the_policy_that_it_starts_from():
  """TRL #3194, unsloth #2288, verifiers #120: KL against the bare base when RL starts from SFT adapters."""
  model, draw = small_learner.model(), np.random.default_rng(0)
  lora.add(model, rank=4, alpha=8.0, layers="q v", seed=0)
  begun = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), x.dtype), nnx.state(model, lora.Adapter))
  nnx.update(model, begun)
  learner = Learner(model, Settings(logprob_chunk=64, kl="k3", kl_coef=0.1), small_learner.OPTIMIZER)
  for have, want in zip(jax.tree.leaves(learner.reference), jax.tree.leaves(learner.params), strict=True):
    np.testing.assert_array_equal(have, want)
  assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(learner.reference)) > 1


def test_rows_of_the_vocabulary_without_a_token_have_no_probability():
  """OpenRLHF #1117, vLLM #13175, rllm #751, RL-Factory #45: ids of padding rows are sampled, then refused."""
  # Rows 3 and 4 have no token; without them the softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8.
  logits = logprobs.without(jnp.log(jnp.array([[1.0, 2.0, 5.0, 900.0, 70.0]])), ((3, 5),))
  np.testing.assert_allclose(jax.nn.softmax(logits), [[1 / 8, 2 / 8, 5 / 8, 0, 0]], rtol=1e-6)
  assert not np.isin(jax.random.categorical(jax.random.key(0), logits, shape=(500,)), (3, 4)).any()


FULL = Settings(aggregation="seq_mean_token_mean", kl="k3", kl_coef=0.3, logprob_chunk=64, temperature=0.7)


@pytest.mark.slow  # compiles a learner's programs
def test_the_loss_does_not_depend_on_micro_batches():
  """TRL #3021, #3231, open-instruct #1161, mlx-lm #1413: means of the means of micro-batches."""
  learner = small_learner.learner(Settings(aggregation="token_mean", logprob_chunk=64))
  sequences = small_learner.items(16, seed=1)
  want, grads = small_learner.gradient(learner, small_learner.blocks(sequences))
  parts = [block for i in range(0, 16, 2) for block in small_learner.blocks(sequences[i : i + 2])]
  got, others = small_learner.gradient(learner, parts)
  # The loss is a sum of terms near 1 that nearly cancel, in float32.
  assert got == pytest.approx(want, abs=1e-6) and small_learner.distance(grads, others) < 1e-5


@pytest.mark.slow  # compiles a learner's programs
def test_the_kl_of_the_policy_with_itself_is_0_at_any_temperature():
  """tinker-cookbook #689: log-probabilities of the policy and of its reference at other temperatures."""
  learner = small_learner.learner(FULL)
  _, metrics = small_learner.update(learner, learner.init(0), small_learner.blocks(small_learner.items()))
  assert metrics["kl"] == 0.0 and FULL.temperature != 1.0
