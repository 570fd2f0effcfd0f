"""Opens checkpoints to sample from them, asks them questions, and exchanges their weights."""

import importlib
import importlib.util
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import jax
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax import settings, structs
from ragrl_jax.evaluation import harness
from ragrl_jax.jobs import evaluate
from ragrl_jax.models import lora
from ragrl_jax.report import inline
from ragrl_jax.rollout import collect
from ragrl_jax.run import contents
from ragrl_jax.run import player as player_lib
from ragrl_jax.run import prepared as prepared_lib
from ragrl_jax.run import questions as questions_lib
from ragrl_jax.store import episodes as episode_rows


def opened(
  config, checkpoint: str | pathlib.Path, *, playing: bool = True, judged: Sequence[str] = ()
) -> player_lib.Sampler:
  """A checkpoint, ready to sample; its `settings` have the checkpoint's model.

  Args:
    config: as in `evaluate.evaluate`.
    checkpoint: as in `evaluate.evaluate`.
    playing: make a `Player` of the config's recipe. False: make only a `Sampler`, without retriever and judges.
    judged: terms that need a judge although the recipe asks none about them.

  Raises:
    ValueError, FileNotFoundError: as in `evaluate.evaluate`.
  """
  config = settings.of(config)
  if config.endpoint.model:
    raise ValueError(
      f"config.endpoint.model={config.endpoint.model!r}: a model behind a server answers in evaluations and probes "
      "only, and here the checkpoint would. Leave it empty."
    )
  config, source = evaluate.chosen(config, checkpoint)
  prepared = prepared_lib.prepare(config, purpose="play" if playing else "sample")
  result = player_lib.build(prepared, judged=judged) if playing else player_lib.sampler(prepared)
  evaluate.load(result, source)
  return result


def ask(
  checkpoint: str | os.PathLike, questions: Iterable[str | structs.Example] | str | structs.Example, *, config=None
) -> inline.Answers:
  """Asks each question once, in its own episode; returns [(answer or None, episode)] in order. Decoding is greedy.

  Args:
    checkpoint: as in `evaluate`; or a run.
    questions: texts; or Examples, with passages for a recipe that needs them; or one of either.
    config: settings (`ragrl_jax.Config`), or the name or file of a config as in `--config`; None: those of the
      checkpoint's run.

  Raises:
    ValueError, FileNotFoundError: as in `evaluate`; or a question is none, or has no passages that its recipe needs.
  """
  # The members of a row, or of a table, are the names of its columns.
  alone = isinstance(questions, str | structs.Example | Mapping) or hasattr(questions, "columns")
  each = [questions] if alone else list(questions)
  for one in each:
    if not isinstance(one, structs.Example) and not (isinstance(one, str) and one.strip()):
      raise ValueError(f"questions: {one!r:.80} is no question: give texts, or Examples (ragrl_jax.Example).")
  examples = [one if isinstance(one, structs.Example) else structs.Example("", one, ()) for one in each]
  if isinstance(config, str | os.PathLike):
    config = config_lib.load(config)
  config = settings.of(evaluate.config_of(checkpoint) if config is None else config)
  # Questions are refused before weights and index are read.
  questions_lib.check_passages(config, prepared_lib.recipe(config), examples, "questions")
  player = cast(player_lib.Player, opened(config, checkpoint))
  requests = [collect.Request(example, number) for number, example in enumerate(examples)]
  episodes = player.rollout.run(requests, step=0, greedy=True)
  rows = [
    episode_rows.row(example, episode, terms={}, weights={}, reward=None, outcome=None)
    for example, episode in zip(examples, episodes, strict=True)
  ]
  return inline.Answers([(harness.answer(player.recipe, episode), episode) for episode in episodes], rows)


def reopen(made: player_lib.Sampler, checkpoint: str | pathlib.Path) -> int:
  """Loads the weights of another checkpoint of the same run or folder into the engine of `opened`.

  Args:
    made: the result of `opened`. No conversation may be open.
    checkpoint: a run's folder, or one of its steps. If `opened` got a model's folder, a model's folder.

  Returns:
    The version of the weights: the step, or for a model's folder outside a run one more than before.

  Raises:
    ValueError: the weights have other shapes.
    FileNotFoundError: there is no checkpoint.
  """
  folder, _, step = source = evaluate.locate(checkpoint)
  if folder is None:
    evaluate.load(made, source)
    return step
  again = player_lib.model(made.settings, made.tokenizer, made.prepared.shape, made.mesh)[0]
  if contents.base(made.settings) != made.base:
    raise ValueError(f"{made.settings.model.path}: the base of the served adapters was replaced. Restart the server.")
  params = lora.split(again)[1]
  shapes = lambda tree: {jax.tree_util.keystr(path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(tree)}
  if shapes(params) != shapes(lora.split(made.model)[1]):
    raise ValueError(f"{folder}: its weights have other shapes than the served ones. Restart the server.")
  made.engine.load(params, version=step or made.engine.version + 1)
  nnx.update(made.model, params)
  return made.engine.version


def tool_reader(tokenizer: Any) -> Any:
  """Reads the tools of requests and the calls of replies (`protocol.requests.ToolReader`), with `ragrl_jax.agents`.

  None without that package, or if the tokenizer has no chat template with a known format of calls.
  """
  if importlib.util.find_spec("ragrl_jax.agents") is None:
    return None
  return importlib.import_module("ragrl_jax.agents.calls.served").reader(tokenizer)
