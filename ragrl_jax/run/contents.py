"""Digests of the files that a run's settings name: a resumed run compares them, whatever the files' paths are."""

import hashlib
import itertools
import json
import linecache
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ragrl_jax import judging, recipes, structs
from ragrl_jax.data import digests
from ragrl_jax.models import hub, lora, tensors
from ragrl_jax.retrieval import api
from ragrl_jax.settings import Settings, fields
from ragrl_jax.store import folders, sums

_SETTINGS = re.compile(r"^def get_config\b.*?(?=^[^\s#)]|\Z)", re.MULTILINE | re.DOTALL)
_READ = (".json", ".jinja", ".model", ".txt")  # files of a model's folder that are read beside the weights


def of_folders(config: Settings, terms: Sequence[str] | None = None) -> dict[str, str]:
  """Setting → digest of its folder: the models and tokenizers that training reads but does not train.

  With full fine-tuning too: the reference policy of a KL is read from config.model.path. `terms` are those that the
  recipe has judged; None for fine-tuning, which has no judges and no encoder of queries. The base of a judge's adapters
  has an entry of its own.
  """
  paths = {name: fields.at(config, name) for name in ("model.path", "model.lora.path", "prompting.tokenizer")}
  if config.loss.teacher.local:
    paths["loss.teacher.path"] = config.loss.teacher.path
  if terms is not None:
    paths["retrieval.query_encoder"] = config.retrieval.query_encoder
    for term, judge in judging.chosen(config.judge, config.judges, terms).items():
      if judge.kind in ("nli", "reward_model"):  # the other kinds read no model here
        name = f"judges.{term}.path" if term and config.judges.get(term, {}).get("path") else "judge.path"
        paths[name] = judge.path
        if lora.is_folder(adapters := hub.folder(judge.path, f"config.{name}", part="config")):
          paths[f"{name} (its base)"] = lora.find_base(adapters, "")
  return {setting: digest for setting, place in paths.items() if place and (digest := of_folder(place, setting))}


def of_folder(place: str, setting: str = "") -> str:
  """Digest of a model's folder or file: "WEIGHTS+REST"; "" if there is none. Its path does not matter.

  WEIGHTS is `TensorFolder.fingerprint`, of model, adapters and an encoder's Dense modules. REST is of the configs and
  the tokenizer, or the commit of a name on the hub.
  """
  path = pathlib.Path(place)
  if hub.is_name(place):  # its folder has the files that were asked for so far
    path = hub.folder(place, f"config.{setting}", part="tokenizer" if setting == "prompting.tokenizer" else "model")
    if setting == "prompting.tokenizer":
      return f"+{path.name}"
  if path.is_file():
    return "+" + sums.digest(path)[:16]
  if not path.is_dir():
    return ""
  weights = []
  of_model = dict(stem="model", config="config.json")
  inside = [(dense.parent, of_model) for dense in sorted(path.glob("?_*/model.safetensors"))]  # of an encoder
  for place_of, names in ((path, of_model), (path, dict(stem=lora.STEM, config=lora.CONFIG)), *inside):
    if any(place_of.glob(f"{names['stem']}.safetensors*")):
      weights.append(tensors.TensorFolder(place_of, **names).fingerprint())
  if hub.is_name(place):
    return f"{'-'.join(weights)}+{path.name}"
  digest = hashlib.sha256()
  for file in sorted(path.rglob("*")):
    if file.suffix in _READ and not file.name.endswith(".index.json") and not _in_results(file.parent, path):
      content = file.read_bytes()
      if file.name == lora.CONFIG:  # the base's path
        content = json.dumps(dict(json.loads(content), base_model_name_or_path=""), sort_keys=True).encode()
      digest.update(f"{file.relative_to(path).as_posix()} {len(content)} ".encode() + content)
  return f"{'-'.join(weights)}+{digest.hexdigest()[:16]}"


def _in_results(folder: pathlib.Path, model: pathlib.Path) -> bool:
  """Whether a folder below a model's holds a run, an evaluation or an index, or lies in such a folder."""
  below = itertools.takewhile(lambda one: one != model, (folder, *folder.parents))
  return any((one / mark).exists() for one in below for marks in folders.MARKS.values() for mark in marks)


def of_questions(examples: Sequence[structs.Example]) -> str:
  """Digest of questions, passages, golds and options, without the names of their sets."""
  return _hash({name: digest for name, digest in digests.by_field(examples).items() if name != "sets"})


def of_recipe(name: str) -> str:
  """Digest of the file, or a notebook's cell, with a registered recipe's `build`; "" for a recipe of this package.

  Settings are compared by themselves, so `get_config` in that file does not count. Neither do files that it imports.
  """
  if (build := recipes.registered(name)) is None:
    return ""
  file = getattr(getattr(build, "__code__", None), "co_filename", "")  # the cell's is known to linecache only
  linecache.checkcache(file)
  return _hash(_SETTINGS.sub("", "".join(linecache.getlines(file))))


def of_retriever(retriever: Any) -> str:
  """Digest of a retriever's description: checksum of the passages, index, encoder and its weights."""
  return _hash(api.placeless(retriever.describe()))


def base(config: Settings) -> str:
  """Fingerprint of the frozen base of config.model's adapters; "" without adapters or without a folder."""
  adapted = config.model.path and (config.model.lora.rank or config.model.lora.path)
  return tensors.TensorFolder(hub.folder(config.model.path, "config.model.path")).fingerprint() if adapted else ""


def _hash(value: Any) -> str:
  return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
