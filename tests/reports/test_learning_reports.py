"""Faults of learning that users of other trainers reported, tried here with our own inputs; threads name the kind."""

import pytest
import small_learner

from ragrl_jax import recipes, structs
from ragrl_jax.learner import advantages
from ragrl_jax.learner.settings import AdvantageSettings, Settings
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


@pytest.mark.parametrize(("how", "right", "wrong"), [
  # Rewards 1, 0, 0: mean 1/3; sample deviation sqrt((4/9 + 1/9 + 1/9) / 2) = .57735.
  (dict(std="sample"), 1.1547, -0.57735), (dict(std="none"), 2 / 3, -1 / 3), (dict(kind="leave_one_out"), 1.0, -0.5),
])  # fmt: skip
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


FULL = Settings(aggregation="seq_mean_token_mean", kl="k3", kl_coef=0.3, logprob_chunk=64, temperature=0.7)


@pytest.mark.slow  # compiles a learner's programs
def test_the_kl_of_the_policy_with_itself_is_0_at_any_temperature():
  """tinker-cookbook #689: log-probabilities of the policy and of its reference at other temperatures."""
  learner = small_learner.learner(FULL)
  _, metrics = small_learner.update(learner, learner.init(0), small_learner.blocks(small_learner.items()))
  assert metrics["kl"] == 0.0 and FULL.temperature != 1.0
