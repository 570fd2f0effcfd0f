"""A start parses its settings once, and makes recipe, tokenizer and mesh once."""

import collections
from unittest import mock

import decoders
import pytest
import tiny_world

from ragrl_jax import recipes
from ragrl_jax.evaluation import harness
from ragrl_jax.jobs import checkpoints, evaluate, sft, train
from ragrl_jax.prompting import tokenizer
from ragrl_jax.run import prepared, saving
from ragrl_jax.settings import Settings, fields
from ragrl_jax.store import workdir

ONCE = dict(parses=1, recipes=1, tokenizers=1, meshes=1)


class Made(Exception):
  """All is made, and the work would begin."""


@pytest.fixture
def counts(monkeypatch):
  """The number of calls so far. A run ends before its first step, and an evaluation before its first question."""
  found = collections.Counter()

  def count(module, function, name, counted=lambda *given: True):
    made = getattr(module, function)

    def wrapped(*given, **named):
      found.update({name: counted(*given)})
      return made(*given, **named)

    monkeypatch.setattr(module, function, wrapped)

  count(fields, "build", "parses", lambda record, *rest: record is Settings)
  count(recipes, "get", "recipes")
  count(tokenizer, "load_tokenizer", "tokenizers")
  count(prepared, "mesh", "meshes")
  for owner, begin in ((workdir.Run, "restore"), (harness, "evaluate")):
    monkeypatch.setattr(owner, begin, mock.Mock(side_effect=Made))
  monkeypatch.setattr(checkpoints, "load", lambda player, source: None)
  return found


def test_training_makes_all_once(world, tmp_path, counts):
  made = prepared.prepare(tiny_world.config(world), tmp_path)
  held_out = evaluate.evaluator(made, workdir=tmp_path)
  with pytest.raises(Made):
    list(train.train(made, tmp_path, evaluate=held_out))
  assert counts == ONCE


def test_fine_tuning_makes_all_once(world, tmp_path, counts):
  with pytest.raises(Made):
    list(sft.sft(sft.prepare(tiny_world.config(world, variant="sft"), tmp_path), tmp_path))
  assert counts == ONCE


def test_an_evaluation_makes_all_once(world, tmp_path, counts):
  config = tiny_world.config(world)
  saving.save(*decoders.made(config), tmp_path / "model")
  counts.clear()
  with pytest.raises(Made):
    evaluate.evaluate(config, tmp_path / "model", config.data.evaluate, tmp_path / "out")
  assert counts == ONCE
