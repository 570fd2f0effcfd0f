"""A world of a few dozen entities, and settings that train on it in seconds."""

import dataclasses
import pathlib
import random

import jax
import numpy as np
import orbax.checkpoint as ocp

from ragrl_jax import config as config_lib, retrieval, structs
from ragrl_jax.data import synthetic, writers
from ragrl_jax.jobs import train
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.recipes.search_r1.recipe import MARKS, demonstrate
from ragrl_jax.run import detectors


def make(folder: pathlib.Path, *, seed: int = 0) -> None:
  """Writes corpus, index, training questions, held-out questions, demonstrations and tokenizer.model to `folder`."""
  world = synthetic.build(synthetic.Settings(seed=seed, entities=24, held_out=12, syllables=12))
  writers.write_passages(folder / "corpus.jsonl", world.passages)
  retrieval.build_index(folder / "corpus.jsonl", "hashing", folder / "index", progress=False)
  retriever = retrieval.load_index(folder / "index")
  asked = synthetic.questions(world, 40, seed=seed, distinct=False)
  rng = random.Random(seed)
  turns = [demonstrate(e, lambda q: retriever.search([q], 1)[0], rng) for e in asked]
  writers.write_examples(folder / "demonstrations.jsonl", asked, turns=turns)
  writers.write_examples(folder / "train.jsonl", synthetic.questions(world, 16, seed=seed + 1, distinct=False))
  held_out = synthetic.questions(world, 8, part=synthetic.HELD_OUT, seed=seed, distinct=False)
  writers.write_examples(folder / "held_out.jsonl", held_out)
  lines = [" " + line for line in synthetic.lines(world, seed=seed, fillers=50, num_questions=50)]
  lines += [text for said in turns for _, text in said]
  sentencepiece.train(lines, vocab_size=420, marks=MARKS, path=folder / "tokenizer.model", threads=1)


def rewarding(recipe):
  """The recipe with rewards that an untrained model earns, from the ids it sampled. Many groups are constant."""
  wrote = lambda e: sum(i for s in e.segments if s.owner == structs.MODEL for i in s.ids)
  return dataclasses.replace(
    recipe,
    weights=lambda step: {"sum": 1.0},
    score=lambda example, episode: {"sum": wrote(episode) % 7 / 7},
    outcome=lambda example, episode: float(wrote(episode) % 5 == 0),
  )


def collapsing(recipe, versions):
  """The recipe with a known trick in every reply of the weights of these steps."""
  return dataclasses.replace(recipe, unearned=lambda example, episode: {"planted": episode.version in versions})


def guarded(config, rollback=2):
  """Makes the run return to an earlier checkpoint when the trick that `collapsing` plants is seen, and only then."""
  others = sorted({detector.metric for detector in detectors.DETECTORS} - {"unearned/"})
  config.guard.update(dict(rollback=rollback, ignored=tuple(others)))
  return config


def config(folder: pathlib.Path, name: str | pathlib.Path = "quickstart", variant: str = ""):
  """A config's settings with the data of `make`, a model of a few thousand parameters, and three steps.

  Args:
    folder: the folder filled by `make`.
    name: a config's name, or its file. The model must have one of the quickstart's shapes.
    variant: of the config; "sft" trains on the demonstrations.
  """
  made = config_lib.load(name, variant)
  made.model.shape.update(dict(d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32))
  made.rollout.update(dict(prompts_per_step=2, group_size=4, lanes=4, rows=8, context=160))
  made.rollout.update(dict(chunk=8, prefill=32, page=32, max_new_tokens=12))
  made.learner.update(dict(micro_rows=4, row_lengths=(192,), logprob_chunk=64))
  made.optimizer.update(dict(learning_rate=1e-2, warmup_steps=1))
  made.mesh.data = 1  # one of the tests' eight devices
  made.steps, made.checkpoint.every, made.log.tensorboard = 3, 1, False
  made.prompting.tokenizer, made.retrieval.index = str(folder / "tokenizer.model"), str(folder / "index")
  made.data.train = str(folder / ("demonstrations.jsonl" if variant == "sft" else "train.jsonl"))
  made.data.evaluate = str(folder / "held_out.jsonl")
  return made


TIMED = ("seconds/", "cost/", "engine/", "learner_flops", "tokens_per_second", "bottleneck", "time", "warning/")


def untimed(rows):
  """The metrics of each step that another run of the same steps must repeat."""
  return [{name: value for name, value in row.items() if not name.startswith(TIMED)} for row in rows]


def checkpoints(workdir) -> list[int]:
  """Steps of a run's finished checkpoints, oldest first."""
  return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit())


def unfinished(workdir) -> bool:
  """Whether a checkpoint is being written."""
  return any("tmp" in path.name for path in (workdir / "checkpoints").glob("*"))


def arrays(workdir, step=None):
  """(step, {path: array}) of a run's newest checkpoint, or of this step's."""
  step = checkpoints(workdir)[-1] if step is None else step
  tree = ocp.StandardCheckpointer().restore((workdir / "checkpoints" / str(step) / "state").absolute())
  return step, {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def assert_same(workdir, other):
  """The two runs' newest checkpoints hold the same arrays, to the bit. Returns their step."""
  (step, one), (other_step, two) = arrays(workdir), arrays(other)
  assert step == other_step and one.keys() == two.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)
  return step


def resumed(config, folder, stop=2):
  """The rows of a run in folder/whole. One in folder/parts, which is stopped after `stop` steps, ends as it does."""
  rows = list(train.train(config, folder / "whole"))
  part = train.train(config, folder / "parts")
  assert [next(part)["step"] for _ in range(stop)] == [*range(1, stop + 1)]
  part.close()
  assert [row["step"] for row in train.train(config, folder / "parts")] == [row["step"] for row in rows[stop:]]
  assert_same(folder / "whole", folder / "parts")
  return rows
