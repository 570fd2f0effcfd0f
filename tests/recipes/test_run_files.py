import ast
import importlib.util
import pathlib
import re

import pytest

from ragrl_jax import recipes
from ragrl_jax.jobs import evaluate, sft

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


def load(name):
  spec = importlib.util.spec_from_file_location(f"run_{name}", CONFIGS / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize("name", ["arena", "search_r1", "untrained", "veritas", "when_to_search"])
def test_variants_choose_presets(name):
  module = load(name)
  assert recipes.presets(name)
  for variant in recipes.presets(name):
    for spelling in (variant, f"{variant},smoke", f"smoke,{variant}"):
      assert module.get_config(spelling).preset == variant
  assert module.get_config("smoke").preset == "paper"
  with pytest.raises(ValueError, match="smoke"):
    module.get_config("tiny")


def test_published_numbers():
  search, cite = load("search_r1").get_config(), load("arena").get_config()
  assert (search.rollout.prompts_per_step, search.rollout.group_size, search.retrieval.top_k) == (512, 5, 3)
  ppo = load("veritas").get_config()
  assert (ppo.rollout.prompts_per_step, ppo.rollout.group_size, ppo.loss.minibatches) == (512, 1, 2)
  assert (ppo.advantage.kind, ppo.advantage.gamma, ppo.advantage.lam, ppo.critic.kind) == ("gae", 1.0, 1.0, "own")
  assert (ppo.loss.kl, ppo.loss.kl_in, ppo.loss.kl_coef, ppo.critic.learning_rate) == ("k1", "reward", 0.001, 1e-5)
  when = load("when_to_search").get_config()
  assert (when.rollout.prompts_per_step, when.rollout.group_size, when.rollout.context) == (32, 32, 2048 + 16384)
  assert (when.loss.clip_high, when.loss.kl, when.rollout.filter.metric) == (0.28, "none", "total")
  assert (load("when_to_search").get_config("table").loss.kl_coef, when.retrieval.top_k) == (1e-4, 5)
  assert (search.optimizer.learning_rate, search.loss.kl, search.loss.kl_coef) == (1e-6, "k3", 0.001)
  assert search.optimizer.warmup_steps == search.loss.minibatches * round(0.285 * search.steps)  # it counts updates
  assert (cite.rollout.prompts_per_step, cite.rollout.group_size, cite.rollout.temperature) == (256, 7, 0.9)
  assert (cite.optimizer.learning_rate, cite.loss.kl, cite.loss.kl_coef) == (3e-6, "k2", 0.04)
  assert (cite.advantage.std, cite.advantage.eps) == ("sample", 1e-4)


def test_arena_variants():
  arena = load("arena")
  assert (arena.get_config("k3").loss.kl, arena.get_config("naive").loss.kl) == ("k3", "k3")
  assert arena.get_config("judge").judge.kind == "llm" and arena.get_config("judge,smoke").judge.kind == "exact"
  assert arena.get_config("sft,direct").preset == "direct"
  with pytest.raises(ValueError, match="one of f1, judge"):
    arena.get_config("f1,judge")
  everything = arena.get_config().data
  for held_out in arena.WITHOUT:
    data = arena.get_config(held_out).data
    train, test = set(data.train.split(",")), set(data.evaluate.split(","))
    assert len(train) == 2 and train < set(everything.train.split(","))
    assert len(test) == 1 and test < set(everything.evaluate.split(","))
    assert not re.search(r"\[:\d+\]", data.train + data.evaluate)  # the first rows of a file may all be of one kind
    (left_out,) = set(everything.train.split(",")) - train
    assert left_out.rpartition("/")[0] == test.pop().rpartition("/")[0]


@pytest.mark.parametrize(
  "variant, steps, warmup",
  [("", 95, 10), ("k3", 95, 10), ("without_hotpotqa", 58, 6), ("without_2wiki", 58, 6), ("without_musique", 78, 8)],
)
def test_arena_is_one_epoch_of_the_sets_in_use(variant, steps, warmup):
  config = load("arena").get_config(variant)
  assert (config.steps, config.optimizer.warmup_steps) == (steps, warmup)


@pytest.mark.parametrize(
  "name, variant",
  [
    ("arena", "sft"),
    ("care", "sft"),
    ("lear", "sft"),
    ("lear", "sft,vanilla"),
    ("lear", "sft,generator"),
    ("veritas", "reward_model"),
  ],
)
def test_supervised_runs_train_only_the_reply(name, variant):
  assert load(name).get_config(variant).sft.environment_weight == 0.0


def test_cares_warm_start_is_three_epochs_of_batches_of_64():
  config = load("care").get_config("sft")
  assert (config.sft.batch, config.sft.epochs, config.sft.warmup_share) == (64, 3, 0.1)
  for tokens in (900, 1800, 3000):  # of a transcript: the batch does not depend on it
    transcript, rows, lengths = ([0] * tokens, [1.0] * tokens), config.learner.micro_rows, config.learner.row_lengths
    at = sft.batches([transcript] * 200, batch=config.sft.batch, rows=rows, lengths=lengths, seed=config.seed)
    assert len(at(0)) == 64


def test_lear_does_not_select_by_its_test_set():
  data = load("lear").get_config().data
  assert data.train.endswith("/nq/train") and data.evaluate.endswith("/nq/dev")


def test_cares_command_for_longbench_starts():
  """evaluate.py accepts the README's options: the first error is the missing checkpoint."""
  readme = (pathlib.Path(recipes.__file__).parent / "care" / "README.md").read_text(encoding="utf-8")
  command = re.search(r"\| LongBench \|.*", readme)[0]
  options = {name: ast.literal_eval(value) for name, value in re.findall(r"--config\.(\S+)=(True|False)", command)}
  assert "care:longbench " in command and options == {"switches.unmarked": True}
  config = load("care").get_config("longbench")
  with config.unlocked():
    config.switches.update(unmarked=True)
  assert config.data.cut_middle and config.rollout.context == 32_768 + 4_096
  with pytest.raises(FileNotFoundError, match="no model here"):
    evaluate.evaluate(config, "nowhere", "hotpotqa.jsonl", "nowhere")
