"""The settings of a run as a locked ConfigDict, which files under configs/ and the command line change.

The settings themselves, with types, defaults and units, are in `settings/`.
"""

import difflib
import importlib.util
import json
import pathlib
import types
from typing import Any

import ml_collections
from ml_collections import config_dict

from ragrl_jax import settings
from ragrl_jax.settings import fields, stored_paths

INSTALLED, CHECKOUT = (pathlib.Path(__file__).parents[above] / "configs" for above in (0, 1))
Config = Any  # an ml_collections.ConfigDict; a type checker would see its attributes as a union of all types


def default_config() -> Config:
  """All settings at their defaults. The config is locked: a misspelt name raises an error with a suggestion."""
  return ml_collections.ConfigDict(fields.plain(settings.Settings()), convert_dict=True).lock()


def load(value: str | pathlib.Path = "", variant: str = "") -> Config:
  """The settings of a config: `ragrl_jax.Config`.

  Args:
    value: as in `--config`: the name of a config of this package ("arena", or "arena:smoke" with a variant), or a file
      ("./mine.py:smoke"). "": all settings at their defaults.
    variant: the variant, if it is not in `value`.

  Raises:
    ValueError: there is no such config or variant.
  """
  if not value:
    return default_config()
  path, _, named = find(str(value)).partition(":")
  spec = importlib.util.spec_from_file_location(f"config_{pathlib.Path(path).stem}", path)
  if spec is None or spec.loader is None:
    raise ValueError(f"{path}: this is not a file of settings, such as configs/small.py.")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  result = module.get_config(variant or named)
  if not isinstance(result, ml_collections.ConfigDict):
    raise ValueError(
      f"{path}: get_config(variant) must return a config, such as ragrl_jax.Config(), not {result!r:.80}."
    )
  return result


def folder() -> pathlib.Path:
  """The folder of this package's configs: inside an installed package, or beside the package in a checkout."""
  return INSTALLED if INSTALLED.is_dir() else CHECKOUT


def find(value: str) -> str:
  """The value of a --config flag with its file as a path: "arena:smoke" → ".../configs/arena.py:smoke".

  A value with a slash, or with a file that ends in .py, is already a path and does not change.

  Raises:
    ValueError: the package has no config of this name.
  """
  name, *variant = value.split(":", 1)
  if "/" in name or name.endswith(".py") or not name:
    return value
  names = sorted(file.stem for file in folder().glob("*.py"))
  if name not in names:
    near = difflib.get_close_matches(name, names, n=1)
    raise ValueError(
      f"there is no config {name!r}{near and f' (did you mean {near[0]}?)' or ''}. Use one of {', '.join(names)}, or "
      "the path of a file, such as ./mine.py."
    )
  return ":".join([str(folder() / f"{name}.py"), *variant])


OBJECTIVE = "objective"  # key of a run's config.json that is no setting: its kind, "rl" or "sft"


def is_run(folder: str | pathlib.Path) -> bool:
  """Whether a folder is a run's: its config.json records a run's kind, as no model's config.json does."""
  try:
    return bool(kind_of(folder))
  except ValueError:
    return False


def kind_of(folder: str | pathlib.Path) -> str:
  """The kind of a run that its config.json records: "rl" or "sft".

  Raises:
    ValueError: the file is missing or does not belong to a run.
  """
  return _written(pathlib.Path(folder) / "config.json")[OBJECTIVE]


def run_of(checkpoint: str | pathlib.Path) -> pathlib.Path | None:
  """The folder of a checkpoint's run: of RUN, RUN/model or RUN/checkpoints/STEP. None for a model without a run."""
  path = pathlib.Path(checkpoint).absolute()
  return next(filter(is_run, (path, path.parent, path.parent.parent)), None)


def step_of(checkpoint: str | pathlib.Path) -> int | None:
  """The step of RUN/checkpoints/STEP; None for other paths."""
  path = pathlib.Path(checkpoint)
  return int(path.name) if path.name.isdigit() and path.parent.name == "checkpoints" else None


def of_run(folder: str | pathlib.Path) -> Config:
  """The settings of a run, from its config.json.

  Settings that are newer than the run have their defaults. Unset switches are left out. Paths are found again after
  the run was moved (`settings.stored_paths`).

  Raises:
    ValueError: the file is missing or does not belong to a run, or it has a setting that no longer exists.
  """
  path = pathlib.Path(folder) / "config.json"
  written = _written(path)
  config = default_config()
  with config.unlocked():
    written = stored_paths.in_settings({name: value for name, value in written.items() if name != OBJECTIVE}, folder)
    _take(config, written, str(path))
  return config.lock()


def _written(path: pathlib.Path) -> dict[str, Any]:
  try:
    written = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise ValueError(f"{path}: this is not a run's config.json ({error}).") from error
  if not isinstance(written, dict) or OBJECTIVE not in written:
    raise ValueError(
      f"{path}: this is not a run's config.json, which `ragrl train` and `sft` write. Of a run before version 0.3, "
      "name its model/, and its settings with --config."
    )
  return written


def _take(config: Config, written: dict[str, Any], where: str) -> None:
  """Sets the values of a JSON object. Sections that are empty by default (switches, judges) accept any names."""
  for name, value in written.items():
    if name not in config:
      raise ValueError(f"{where}: there is no setting {name!r} in this version: remove it there.")
    like = config[name]
    if isinstance(like, ml_collections.ConfigDict) and isinstance(value, dict):
      if like and name != "shape":  # a shape may have further fields, see models/config.py
        _take(like, value, where)
      else:
        config[name] = _set_ones(value)
    else:
      config[name] = tuple(value) if isinstance(value, list) else value


def unset(record: type) -> dict[str, Any]:
  """The fields of a record, each of its type but without a value: a section that sets nothing until a value is given.

  So `config.switches` has the recipe's switches, and `config.judges.TERM` the fields of `settings.Judge`.
  """
  return {name: config_dict.placeholder(kinds[0]) for name, kinds in fields.kinds(record).items()}


def _set_ones(values: dict[str, Any]) -> ml_collections.ConfigDict:
  """The values without those that are None, which means unset."""
  chosen = {name: value for name, value in values.items() if value is not None}
  return ml_collections.ConfigDict({n: _set_ones(v) if isinstance(v, dict) else v for n, v in chosen.items()})


def own_sets(config: Config, *, train: str, **others: str) -> None:
  """Sets a config file's own questions: `config.data.train`, and others that belong to it, such as `hard`, `evaluate`.

  Once config.data.train names other questions, the others are empty unless they are set, too: whoever names their own
  questions reads no set that they did not name.
  """
  config.data.train = train
  named = config.data.get_ref("train")
  for name, path in others.items():
    beside = types.SimpleNamespace(fn=lambda now, path=path: path if now == train else "", args=())
    config.data[name] = ml_collections.FieldReference(named, op=beside)  # a value that is set replaces the reference


SMOKE = dict(
  steps=2,
  model=dict(path="", dtype="float32", remat=False),
  rollout=dict(
    prompts_per_step=2, group_size=2, lanes=4, rows=8, context=2048, prefill=256, page=128, max_new_tokens=16
  ),
  learner=dict(micro_rows=2, row_lengths=(2048,)),
  checkpoint=dict(every=1),
  evaluate=dict(examples=4),
  sft=dict(batch=0, epochs=0, warmup_share=0.0),
)


def shrink(config: Config) -> Config:
  """The same run in miniature, for ":smoke" variants: sizes shrink; rewards, loss and recipe switches stay."""
  config.update(SMOKE)
  config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, config.steps)
  config.critic.warmup_steps = min(config.critic.warmup_steps, config.steps)
  config.loss.minibatches = min(config.loss.minibatches, config.rollout.prompts_per_step)
  config.rollout.reserve = min(config.rollout.reserve, config.rollout.max_new_tokens)
  return config


def validate(config: Config | settings.Settings, *, training: bool = True) -> settings.Settings:
  """The typed settings, after a check of each by itself and of the relations between them. Nothing is loaded.

  Args:
    config: all settings. Typed ones are returned as they are.
    training: whether episodes are packed into rows. An evaluation may play episodes that are longer than a row.

  Raises:
    ValueError: the message has the setting's path, its value and what it must be.
  """
  result = settings.of(config)
  lengths, context = result.learner.row_lengths, result.rollout.context
  if training and lengths and max(lengths) < context:
    raise ValueError(
      f"config.learner.row_lengths={lengths}: the longest must hold an episode of config.rollout.context={context} "
      "tokens."
    )
  return result
