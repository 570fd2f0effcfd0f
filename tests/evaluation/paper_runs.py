"""Evaluations by hand, in folders as `ragrl evaluate` leaves them, for the tests of the papers' tables."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.evaluation import answer_files, episode_rows, records
from ragrl_jax.evaluation.records import MODELS
from ragrl_jax.evaluation.tables import filling, papers


def row(number, *, right=True, source="hotpotqa", **more):
  """A row of predictions.jsonl."""
  score = float(right)
  found = dict(id=f"q{number}", question=f"Question {number}?", golds=["yes"], prediction="yes" if right else "no")
  found |= dict(source=source, em=score, f1=score, cover_em=score, char_f1=score, outcome=score, terms={}, hops=None)
  found |= dict(num_searches=0, wasted_searches=None, ended="answer", failure="", response_tokens=7)
  return found | more


def model(folder, name):
  """A model's folder, of which only the shape is read."""
  kind, width, layers, *variant = MODELS[name]["shape"]
  base, distilled = variant == ["base"], variant == ["distilled"]
  folder.mkdir(parents=True, exist_ok=True)
  shape = dict(model_type=kind, hidden_size=width, num_hidden_layers=layers)
  shape |= dict(eos_token_id=151643 if base else 151645, rope_theta=10000 if distilled else 1000000)
  (folder / "config.json").write_text(json.dumps(shape))
  return folder


def config_of(name, *flags):
  """The settings of a config with its variant and further flags."""
  config = config_lib.load(name)
  for flag in flags:
    path, _, value = flag.removeprefix("--config.").partition("=")
    *sections, last = path.split(".")
    section = config
    for part in sections:
      section = section[part]
    kind = section.get_type(last)
    section[last] = value == "True" if kind is bool else kind(value)
  return config


def trained(folder, name, of, *flags):
  """The folder of a finished run."""
  config = config_of(name, *flags)
  model(folder / "model", of)
  tuned = {"sft", "reward_model"} & {*name.partition(":")[2].split(",")}
  settings = json.loads(config.to_json_best_effort()) | dict(objective="sft" if tuned else "rl")
  (folder / "config.json").write_text(json.dumps(settings))
  return folder


def evaluation(folder, name, rows=None, *, checkpoint=None, data="hotpotqa.jsonl", flags=(), judged=False, **settings):
  """A finished evaluation; by default of one question."""
  rows = [row(0)] if rows is None else rows
  config = config_of(name, *flags)
  switches = {key: value for key, value in config.switches.items() if value is not None}
  recipe = recipes.get(config.recipe, config.preset, **switches)
  said = dict(
    checkpoint=checkpoint and str(checkpoint), data=data, questions=len(rows), recipe=config.recipe,
    preset=config.preset,
    switches=dict(recipe.switches), sampling="greedy", noise=config.data.noise, evidence=config.data.evidence,
    max_new_tokens=config.rollout.max_new_tokens, context=config.rollout.context,
    retrieval=dict(index="out/index", kind="bm25", top_k=config.retrieval.top_k) if recipe.searches else None,
    judges={"": dict(kind="llm", model="m")} if judged else {},
    thinking=None if config.prompting.thinking == "default" else config.prompting.thinking,
    own_passages=None if config.data.own_passages else False,
  ) | settings  # fmt: skip
  return written(folder, rows, said)


def read(folder, extracted, rows, **of):
  """An evaluation of LEAR's generator that read the evidence of another one."""
  by = episode_rows.digest(extracted.rows, extracted.metrics["settings"])
  extraction = dict(by=by, passage_tokens=600, evidence_tokens=20)
  return evaluation(folder, "lear:generator", [one | dict(extraction=extraction) for one in rows], **of)


def written(folder, rows, settings):
  """An evaluation by its two files."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / answer_files.PREDICTIONS).write_text("".join(json.dumps(one) + "\n" for one in rows))
  failed = sum(one["ended"] == "failed" for one in rows)
  metrics = dict(
    n=len(rows) - failed, failed=failed, settings=settings, evidence_bleu=50.0, evidence_rouge_l=0.5, seconds=2.0,
    seconds_cover=10,
  )  # fmt: skip
  (folder / answer_files.METRICS).write_text(json.dumps(metrics))
  return records.read(folder)


def run(command, changes, *more):
  """Runs a printed command with other inputs (pattern → text) and further flags; returns its words."""
  for pattern, by in changes.items():
    command = re.sub(pattern, by, command)
  words, root = shlex.split(command)[1:], pathlib.Path(__file__).parents[2]
  quick = subprocess.run([sys.executable, str(root / "tests" / "xla_flags.py")], capture_output=True, text=True).stdout
  program = [sys.executable, "-c", "from ragrl_jax.cli import main; main.main()", *words, *more]
  done = subprocess.run(program, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": quick.strip()})
  assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
  assert "HTTP Request" not in done.stderr and "PyTorch was not found" not in done.stderr
  return words


def filled(name, *evaluations, **how):
  """Table's name → this table of a paper, filled with the evaluations."""
  return {one.table.name: one for one in filling.fill(papers.PAPERS[name], evaluations, **how)}


def cells(name, table, *evaluations, **how):
  """Row's name → its cells in a paper's table that is filled with the evaluations."""
  one = filled(name, *evaluations, **how)[table]
  return dict(zip([row.name for row in one.table.rows], one.cells, strict=True))
