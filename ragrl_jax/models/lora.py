"""LoRA adapters: a frozen matrix W with two trained low-rank matrices A and B, x W + alpha / rank · (x A) B.

A pattern selects the matrices with adapters. It is a list of words; each is a regular expression that must match the
whole name of a matrix in `EVERY`: "q v" selects two, "[qkvo]" attention's, "gate|up|down" the MLP's, "qkv|z|out" those
of delta layers, ".*" all. Adapters are stacked over the layers as their matrices are: A [L, in, rank] in
`layers/NAME_lora_a`, B [L, rank, out] in `layers/NAME_lora_b`; a hybrid also has them under `delta/`. Folders of
adapters are in PEFT's format: adapter_config.json and adapter_model.safetensors.

Source: Hu et al. (arXiv 2106.09685) sec. 4.1. A is initialised as in PEFT; B is 0 at first, so adapters start without
effect.
"""

import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import families, hf, hub, mapping, tensors
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import STACKS, Decoder
from ragrl_jax.models.layers import Adapter
from ragrl_jax.parallel import hosts, rules
from ragrl_jax.store import jsonl

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")  # of a `layers.Layer`; a layer with experts has the first four
EVERY = (*MATRICES, "qkv", "z", "out")  # and of a delta layer
A, B = "{}_lora_a", "{}_lora_b"
CONFIG, STEM = "adapter_config.json", "adapter_model"
BASE = "base_fingerprint"  # metadata of adapter_model.safetensors: `TensorFolder.fingerprint` of the base
# Our matrix → the module's path in transformers; target_modules usually lists the paths' last words.
MODULES = {
  place.partition("/")[2]: tensor.removesuffix(".weight")
  for place, tensor in (families.DELTA | families.TENSORS).items()
  if place.partition("/")[2] in EVERY
}
# Settings that are read here, or that do not change the model's outputs (dropout is for training only). All others must
# be off.
HARMLESS = set(
  "r lora_alpha target_modules peft_type task_type auto_mapping base_model_name_or_path revision peft_version "
  "inference_mode init_lora_weights bias runtime_config megatron_core qalora_group_size lora_dropout".split()
)


def matrices(config: DecoderConfig) -> tuple[str, ...]:
  """Those of EVERY that a model of this shape has."""
  return MATRICES[:4] if config.num_experts else EVERY if config.traits.hybrid else MATRICES


def table(config: DecoderConfig, layout: Callable[[str], str] = families.LAYOUTS[0]) -> mapping.Table:
  """Our adapters → the names of their tensors, for a base with this one of `families.LAYOUTS`."""
  result: dict[str, Any] = {}
  path = lambda name: f"base_model.model.{layout(name).removesuffix('.weight')}"
  for place, tensor in families.tensors(config).items():
    if place.partition("/")[2] in EVERY:
      for form, side in ((A, "A"), (B, "B")):
        full_name = lambda name, side=side: f"{path(name)}.lora_{side}.weight"
        result |= mapping.renamed({form.format(place): tensor}, full_name)
  return result


def placed(model: Decoder, names: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
  """(stack, name, parameter) of those parameters of the model's stacks that have one of these names."""
  for stack in STACKS:
    for name in names:
      if (parameter := getattr(getattr(model, stack, None), name, None)) is not None:
        yield stack, name, parameter


def select_matrices(pattern: str, matrices: tuple[str, ...] = MATRICES) -> tuple[str, ...]:
  """Those of `matrices` that a pattern selects, in their order.

  Raises:
    ValueError: a word is not a regular expression or matches no matrix, or the pattern is empty.
  """
  selected = set()
  refusal = lambda says: ValueError(f"LoRA layers {pattern!r}{says} (config.model.lora.layers).")
  for word in pattern.split():
    try:
      names = [name for name in matrices if re.fullmatch(word, name)]
    except re.error as error:
      raise refusal(f": {word!r} is not a regular expression ({error})") from error
    if not names:
      raise refusal(f": {word!r} matches none of {', '.join(matrices)}")
    selected.update(names)
  if not selected:
    raise refusal(f" names no matrix: use some of {', '.join(matrices)}")
  return tuple(name for name in matrices if name in selected)


def shapes(model: Decoder, names: tuple[str, ...], rank: int) -> dict[str, Any]:
  """{stack: {parameter: float32 ShapeDtypeStruct}} of adapters on these matrices; a tree for `parallel/rules.py`."""
  result: dict[str, Any] = {}
  for stack, name, matrix in placed(model, names):
    layers, rows, columns = matrix.shape
    result.setdefault(stack, {})[A.format(name)] = jax.ShapeDtypeStruct((layers, rows, rank), jnp.float32)
    result[stack][B.format(name)] = jax.ShapeDtypeStruct((layers, rank, columns), jnp.float32)
  return result


def attach(model: Decoder, adapters: Mapping[str, Mapping[str, jax.Array]], alpha: float) -> None:
  """Adds these adapters, {stack: {parameter: array}}, to the model, in place.

  Raises:
    ValueError: the model has adapters already.
  """
  if has(model):
    raise ValueError("the model has LoRA adapters already: merge them first (lora.merged).")
  for stack, arrays in adapters.items():
    for name, array in arrays.items():
      setattr(getattr(model, stack), name, Adapter(array))
    getattr(model, stack).lora_alpha = float(alpha)


def add(model: Decoder, *, rank: int, alpha: float, layers: str, seed: int) -> None:
  """Adds new float32 adapters to the model, in place; its outputs do not change.

  Args:
    alpha: the adapters' output is multiplied by alpha / rank.
    layers: the pattern of matrices (see the module's docstring).
    seed: seed of A. The draw for one matrix does not depend on which other matrices have adapters.

  Raises:
    ValueError: a rank below 1, a pattern that selects no matrix, or a model with adapters.
  """
  if rank < 1:
    raise ValueError(f"LoRA rank {rank}: it must be at least 1 (config.model.lora.rank).")
  names, key = select_matrices(layers, matrices(model.config)), jax.random.key(seed)
  tree = shapes(model, names, rank)
  values = jax.tree.map(jnp.zeros_like, tree)
  for stack, name, _ in placed(model, names):
    # PEFT's kaiming_uniform_(a=√5) over `in` inputs: bound √(6 / (1 + 5) / in).
    number = EVERY.index(name) + len(EVERY) * STACKS.index(stack)
    leaf = tree[stack][A.format(name)]
    bound = leaf.shape[1] ** -0.5
    noise = jax.random.uniform(jax.random.fold_in(key, number), leaf.shape, leaf.dtype, -bound, bound)
    values[stack][A.format(name)] = noise
  if model.mesh is not None:
    values = jax.device_put(values, rules.shardings(model.mesh, tree))
  attach(model, values, alpha)


def has(model: nnx.Module) -> bool:
  """Whether the model has adapters."""
  return bool(jax.tree.leaves(nnx.state(model, Adapter)))


def size(model: nnx.Module) -> int:
  """Number of parameters of the model's adapters; 0 without adapters."""
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, Adapter)))


def trainable(model: nnx.Module) -> type[nnx.Param]:
  """The filter for the trained parameters: the adapters, or all parameters of a model without adapters."""
  return Adapter if has(model) else nnx.Param


def split(model: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
  """(graphdef, trained, frozen): `nnx.merge(graphdef, trained, frozen)` is the model."""
  return nnx.split(model, trainable(model), ...)


def without(adapters: Any) -> Any:
  """Adapters without effect: with the same frozen weights they give the reference policy.

  They are zeros in memory of their own: an update donates the memory of the adapters.
  """
  return jax.tree.map(jnp.zeros_like, adapters)


def merged(model: Decoder, dtype: Any = None) -> Decoder:
  """An equivalent model without adapters: W + alpha / rank · A B, computed in float32.

  Args:
    dtype: dtype of the sums; by default W's. What adapters have learnt is often less than a step of 16 bits.
  """
  model = nnx.merge(*nnx.split(model))  # new modules with the same variables; below, variables are only replaced
  if not has(model):
    return model
  for stack, name, matrix in list(placed(model, EVERY)):
    layers, matrix = getattr(model, stack), matrix[...]
    if hasattr(layers, A.format(name)):
      a, b = getattr(layers, A.format(name)), getattr(layers, B.format(name))
      matrix_sum = _sum(matrix, a[...], b[...], layers.lora_alpha / a.shape[-1], jnp.dtype(dtype or matrix.dtype))
      setattr(layers, name, nnx.Param(matrix_sum))
      delattr(layers, A.format(name))
      delattr(layers, B.format(name))
  for stack in STACKS:
    if hasattr(layers := getattr(model, stack, None), "lora_alpha"):
      del layers.lora_alpha
  return model


@functools.partial(jax.jit, static_argnums=4)
def _sum(matrix, a, b, scale, dtype):
  product = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST) * scale
  return (matrix.astype(jnp.float32) + product).astype(dtype)


def is_folder(path: str | os.PathLike) -> bool:
  """Whether the path is a folder of adapters."""
  return (pathlib.Path(path) / CONFIG).exists()


def find_base(path: str | os.PathLike, otherwise: str) -> str:
  """The base model that adapter_config.json names, if it is a folder here; else `otherwise`; else its name on the hub.

  Raises:
    ValueError: there is none of them.
  """
  where = pathlib.Path(path) / CONFIG
  values = hf.read_json(where)
  base_name, revision = values.get("base_model_name_or_path") or "", values.get("revision")
  for folder in (base_name, otherwise):
    if folder and (pathlib.Path(folder).is_dir() or (folder == otherwise and hub.is_name(folder))):
      return folder
  if hub.is_name(base_name):
    return f"{base_name}@{revision}" if revision else base_name
  raise ValueError(f"{where}: the base model {base_name!r} is not a folder here: set config.model.path to its folder.")


def save_adapters(model: Decoder, path: str | os.PathLike, *, base: str, fingerprint: str = "") -> None:
  """Writes a folder for `peft`, in float32. All processes of a run must call it; process 0 writes.

  Args:
    base: the base model's folder or its name on the hub, written as base_model_name_or_path.
    fingerprint: `TensorFolder.fingerprint` of the base on which they were trained; "" records none.
  """
  base_name, commit = hub.parts(base) if hub.is_name(base) else (str(pathlib.Path(base).resolve()), "")
  kind = str(jsonl.read_object(hub.in_cache(base) / "config.json").get("model_type"))
  _, layout = families.WITH_IMAGES.get(kind, ("", families.ALONE))
  stack, first, a = next(found := placed(model, tuple(map(A.format, EVERY))))
  names = dict.fromkeys(name.removesuffix(A.format("")) for name in (first, *(name for _, name, _ in found)))
  rank, alpha = a.shape[-1], getattr(model, stack).lora_alpha
  named = table(model.config, layout)
  entries = mapping.entries(named, split(model)[1], families.rows(model.config))
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
    base_model_name_or_path=base_name,
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
  hf.write_json(folder / CONFIG, values)


def load_adapters(model: Decoder, path: str | os.PathLike, *, base: str | os.PathLike = "") -> None:
  """Adds a folder's adapters to the model, in place: in float32, sharded over the model's mesh if it has one.

  Args:
    model: the base, without adapters.
    base: the folder of the base, which is compared with the record of the training; "" compares nothing.

  Raises:
    ValueError: the folder is missing; the adapters were trained on another base; a setting is not supported; a tensor
      is missing, surplus or of another shape; or the model has adapters already.
  """
  tree, alpha = _described(path, model)
  files = tensors.TensorFolder(path, stem=STEM, config=CONFIG)
  if base:
    refuse_other_base(path, files.metadata.get(BASE, ""), base)
  for layout in families.LAYOUTS:
    named = table(model.config, layout)
    pairs = [pair for name, leaf in mapping.named(tree) for pair in mapping.tensor_names(named, name, leaf.shape)]
    if (known := set(dict(pairs))) & files.names():
      break
  if surplus := sorted(files.names() - known):
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} is not an adapter of a {model.config.family} model with "
      f"{model.config.num_layers} layers, or {CONFIG} does not name its module ({len(surplus)} such tensors)."
    )
  shardings = None if model.mesh is None else rules.shardings(model.mesh, tree)
  attach(model, mapping.load(files, named, tree, shardings, families.rows(model.config)), alpha)


def check(path: str | os.PathLike, config: DecoderConfig) -> None:
  """Refuses a folder whose adapter_config.json does not fit a model of this shape. No tensors are read.

  Raises:
    ValueError: see `load_adapters`.
  """
  _described(path, nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))


def refuse_other_base(adapters: str | os.PathLike, recorded: str, base: str | os.PathLike, found: str = "") -> None:
  """Refuses adapters on another base than the one that they were trained on.

  Args:
    recorded: fingerprint of the base in training; "" if it is not known, as for adapters from elsewhere.
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
  tree, alpha = _described(path, model)
  attach(model, jax.tree.map(jnp.zeros_like, tree), alpha)


def _described(path: str | os.PathLike, model: Decoder) -> tuple[dict[str, Any], float]:
  """(`shapes` of the adapters, alpha) by a folder's adapter_config.json."""
  file = pathlib.Path(path) / CONFIG
  values, where = hf.read_json(file), str(file)
  hf.refuse(values, where, peft_type=("LORA",), bias=("none",), task_type=("CAUSAL_LM",))
  hf.refuse(values, where, init_lora_weights=(True, False, "gaussian"))
  for key in sorted(values.keys() - HARMLESS):
    if values[key]:
      raise ValueError(
        f"{where}: {key} is {values[key]!r}: it is not supported; train or convert the adapters without it."
      )
  rank, alpha, targets = (hf.required(values, key, where) for key in ("r", "lora_alpha", "target_modules"))
  if not (isinstance(rank, int) and rank >= 1 and isinstance(alpha, int | float)):
    raise ValueError(f"{where}: r is {rank!r}, lora_alpha {alpha!r}: they must be a whole number from 1, and a number.")
  return shapes(model, _matrices(targets, where, model), rank), float(alpha)


def _matrices(targets: Any, where: str, model: Decoder) -> tuple[str, ...]:
  """The matrices that target_modules selects: as in PEFT, a regular expression of paths, or a list of path ends."""
  words = [targets] if isinstance(targets, str) else targets
  layers, tensors_of = model.config.num_layers, families.tensors(model.config)
  modules: dict[str, list[str]] = {}  # our matrix → the paths of all layers' modules
  for stack, name, matrix in placed(model, matrices(model.config)):
    there = mapping.tensor_names(tensors_of, f"{stack}/{name}", matrix.shape)
    modules.setdefault(name, []).extend(tensor.removesuffix(".weight") for tensor, _ in there)
  try:
    finds = lambda word, path: (
      re.fullmatch(word, path) is not None if isinstance(targets, str) else f".{path}".endswith(f".{word}")
    )
    paths_of = {word: {path for paths in modules.values() for path in paths if finds(word, path)} for word in words}
  except re.error as error:
    raise ValueError(f"{where}: target_modules {targets!r} is not a regular expression ({error}).") from error
  for word, places in paths_of.items():
    if not places:
      raise ValueError(
        f"{where}: target module {word!r} names no matrix that can have an adapter: use "
        f"{', '.join(MODULES[name].rsplit('.', 1)[-1] for name in modules)}."
      )
  selected = set().union(*paths_of.values())
  names = tuple(name for name in matrices(model.config) if selected & set(modules[name]))
  for name in names:
    if not selected >= set(modules[name]):
      raise ValueError(
        f"{where}: target_modules names {MODULES[name].rsplit('.', 1)[-1]} in some of {layers} layers: "
        "here a matrix has an adapter in all layers or in none."
      )
  return names
