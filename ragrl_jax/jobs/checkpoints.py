"""Finds checkpoints, opens them to sample from them, asks them questions, and exchanges their weights."""

import fnmatch
import importlib
import importlib.util
import logging
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import jax
from flax import nnx

from ragrl_jax import config as config_lib, recipes, settings, structs
from ragrl_jax.models import hub, lora, tensors
from ragrl_jax.recipes import parts
from ragrl_jax.report import inline
from ragrl_jax.rollout import collect
from ragrl_jax.run import contents, player as player_lib, prepared as prepared_lib, questions as questions_lib, rollback
from ragrl_jax.settings import Judge, Settings, fields, stored_paths
from ragrl_jax.store import (
  changes,
  checkpoint as checkpoint_lib,
  episodes as episode_rows,
  jsonl,
  metrics as metrics_lib,
  workdir as workdir_lib,
)

PROGRAMS = ("switches.program", "switches.reward", "switches.tools", "switches.mcp")  # of agent and tool_agent
Source = tuple[pathlib.Path | None, pathlib.Path | None, int]  # see `locate`


def locate(checkpoint: str | pathlib.Path) -> Source:
  """(folder of a model or of adapters, None, its step), or (None, folder of a run's checkpoints, step).

  A run's `model/` is older than its newest checkpoint if the run was continued and has not ended again. Its step is
  the run's last; that of a folder outside a run is 0.

  Raises:
    FileNotFoundError: there is no model and no checkpoint.
    ValueError: it is the folder of an evaluation or an index.
  """
  path = pathlib.Path(checkpoint)
  if hub.is_name(path) and not path.exists():
    return hub.folder(path, "--checkpoint", part="config"), None, 0
  run = path if path.name == "checkpoints" else path / "checkpoints"
  steps = [int(step.name) for step in run.iterdir() if step.name.isdigit()] if run.is_dir() else []
  for folder in (path, path / "model"):
    if ((folder / "config.json").exists() or lora.is_folder(folder)) and any(folder.glob("*.safetensors")):
      if folder == path or not steps or workdir_lib.ended(path) >= max(steps):
        return folder, None, max(0, workdir_lib.ended(folder.parent))
  if (step := config_lib.step_of(path)) is not None and path.is_dir():
    return None, path.parent, step
  if not steps:
    refuse_others(path)
    raise FileNotFoundError(
      f"{checkpoint}: no model here. Name a Hugging Face folder (config.json and *.safetensors), OWNER/NAME on the "
      "hub, a run's folder, or a step of a run, RUN/checkpoints/STEP (--checkpoint)."
    )
  return None, run, max(steps)


def refuse_others(folder: str | pathlib.Path) -> None:
  """Raises a ValueError if the folder is that of an evaluation or an index."""
  path = pathlib.Path(folder)
  for name, what in (("metrics.json", "an evaluation"), ("index.json", "an index")):
    if (path / name).is_file() and not (path / "config.json").is_file():
      raise ValueError(f"{path}: it is the folder of {what}: name a run, one of its checkpoints or a model instead.")


def best(run: str | pathlib.Path, metric: str) -> pathlib.Path:
  """The checkpoint of a run with the highest value of a metric, the earliest of equal ones: RUN/checkpoints/STEP.

  Args:
    metric: a name in its metrics.jsonl, such as "evaluation/em".

  Raises:
    ValueError: no step has the metric, or the checkpoint of the best step was deleted.
  """
  run = pathlib.Path(run)
  rows = rollback.lasting(metrics_lib.read_metrics(run))  # the checkpoints of undone steps are deleted
  rows = [row for row in rows if isinstance(row.get(metric), int | float) and row["step"]]
  if not rows:
    raise ValueError(
      f"{run}: no step has the metric {metric!r} (--best): name one of its metrics.jsonl, and measure held-out "
      "questions during the run (config.evaluate.every)."
    )
  step = max(rows, key=lambda row: (row[metric], -row["step"]))["step"]
  result = run / "checkpoints" / str(step)
  if not result.is_dir():
    raise ValueError(
      f"{run}: {metric} is highest at step {step}, but this checkpoint was not kept: set config.checkpoint.every to "
      "config.evaluate.every, and raise config.checkpoint.keep to the number of checkpoints."
    )
  return result


def config_of(checkpoint: str | pathlib.Path):
  """The settings of a checkpoint's run, including every switch of its recipe.

  Of a run that was copied, or that someone else made, `prepared.recipe` refuses what would run a program or send a key
  (`stored_paths.WITHHELD`), until the user names it.

  Args:
    checkpoint: as in `jobs.evaluate.evaluate`.

  Raises:
    ValueError: the checkpoint has no run with a config.json.
  """
  if (folder := config_lib.run_of(checkpoint)) is None:
    if not pathlib.Path(checkpoint).exists():
      raise ValueError(f"{checkpoint}: there is no such folder (--checkpoint), and a model on the hub needs --config.")
    refuse_others(checkpoint)
    raise ValueError(f"{checkpoint}: it does not belong to a run with a config.json: give --config.")
  config = config_lib.of_run(folder)
  if other := changes.reworded(folder, config.to_dict()):
    logging.warning(
      "config.%s: the file has changed since the run began; the run's text is in %s.",
      next(iter(other)),
      folder / changes.WORDINGS,
    )
  with config.unlocked():
    config.switches = {**recipes.switches(config.recipe), **config.switches}
    config.judges = {term: {**config_lib.unset(Judge), **judge} for term, judge in config.judges.items()}
  if not stored_paths.is_own(folder):
    config.update_from_flattened_dict({name: stored_paths.WITHHELD + value for name, value in _acting(config).items()})
  return config


def _acting(config: Any) -> dict[str, str]:
  """Setting → value of what runs programs, and of environment variables whose values are sent to a named address."""
  values = {name: value for name, value in jsonl.flat(config.to_dict()) if value and isinstance(value, str)}
  is_judged = bool(fnmatch.filter(values, "judge*.endpoint"))
  keys = ["retrieval.key_variable", *fnmatch.filter(values, "judge*.key_variable") * is_judged]
  runs = lambda name, value: name in PROGRAMS and (":" in value or name == "switches.mcp")
  sends = lambda name, value: name in keys and value in os.environ
  return {name: value for name, value in values.items() if runs(name, value) or sends(name, value)}


def chosen(config: Settings, checkpoint: str | pathlib.Path) -> tuple[Settings, Source]:
  """(the settings, in which those that define the arrays are the checkpoint's; the location of its weights)."""
  folder, run, step = source = locate(checkpoint)
  if folder is None:
    assert run is not None
    return _as_trained(config, run.parent), source
  adapters = lora.is_folder(folder)
  # Adapters name their base, and their folder determines the rank.
  where = hub.with_commit(str(checkpoint), "--checkpoint") if hub.is_name(checkpoint) else str(folder)
  path = lora.find_base(folder, config.model.path) if adapters else where
  changed = {"model.path": path, "model.lora.rank": 0, "model.lora.path": where if adapters else ""}
  return fields.replaced(config, changed), source


def load(player: player_lib.Sampler, source: Source) -> None:
  """Loads the checkpoint's weights into the engine and the model.

  Raises:
    ValueError: its adapters were trained on another base than the one that was read.
  """
  folder, run, step = source
  player.base = player.base or contents.base(player.settings)
  params = lora.split(player.model)[1]
  if run is not None:
    params = trained(run, step, params, player.settings, base=player.base)
  player.engine.load(params, version=step)
  nnx.update(player.model, params)


def trained(run: pathlib.Path, step: int, like: Any, config: Settings, *, base: str = "") -> Any:
  """The policy's trained parameters of a run's checkpoint, without the optimizer's state or a shared critic's head.

  Args:
    run: the folder of the run's checkpoints.
    like: arrays or ShapeDtypeStructs: structure, shapes, dtypes and shardings of the parameters.
    config: the run's settings, of which the model and the critic count.
    base: fingerprint of the adapters' base; "" reads it from the folder.

  Raises:
    ValueError: the checkpoint is damaged, or it is of another model, or of adapters on another base.
  """
  stored = checkpoint_lib.Checkpoints(run, keep=1, read_only=True)
  try:
    lora.refuse_other_base(run / str(step), stored.host(step).get("base", ""), config.model.path, base)
    if config_lib.kind_of(run.parent) == "rl" and config.critic.kind == "shared":
      return stored.part(dict(params=dict(trunk=like)), step)["params"]["trunk"]
    return stored.part(dict(params=like), step)["params"]
  finally:
    stored.close()


def opened(
  config, checkpoint: str | pathlib.Path, *, playing: bool = True, judged: Sequence[str] = ()
) -> player_lib.Sampler:
  """A checkpoint, ready to sample; its `settings` have the checkpoint's model.

  Args:
    config: as in `jobs.evaluate.evaluate`.
    checkpoint: as in `jobs.evaluate.evaluate`.
    playing: make a `Player` of the config's recipe. False: make only a `Sampler`, without retriever and judges.
    judged: terms that need a judge although the recipe asks none about them.

  Raises:
    ValueError, FileNotFoundError: as in `jobs.evaluate.evaluate`.
  """
  config = settings.of(config)
  if config.endpoint.model:
    raise ValueError(
      f"config.endpoint.model={config.endpoint.model!r}: a model behind a server answers in evaluations and probes "
      "only, and here the checkpoint would. Leave it empty."
    )
  config, source = chosen(config, checkpoint)
  prepared = prepared_lib.prepare(config, purpose="play" if playing else "sample")
  result = player_lib.build(prepared, judged=judged) if playing else player_lib.sampler(prepared)
  load(result, source)
  return result


def ask(
  checkpoint: str | os.PathLike, questions: Iterable[str | structs.Example] | str | structs.Example, *, config=None
) -> inline.Answers:
  """Asks each question once, in its own episode; returns [(answer or None, episode)] in order. Decoding is greedy.

  Args:
    checkpoint: as in `jobs.evaluate.evaluate`; or a run.
    questions: texts; or Examples, with passages for a recipe that needs them; or one of either.
    config: settings (`ragrl_jax.Config`), or the name or file of a config as in `--config`; None: those of the
      checkpoint's run.

  Raises:
    ValueError, FileNotFoundError: as in `jobs.evaluate.evaluate`; or a question is none, or has no passages that its
      recipe needs.
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
  config = settings.of(config_of(checkpoint) if config is None else config)
  # Questions are refused before weights and index are read.
  questions_lib.check_passages(config, prepared_lib.recipe(config), examples, "questions")
  player = cast(player_lib.Player, opened(config, checkpoint))
  requests = [collect.Request(example, number) for number, example in enumerate(examples)]
  episodes = player.rollout.run(requests, step=0, greedy=True)
  rows = [
    episode_rows.row(example, episode, terms={}, weights={}, reward=None, outcome=None)
    for example, episode in zip(examples, episodes, strict=True)
  ]
  return inline.Answers([(parts.last_answer(player.recipe.parser, episode), episode) for episode in episodes], rows)


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
  folder, _, step = source = locate(checkpoint)
  if folder is None:
    load(made, source)
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


def fingerprint(params: Any) -> str:
  """`tensors.fingerprint` of a tree of weights."""
  return tensors.fingerprint({jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)})


def _as_trained(config: Settings, run: pathlib.Path) -> Settings:
  """The settings, with those of the run that define the checkpoint's arrays, and its tokenizer."""
  if not (run / "config.json").exists():
    return config
  trained = settings.of(config_lib.of_run(run))
  base = trained.model.path
  is_name = hub.is_name(base) and hub.parts(base)[1]  # a run stores names on the hub with their commits
  is_gone = not pathlib.Path(base).is_dir() and not is_name
  path = config.model.path if config.model.path and is_gone else base  # the run's base has moved
  # These fit together, and a shared critic's checkpoint has the policy in another place.
  arrays = {name: getattr(trained, name) for name in ("optimizer", "loss", "advantage", "critic")}
  tokenizer = config.prompting.tokenizer or trained.prompting.tokenizer
  model = fields.replaced(trained.model, {"path": path})
  return fields.replaced(config, arrays | {"model": model, "prompting.tokenizer": tokenizer})
