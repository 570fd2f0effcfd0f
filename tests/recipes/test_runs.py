"""The configs of recipes that search or ask a judge, with a few thousand parameters on a tiny world."""

import math

import pytest
import reading_world
import tiny_world

from ragrl_jax.data import readers, writers
from ragrl_jax.jobs import train


def terms(rows):
  return {key.removeprefix("term/") for key in rows[0] if key.startswith("term/")}


@pytest.mark.long  # compiles programs for its own shapes
@pytest.mark.parametrize("name", ["veritas", "when_to_search"])
def test_two_steps(world, tmp_path, name):
  config = tiny_world.config(world, name, "ngrams,smoke" if name == "when_to_search" else "smoke")
  config.steps, config.prompting.chat, config.judge.kind = 2, False, dict(veritas="lexical").get(name, "exact")
  config.model.update(dict(dtype="float32", remat=False))
  config.switches.instructions = "none"
  if name == "veritas":  # one judge for each of two terms
    config.switches.judge_answer = True
    config.judges.think_answer.threshold = 1.0
    epoch = len(list(readers.read_examples(config.data.train))) / config.rollout.prompts_per_step
    config.switches.update(dict(ramp_start_epochs=0.0, ramp_end_epochs=2 / epoch))  # full in step 2
  if name == "when_to_search":
    config.steps = 3
    config.rollout.filter.metric = "none"  # all replies of an untrained model earn the same
    config.switches.update(dict(settle_metric="searches", settle_patience=1))
  rows = list(train.train(config, tmp_path))
  assert all(row["tokens"] > 0 and math.isfinite(row["loss"]) for row in rows)
  if name == "veritas":
    assert [row["weight/information_think"] for row in rows] == pytest.approx([0.025, 0.05])
    assert {"unearned/copied", "unearned/unthought"} <= rows[0].keys()
  if name == "when_to_search":  # searches had not risen from step 1 to 2
    assert [row["weight/answer_economise"] for row in rows] == [0.0, 0.0, 1.0]
  named = dict(veritas="answer information_think think_answer think_search")
  assert terms(rows) == set(named.get(name, "answer_explore answer_economise search format").split())


@pytest.mark.long  # compiles programs for its own shapes
def test_two_steps_with_passages_at_hand_and_a_judge(world, tmp_path):
  config = tiny_world.config(world, "arena", "judge,smoke")
  config.steps, config.prompting.chat, config.retrieval.index = 2, False, ""
  config.switches.instructions = "none"
  config.rollout.update(dict(context=512, prefill=64))
  config.learner.row_lengths = (512,)
  made = reading_world.build(reading_world.Settings(seed=0, entities=24, held_out=12, syllables=12))
  asked = reading_world.questions(made, 6, passages=3, distinct=False)
  writers.write_examples(tmp_path / "asked.jsonl", asked)
  config.data.train = config.data.evaluate = str(tmp_path / "asked.jsonl")
  rows = list(train.train(config, tmp_path / "run"))
  assert all(row["tokens"] > 0 and math.isfinite(row["loss"]) and math.isfinite(row["kl"]) for row in rows)
  assert terms(rows) == {"format", "accuracy", "relevance", "bonus"}
