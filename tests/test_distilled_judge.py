"""VERITAS's reward model from labels to verdicts: pairs, a split, LoRA training to print the digit, and judging."""

import asyncio
import shutil

import decoders
import pytest
import tiny_world

from ragrl_jax import judging, settings
from ragrl_jax.core import schedules
from ragrl_jax.data import writers
from ragrl_jax.jobs import sft
from ragrl_jax.models import lora, weights
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.structs import Example, Passage

PROMPT, MARKS = "information_think_bare", ("<information>", "</information>", "<think>", "</think>")


def pairs(count):
  """Pairs whose thoughts state what was read or state nothing. One word decides which."""
  said = lambda n: f"Oslo has {n} mayors" if n % 2 else f"nothing {n} here"
  read = lambda n: (Passage("1", "", f"Oslo has {n} mayors."),)
  return [Example(str(n), said(n), (), read(n), source=f"q{n // 2}") for n in range(count)]


@pytest.mark.long  # trains and serves a model
def test_from_labels_to_service(tmp_path):
  config = tiny_world.config(tmp_path)
  lines = [distil.Prompt(PROMPT).messages(pair)[0]["content"] for pair in pairs(40)]
  sentencepiece.train(lines + ["0", "1"], vocab_size=300, marks=MARKS, path=tmp_path / "tokenizer.model", threads=1)
  model, shape, *_ = decoders.made(config)
  weights.save_pretrained(model, shape, tmp_path / "base")
  shutil.copyfile(tmp_path / "tokenizer.model", tmp_path / "base" / "tokenizer.model")

  labeller = judging.load(settings.Judge(kind="lexical", threshold=1.0))
  labels = labeller.judge([distil.asked(pair) for pair in pairs(120)])
  learnt, held_out = distil.split(distil.labelled(pairs(120), labels), 24, seed=0)
  writers.write_examples(tmp_path / "train.jsonl", learnt, turns=distil.transcripts(learnt))
  config.recipe, config.preset, config.switches = "veritas", "reward_model", dict(judge_prompt=PROMPT)
  config.model.path, config.data.train = str(tmp_path / "base"), str(tmp_path / "train.jsonl")
  config.model.lora.update(dict(rank=8, alpha=16.0))
  config.steps, config.checkpoint.every, config.sft.environment_weight = 120, 120, 0.0
  curve = []  # measure: minus the loss. It rises by .40 within 20 steps and then stays

  def reached(row):
    curve.append(-row["loss"])
    return schedules.stopped_rising(curve, patience=5, rise=0.005, gain=0.25)

  *_, last = sft.sft(config, tmp_path / "run", reached=reached)
  assert last["step"] < 120 and lora.is_folder(tmp_path / "run" / "model")

  service = dict(kind="reward_model", prompt=PROMPT, path=str(tmp_path / "run" / "model"), batch=16, max_tokens=128)
  judges = judging.of_terms(settings.Judge(), dict(information_think=service), ["information_think"])
  tools, asked = RetrievalTools(None, judges=judges), [distil.asked(pair) for pair in held_out]

  async def of_two_episodes():
    return await asyncio.gather(*(tools.judge(some, "information_think") for some in (asked[:9], asked[9:])))

  first, rest = asyncio.run(of_two_episodes())
  found = distil.agreement(held_out, first + rest)
  # all 24 agree on 1 and 2 threads, on AVX2, and with jax 0.10 and 0.12
  assert found["n"] == 24 and found["ones"] == 0.5 and found["consistency"] >= 0.9 and found["kappa"] >= 0.8
