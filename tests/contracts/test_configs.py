"""Every file under configs/ gives valid settings, in every variant, and names a recipe that takes its switches."""

import importlib.util
import pathlib

import pytest

from ragrl_jax import config as config_lib
from ragrl_jax import recipes

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("*.py"))
VARIANTS = {
  "quickstart": ("", "sft"),
  "arena": (
    "",
    "smoke",
    "repo",
    "f1",
    "judge",
    "judge,smoke",
    "no_bonus",
    "naive",
    "direct",
    "k3",
    "without_2wiki",
    "sft",
    "sft,direct,smoke",
  ),
  "care": ("", "smoke", "repo", "mean", "no_retrieval", "easy_only", "sft", "sft,smoke"),
  "untrained": ("", "smoke", "closed_book", "cot", "ircot,smoke", "iter_retgen", "self_ask", "skr"),
  "veritas": ("", "smoke", "em", "em_it", "em_ta", "em_format", "no_ramp", "repo", "reward_model"),
  "when_to_search": (
    "",
    "smoke",
    "table",
    "exact",
    "printed",
    "no_search_reward",
    "no_stage_one",
    "no_stage_two",
    "no_answer_reward",
    "unified",
  ),
  "lear": (
    "",
    "smoke",
    "sft",
    "inference",
    "vanilla",
    "rationale,sft",
    "generator,sft,smoke",
    "answers_r",
    "answers_e",
    "answers_f",
    "answers_er",
    "answers_ef",
  ),
}


def load(path):
  spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_is_valid(path):
  for variant in VARIANTS.get(path.stem, ("", "smoke", "repo")):
    config = load(path).get_config(variant)
    config_lib.validate(config)
    recipe = recipes.get(config.recipe, config.preset, **config.switches.to_dict())
    assert recipe.name == config.recipe, variant
    assert config.is_locked, variant


@pytest.mark.parametrize(
  ("name", "variant", "preset", "differences"),
  [
    ("veritas", "no_ramp,em_it", "em_it,no_ramp", dict(ramp_start=0, ramp_end=0, think_answer_weight=0.0)),
    (
      "veritas",
      "repo,em,smoke",
      "em,repo",
      dict(action="first", information_think_weight=0.0, think_answer_weight=0.0, judge_information=False),
    ),
    ("when_to_search", "exact,no_stage_one", "exact,no_stage_one", dict(correctness="exact", stage_two_from=0)),
    ("when_to_search", "exact,no_stage_two", "exact,no_stage_two", dict(correctness="exact", stage_two_from=None)),
    ("when_to_search", "unified,printed", "printed,unified", dict(answer="unified", similarity="encoder", halve=True)),
    ("search_r1", "ppo,format,repo", "ppo,format,repo", dict(format=True, action="first")),
  ],
)
def test_presets_joined_by_commas_all_act(name, variant, preset, differences):
  config = load(CONFIGS / f"{name}.py").get_config(variant)
  assert config.preset == preset
  paper = recipes.get(name).switches
  assert dict(recipes.get(name, config.preset, **config.switches.to_dict()).switches) == {**paper, **differences}
  assert config.judge.kind == "none" or not {"em", "exact"} & set(variant.split(","))  # nobody is asked


@pytest.mark.parametrize(
  ("name", "variant"),
  [
    ("veritas", "em,em_it"),
    ("veritas", "em_it,em_ta"),
    ("veritas", "reward_model,em"),
    ("search_r1", "grpo,ppo"),
    ("when_to_search", "no_stage_one,no_stage_two"),
    ("when_to_search", "no_answer_reward,unified"),
    ("arena", "repo,f1"),
    ("care", "repo,mean"),
    ("lear", "vanilla,generator"),
    ("untrained", "cot,ircot"),
    ("quickstart", "smoke"),
  ],
)
def test_what_cannot_be_joined_is_refused(name, variant):
  with pytest.raises(ValueError, match="use .*sft|use one of|one of .* at most"):
    load(CONFIGS / f"{name}.py").get_config(variant)


def test_a_search_needs_no_room_for_another_whole_turn():
  # Prompt 2048, a first turn of 7000 and five passages: the paper's budget has room for them and 5,000 more.
  config = load(CONFIGS / "when_to_search.py").get_config()
  passages = config.retrieval.top_k * recipes.get("when_to_search").switches["max_passage_tokens"]
  assert config.rollout.context - 2048 - 7000 - passages >= (config.rollout.reserve or config.rollout.max_new_tokens)


def test_a_pair_that_is_judged_fits_as_it_was_trained_on():
  # Titles and numbers of the passages, and the words of the question, take less than 200 tokens.
  config = load(CONFIGS / "veritas.py").get_config()
  passage = recipes.get("veritas").switches["max_passage_tokens"]
  assert config.judge.max_tokens >= config.retrieval.top_k * passage + config.rollout.max_new_tokens + 200


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
