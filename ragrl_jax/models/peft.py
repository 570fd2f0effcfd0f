"""Loads and saves LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

Source: peft 0.21, `LoraConfig` and `get_peft_model_state_dict`.
"""

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import hf, hub, lora, mapping, tensors
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.families import TENSORS as OF_MODEL
from ragrl_jax.parallel import hosts, rules

CONFIG, STEM = "adapter_config.json", "adapter_model"
BASE = "base_fingerprint"  # metadata of adapter_model.safetensors: `TensorFolder.fingerprint` of the base
# Our matrix → the module's path in transformers; target_modules usually lists the paths' last words.
MODULES = {name: OF_MODEL[f"layers/{name}"].removesuffix(".weight") for name in lora.MATRICES}
TENSORS = {
  f"layers/{form.format(name)}": f"base_model.model.{module}.lora_{side}.weight"
  for name, module in MODULES.items()
  for form, side in ((lora.A, "A"), (lora.B, "B"))
}
# Settings that are read here, or that do not change the model's outputs (dropout is for training only). All others must
# be off.
HARMLESS = {
  "r",
  "lora_alpha",
  "target_modules",
  "peft_type",
  "task_type",
  "auto_mapping",
  "base_model_name_or_path",
  "revision",
  "peft_version",
  "inference_mode",
  "init_lora_weights",
  "bias",
  "runtime_config",
  "megatron_core",
  "qalora_group_size",
  "lora_dropout",
}


def is_folder(path: str | os.PathLike) -> bool:
  """Whether the path is a folder of adapters."""
  return (pathlib.Path(path) / CONFIG).exists()


def base(path: str | os.PathLike, otherwise: str) -> str:
  """The base model that adapter_config.json names, if it is a folder here; else `otherwise`; else its name on the hub.

  Raises:
    ValueError: there is none of them.
  """
  where = pathlib.Path(path) / CONFIG
  values = hf.read_json(where)
  named, revision = values.get("base_model_name_or_path") or "", values.get("revision")
  for folder in (named, otherwise):
    if folder and (pathlib.Path(folder).is_dir() or (folder == otherwise and hub.is_name(folder))):
      return folder
  if hub.is_name(named):
    return f"{named}@{revision}" if revision else named
  raise ValueError(f"{where}: the base model {named!r} is not a folder here: set config.model.path to its folder.")


def save_adapters(model: Decoder, path: str | os.PathLike, *, base: str, fingerprint: str = "") -> None:
  """Writes a folder for `peft`, in float32. All processes of a run must call it; process 0 writes.

  Args:
    model: a decoder with adapters, on any devices.
    path: the folder, made if need be.
    base: the base model's folder or its name on the hub, written as base_model_name_or_path.
    fingerprint: `TensorFolder.fingerprint` of the base on which they were trained; "" records none.
  """
  known, commit = hub.parts(base) if hub.is_name(base) else (str(pathlib.Path(base).resolve()), "")
  names = [name for name in lora.MATRICES if hasattr(model.layers, lora.A.format(name))]
  rank, alpha = getattr(model.layers, lora.A.format(names[0])).shape[-1], model.layers.lora_alpha
  entries = mapping.entries(TENSORS, lora.split(model)[1])
  if not hosts.is_first():
    mapping.hand_over(entries)
    return
  folder = pathlib.Path(path)
  folder.mkdir(parents=True, exist_ok=True)
  metadata = {BASE: fingerprint} if fingerprint else None
  tensors.write(folder, entries, np.float32, shard_bytes=2**62, stem=STEM, metadata=metadata)  # PEFT reads no shards
  values = dict(
    peft_type="LORA",
    task_type="CAUSAL_LM",
    base_model_name_or_path=known,
    revision=commit or None,
    r=rank,
    lora_alpha=int(alpha) if alpha.is_integer() else alpha,
    target_modules=[MODULES[name].rsplit(".", 1)[-1] for name in names],
    lora_dropout=0.0,
    bias="none",
    fan_in_fan_out=False,
    use_rslora=False,
    use_dora=False,
    init_lora_weights=True,
    inference_mode=True,
    rank_pattern={},
    alpha_pattern={},
    modules_to_save=None,
    layers_to_transform=None,
  )
  partial = folder / f"{CONFIG}.partial"
  partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
  os.replace(partial, folder / CONFIG)


def load_adapters(model: Decoder, path: str | os.PathLike, *, base: str | os.PathLike = "") -> None:
  """Adds a folder's adapters to the model, in place: in float32, sharded over the model's mesh if it has one.

  Args:
    model: the base, without adapters.
    path: the folder of the adapters.
    base: the folder of the base, which is compared with the record of the training; "" compares nothing.

  Raises:
    ValueError: the folder is missing; the adapters were trained on another base; a setting is not supported; a tensor
      is missing, surplus or of another shape; or the model has adapters already.
  """
  where = pathlib.Path(path) / CONFIG
  rank, alpha, names = _settings(hf.read_json(where), str(where), model)
  files = tensors.TensorFolder(path, stem=STEM, config=CONFIG)
  if base:
    refuse_other_base(path, files.metadata.get(BASE, ""), base)
  tree = lora.shapes(model, names, rank)
  known = {
    tensor for name, leaf in mapping.named(tree) for tensor, _ in mapping.tensor_names(TENSORS, name, leaf.shape)
  }
  if surplus := sorted(files.names() - known):
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} is not an adapter of a {model.config.family} model with "
      f"{model.config.num_layers} layers, or {CONFIG} does not name its module ({len(surplus)} such tensors)."
    )
  shardings = None if model.mesh is None else rules.shardings(model.mesh, tree)
  lora.attach(model, mapping.load(files, TENSORS, tree, shardings)["layers"], alpha)


def refuse_other_base(adapters: str | os.PathLike, recorded: str, base: str | os.PathLike, found: str = "") -> None:
  """Refuses adapters on another base than the one that they were trained on.

  Args:
    adapters: their folder or checkpoint, for the message.
    recorded: fingerprint of the base in training; "" if it is not known, as for adapters from elsewhere.
    base: the base's folder.
    found: the fingerprint of `base`; "" reads it from the folder.

  Raises:
    ValueError: the fingerprints differ.
  """
  if (
    recorded
    and (found := found or tensors.TensorFolder(hub.folder(base, "config.model.path")).fingerprint()) != recorded
  ):
    raise ValueError(
      f"{adapters}: these adapters were trained on other weights than those in {base} (fingerprint {recorded[:12]}, "
      f"not {found[:12]}): put the base model of the training there (config.model.path)."
    )


def add_zeros(model: Decoder, path: str | os.PathLike) -> None:
  """Adds adapters of a folder's shapes to the model, in place: zeros, for a plan. The folder's tensors are not read.

  Raises:
    ValueError: see `load_adapters`.
  """
  where = pathlib.Path(path) / CONFIG
  rank, alpha, names = _settings(hf.read_json(where), str(where), model)
  tree = lora.shapes(model, names, rank)["layers"]
  lora.attach(model, {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in tree.items()}, alpha)


def _settings(values: Mapping[str, Any], where: str, model: Decoder) -> tuple[int, float, tuple[str, ...]]:
  """(rank, alpha, matrices) of an adapter_config.json."""
  hf.refuse(
    values,
    where,
    peft_type=("LORA",),
    bias=("none",),
    init_lora_weights=(True, False, "gaussian"),
    task_type=("CAUSAL_LM",),
  )
  for key in sorted(values.keys() - HARMLESS):
    if values[key]:
      raise ValueError(
        f"{where}: {key} is {values[key]!r}: it is not supported; train or convert the adapters without it."
      )
  rank, alpha, targets = (hf.required(values, key, where) for key in ("r", "lora_alpha", "target_modules"))
  if not (isinstance(rank, int) and rank >= 1 and isinstance(alpha, int | float)):
    raise ValueError(f"{where}: r is {rank!r}, lora_alpha {alpha!r}: they must be a whole number from 1, and a number.")
  return rank, float(alpha), _matrices(targets, where, model)


def _matrices(targets: Any, where: str, model: Decoder) -> tuple[str, ...]:
  """The matrices that target_modules selects: as in PEFT, a regular expression of paths, or a list of path ends."""
  words = [targets] if isinstance(targets, str) else targets
  layers, modules = model.config.num_layers, {name: MODULES[name] for name in lora.matrices(model.config)}
  try:
    finds = lambda word, path: (
      re.fullmatch(word, path) is not None if isinstance(targets, str) else f".{path}".endswith(f".{word}")
    )
    found = {
      word: {(name, i) for name, module in modules.items() for i in range(layers) if finds(word, module.format(i))}
      for word in words
    }
  except re.error as error:
    raise ValueError(f"{where}: target_modules {targets!r} is not a regular expression ({error}).") from error
  for word, places in found.items():
    if not places:
      raise ValueError(
        f"{where}: target module {word!r} names no matrix that can have an adapter: use "
        f"{', '.join(module.rsplit('.', 1)[-1] for module in modules.values())}."
      )
  places = set().union(*found.values())
  names = tuple(name for name in modules if any((name, i) in places for i in range(layers)))
  for name in names:
    if not all((name, i) in places for i in range(layers)):
      raise ValueError(
        f"{where}: target_modules names {MODULES[name].rsplit('.', 1)[-1]} in some of {layers} layers: "
        "here a matrix has an adapter in all layers or in none."
      )
  return names
