"""The run files of the recipes that search, on a tiny world: their own rules, a model of a few thousand parameters."""

import math
import pathlib

import pytest
import tiny_world

from ragrl_jax import config as config_lib
from ragrl_jax import train

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  folder = tmp_path_factory.mktemp("world")
  tiny_world.make(folder)
  return folder


@pytest.mark.slow  # programs of its own shapes
@pytest.mark.parametrize("name", ["veritas", "when_to_search"])
def test_two_steps(world, tmp_path, name):
  load = lambda variant="": config_lib.load(CONFIGS / f"{name}.py", variant)
  config = tiny_world.config(world, lambda variant: load("smoke"))
  config.steps, config.prompting.chat, config.judge.kind = 2, False, "lexical"
  config.model.update(dict(dtype="float32", remat=False))
  config.switches.instructions = "none"
  if name == "when_to_search":
    config.steps = 3
    config.rollout.filter.metric = "none"  # what a model without training says is all worth the same
    config.switches.update(dict(settle_metric="searches", settle_patience=1))
  rows = list(train.train(config, tmp_path))
  assert all(row["tokens"] > 0 and math.isfinite(row["loss"]) for row in rows)
  if name == "when_to_search":  # searches had not risen from step 1 to 2
    assert [row["weight/answer_economise"] for row in rows] == [0.0, 0.0, 1.0]
  terms = {key.removeprefix("term/") for key in rows[0] if key.startswith("term/")}
  assert terms == {
    "veritas": {"answer", "information_think", "think_answer", "think_search"},
    "when_to_search": {"answer_explore", "answer_economise", "search", "format"}}[name]
