"""Every file under configs/ gives valid settings, in every variant, and names a recipe that takes its switches."""

import importlib.util
import pathlib

import pytest

from ragrl_jax import config as config_lib
from ragrl_jax import recipes

FILES = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))
VARIANTS = {
  "quickstart": ("", "sft"),
  "arena": ("", "smoke", "repo", "f1", "judge", "judge,smoke", "no_bonus", "naive", "direct", "k3", "without_2wiki",
            "sft", "sft,direct,smoke"),
  "care": ("", "smoke", "repo", "mean", "no_retrieval", "easy_only", "sft", "sft,smoke"),
  "untrained": ("", "smoke", "closed_book", "cot", "ircot,smoke", "iter_retgen", "self_ask", "skr"),
  "veritas": ("", "smoke", "em", "em_it", "em_ta", "em_format", "no_ramp", "repo", "reward_model"),
  "when_to_search": ("", "smoke", "table", "exact", "printed", "no_search_reward", "no_stage_one", "no_stage_two",
                     "no_answer_reward", "unified"),
  "lear": ("", "smoke", "sft", "inference", "vanilla", "rationale,sft", "generator,sft,smoke", "answers_r", "answers_e",
           "answers_f", "answers_er", "answers_ef"),
}


def load(path):
  spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize("path, variant", [
  (path, variant) for path in FILES for variant in VARIANTS.get(path.stem, ("", "smoke", "repo"))],
  ids=lambda x: getattr(x, "stem", x or "default"))
def test_config_is_valid(path, variant):
  config = load(path).get_config(variant)
  config_lib.validate(config)
  recipe = recipes.get(config.recipe, config.preset, **config.switches.to_dict())
  assert recipe.name == config.recipe
  assert config.is_locked


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_begins_with_its_story(path):
  story = load(path).__doc__
  assert "Run:" in story and "Expect:" in story


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "quickstart"], ids=lambda path: path.stem)
def test_smoke_changes_no_rule(path):
  full, small = load(path).get_config(), load(path).get_config("smoke")
  full.optimizer.warmup_steps = small.optimizer.warmup_steps  # a length, not a rule
  full.loss.minibatches = small.loss.minibatches  # no more of them than prompts
  for rule in ("recipe", "preset", "switches", "loss", "advantage", "optimizer", "retrieval"):
    assert full[rule] == small[rule], rule
