"""A teacher, its distillation, self-teaching and information gains on the tiny world; runs that resume exactly."""

import json

import pytest
import tiny_world

from ragrl_jax import config as config_lib
from ragrl_jax.jobs import sft

pytestmark = pytest.mark.long  # the runs and their programs


def chosen(world, variant, **teacher):
  """The tiny world's run with the algorithm and the teacher of a variant."""
  rules = config_lib.load("search_r1", variant)
  made = tiny_world.config(world, variant="sft" if "sft" in variant else "")
  for name in ("advantage", "loss", "critic"):
    made[name].update(rules[name])
  made.critic.update(dict(learning_rate=1e-2, warmup_steps=1))
  made.loss.teacher.update(teacher)
  if made.advantage.kind == "gae":
    made.rollout.update(dict(prompts_per_step=6, group_size=1))
  return made


def test_dgpo_after_its_warm_start(world, tmp_path):
  config = tiny_world.config(world, variant="sft")
  config.seed = 1
  list(sft.sft(config, tmp_path / "teacher"))
  path = str(tmp_path / "teacher" / "model")
  config = chosen(world, "dgpo,sft", path=path)
  first, *_, last = sft.sft(config, tmp_path / "warm")
  assert last["loss"] == pytest.approx(last["teacher_kl"], rel=0.5) and last["loss"] < 0.8 * first["loss"]
  config = chosen(world, "dgpo", path=path)
  config.model.path = str(tmp_path / "warm" / "model")
  rows = tiny_world.resumed(config, tmp_path)
  assert all(row["taught"] == pytest.approx(1 - row["outcome"], abs=0.5) and "teacher_kl" in row for row in rows)
  assert "loss.teacher.path" in json.loads((tmp_path / "whole" / "contents.json").read_text())


def test_information_gains(world, tmp_path):
  config = tiny_world.config(world)
  config.advantage.credit = "information"
  rows = tiny_world.resumed(config, tmp_path)
  assert all(row["information_gain"] and row["zero_advantage_share"] < 1 for row in rows)


def test_opsd(world, tmp_path):
  rows = tiny_world.resumed(chosen(world, "opsd", tokens="all", tells="answer"), tmp_path)
  assert all(0 < row["taught"] <= 1 and row["teacher_kl"] > 0 for row in rows)
