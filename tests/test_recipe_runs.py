"""Recipes with given passages, from questions to trained steps and held-out answers, with a tiny random model."""

import functools
import json
import pathlib
import random

import pytest
import reading_world
from papers import players

from ragrl_jax import config as config_lib
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.jobs import evaluate, sft, train
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.store import jsonl

ROOT = pathlib.Path(__file__).parents[1]
WORLD = dict(seed=0, entities=24, held_out=12, syllables=12)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  folder = tmp_path_factory.mktemp("world")
  world = reading_world.build(**WORLD)
  ask = lambda count, **options: reading_world.questions(world, count, distinct=False, passages=3, **options)
  writers.write_examples(folder / "easy.jsonl", ask(12))
  writers.write_examples(folder / "hard.jsonl", ask(12, seed=1, difficulty="hard"))
  writers.write_examples(folder / "held_out.jsonl", ask(4, part=synthetic.HELD_OUT))
  rng = random.Random(0)
  said = [text for e in ask(40) for _, text in players.play_care(e, world, rng)]
  lines, path = [*synthetic.lines(world, fillers=50, num_questions=50), *said], folder / "tokenizer.model"
  sentencepiece.train(lines, vocab_size=420, marks=players.CARE_MARKS, path=path, threads=1)
  return folder


def small(name, world, variant="smoke"):
  made = config_lib.load(ROOT / "configs" / f"{name}.py", variant)
  made.model.shape.update(dict(d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32))
  made.rollout.update(dict(context=192, chunk=8, prefill=32, page=32, max_new_tokens=12))
  made.learner.update(dict(row_lengths=(192,), logprob_chunk=64))
  made.mesh.data, made.log.tensorboard, made.switches.instructions = 1, False, "none"
  made.prompting.update(dict(tokenizer=str(world / "tokenizer.model"), chat=False))
  made.data.update(dict(train=str(world / "easy.jsonl"), evaluate=str(world / "held_out.jsonl")))
  return made


vanilla = functools.partial(players.play_lear, reply="vanilla")
direct = functools.partial(players.play_arena, reply="direct")


@pytest.mark.long  # the run's programs
def test_care(world, tmp_path):
  config = small("care", world)
  config.data.hard = str(world / "hard.jsonl")
  config.switches.easy_steps = 1  # α is 1 in step 1 and 0 in step 2
  start, *rows = train.train(config, tmp_path, evaluate=evaluate.evaluator(config))
  assert start["step"] == 0 and [row["step"] for row in rows] == [1, 2]
  assert {"term/accuracy", "term/format", "term/retrieval"} <= rows[0].keys() and rows[0]["mismatch"] < 1e-4
  assert {"evaluation/answer_recall", "evaluation/evidence_rouge_l", "evaluation/char_f1"} <= rows[1].keys()
  first, second = (list(jsonl.read(file)) for file in jsonl.step_files(tmp_path / "episodes").values())
  assert len(first) == 4 and not any("step by step" in row["question"] for row in first)  # only easy questions
  assert len(second) == 4 and all("step by step" in row["question"] for row in second)  # only hard questions
  assert {"unearned/short_quote", "unearned/unanswered"} <= rows[0].keys()


@pytest.mark.long  # the runs' programs
@pytest.mark.parametrize("name, variant, demonstrated, rank", [
  ("care", "sft", players.play_care, 8), ("lear", "sft,vanilla", vanilla, 16), ("arena", "sft,direct", direct, 0),
])  # fmt: skip
def test_supervised_then_rl(world, tmp_path, name, variant, demonstrated, rank):
  """The warm start and the baselines of the configs. Adapters, if the paper has them, are merged into a new model."""
  config = small(name, world, f"{variant},smoke")
  assert (config.model.lora.rank, config.model.lora.alpha) == (rank, 2.0 * rank or 16.0)
  config.steps, config.learner.micro_rows, config.learner.row_lengths = 12, 4, (320,)
  config.optimizer.update(dict(learning_rate=2e-2, warmup_steps=1))
  asked = list(readers.read_examples(config.data.train))
  made, rng = reading_world.build(**WORLD), random.Random(0)
  config.data.train = str(tmp_path / "sft.jsonl")
  writers.write_examples(config.data.train, asked, turns=[demonstrated(e, made, rng) for e in asked])
  losses = [metrics["loss"] for metrics in sft.sft(config, tmp_path / "sft")]
  assert losses[-1] < losses[0] - 0.05  # by 0.16 (care), 0.19 (lear), 1.17 (arena)
  config = small(name, world, f"{variant.removeprefix('sft').removeprefix(',')},smoke".removeprefix(","))
  config.model.path, config.steps, config.data.hard = str(tmp_path / "sft" / "model"), 1, ""
  config.optimizer.warmup_steps = 0
  config.switches.update(dict(probe_tokens=6) if name == "lear" else {})
  (row,) = train.train(config, tmp_path / "rl")
  assert row["mismatch"] < 1e-4 and row["episodes"] == 4


@pytest.mark.long  # the run's programs
def test_lear(world, tmp_path):
  config = small("lear", world)
  config.data.noise = 2
  config.switches.probe_tokens = 6
  _, *rows = train.train(config, tmp_path, evaluate=evaluate.evaluator(config))
  assert {"term/answer", "term/length", "term/format"} <= rows[0].keys() and rows[0]["unscorable"] == 0
  assert "evaluation/answer_recall" in rows[1] and rows[0]["mismatch"] < 1e-4


@pytest.mark.long  # the runs' programs
def test_a_teacher_from_a_folder(world, tmp_path):
  config = small("arena", world)
  config.seed, config.steps, config.optimizer.warmup_steps = 1, 1, 0
  list(train.train(config, tmp_path / "teacher"))
  config.seed = 0
  config.loss.teacher.update(dict(path=str(tmp_path / "teacher" / "model"), kind="jsd", episodes="failed"))
  (row,) = train.train(config, tmp_path / "run")
  assert row["taught"] > 0.9 and row["teacher_kl"] > 0  # a random model answers nothing
  assert "loss.teacher.path" in json.loads((tmp_path / "run" / "contents.json").read_text())
  config.loss.teacher.update(dict(kind="k1", coef=0.1))
  (row,) = train.train(config, tmp_path / "rewarded")
  assert row["advantage_abs"] > 0 and row["taught"] > 0.9


@pytest.mark.long  # the run's programs
def test_a_policy_teaches_itself(world, tmp_path):
  config = small("arena", world)
  config.steps, config.optimizer.warmup_steps, config.learner.share_prompts = 1, 0, True
  config.loss.teacher.update(dict(path="policy", kind="forward", tokens="thought"))
  (row,) = train.train(config, tmp_path)
  assert row["taught"] > 0.9 and row["teacher_kl"] > 0
