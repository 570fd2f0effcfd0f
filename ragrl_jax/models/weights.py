"""Loads and saves decoder weights as a Hugging Face folder (config.json and safetensors)."""

import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import families, hf, lora, mapping, tensors
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import hosts, rules


def config_of(path: str | os.PathLike, *, embeds: bool = False) -> DecoderConfig:
  """The decoder config of a Hugging Face folder; `embeds`: the model may be bidirectional.

  An unembedding in the folder that differs from the embedding is used, even if config.json calls the two tied.

  Raises:
    ValueError: the folder has no config.json, or its config.json is of a model that this decoder does not support.
  """
  folder = pathlib.Path(path)
  where = folder / "config.json"
  if not where.is_file() and (folder / "adapter_config.json").is_file():
    raise ValueError(
      f"{folder} holds adapters: give it as config.model.lora.path, and their base as config.model.path."
    )
  values = hf.read_json(where)
  if "model_type" not in values and "recipe" in values:
    inside = folder / "model"
    there = (
      f"use {inside}" if inside.is_dir() else f"`ragrl export --checkpoint {folder} --out FOLDER` writes its model"
    )
    raise ValueError(f"{folder} is a run's folder, not a model's: {there}.")
  config = DecoderConfig.from_hf(values, str(where), embeds=embeds)
  stamps = tuple((str(file), file.stat().st_mtime_ns) for file in sorted(folder.glob("model*.safetensors*")))
  if config.tied and stamps and _own_head(folder, stamps):
    return dataclasses.replace(config, tied=False)
  return config


@functools.lru_cache(maxsize=16)
def _own_head(folder: pathlib.Path, stamps: tuple) -> bool:
  """Whether the folder has an unembedding with other values than the embedding; `stamps` are its files' times."""
  files = tensors.TensorFolder(folder)
  for layout in families.LAYOUTS:
    head, embedding = (layout(families.TENSORS[name]) for name in ("lm_head", "embedding"))
    if {head, embedding} <= files.names() and not files.equal(head, embedding):
      logging.warning(
        "%s: config.json ties the unembedding to the embedding, but %s differs from it: it is used, and trained and "
        "saved apart.",
        folder,
        head,
      )
      return True
  return False


def load_pretrained(
  path: str | os.PathLike,
  *,
  dtype=jnp.float32,
  mesh: jax.sharding.Mesh | None = None,
  compute_dtype=None,
  remat: bool = False,
  head: bool = True,
) -> tuple[Decoder, DecoderConfig]:
  """A decoder from a Hugging Face folder.

  Args:
    path: a folder with config.json and safetensors, one file or shards with an index.
    dtype: dtype of the weights in memory, whatever the files' dtype is.
    mesh: shards the weights over it (`parallel/rules.py`); each device's part is read directly from disk.
    compute_dtype: dtype of the matmuls; `dtype` by default.
    head: False leaves out the unembedding, for a decoder that embeds texts; its folder may lack the unembedding, and it
      may be bidirectional.

  Raises:
    ValueError: an unknown architecture; a missing or surplus tensor, or one of another shape; a damaged file; heads
      that the mesh does not divide.
  """
  config, files, table, graphdef, abstract = _opened(
    path, head=head, param_dtype=dtype, remat=remat, mesh=mesh, dtype=dtype if compute_dtype is None else compute_dtype
  )
  shardings = None
  if mesh is not None:
    heads = dict(heads=config.num_heads, kv_heads=config.num_kv_heads)
    rules.check(mesh.shape, **heads, vocab=config.vocab_size, **config.parts)
    shardings = rules.shardings(mesh, abstract)
  return nnx.merge(graphdef, mapping.load(files, table, abstract, shardings, families.rows(config))), config


def _opened(path: str | os.PathLike, *, head: bool, **decoder):
  """(config, files, table of names, graphdef, abstract state), after all checks that need no weight."""
  folder = pathlib.Path(path)
  where = folder / "config.json"
  config = config_of(folder, embeds=not head)
  if not head:
    config = dataclasses.replace(config, tied=True)
  files = tensors.TensorFolder(folder)
  mapping.refuse_layers(files, str(where), num_hidden_layers=config.num_layers)
  embedding, table = families.TENSORS["embedding"], families.tensors(config)
  layouts = [layout for layout in families.LAYOUTS if layout(embedding) in files.names()] or families.LAYOUTS
  table = mapping.renamed(table, layouts[0])
  if head and config.tied and table["lm_head"] in files.names() and table["embedding"] not in files.names():
    table["embedding"] = table["lm_head"]  # safetensors' save_model keeps the first name of an array
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), **decoder)))
  # Some tied checkpoints contain a copy of the embedding; older Llama files contain the rotary frequencies.
  unused = families.BESIDE if config.traits.hybrid or layouts[0] in families.LAYOUTS[2:] else ()
  ignore = lambda name: (
    (config.tied and name == table["lm_head"]) or name.endswith("rotary_emb.inv_freq") or name.startswith(unused)
  )
  mapping.refuse_surplus(files, table, abstract, ignore, config.family)
  return config, files, table, graphdef, abstract


def copy_pretrained(
  source: str | os.PathLike,
  path: str | os.PathLike,
  *,
  dtype,
  shard_bytes: int = 5_000_000_000,
  added: Sequence[int] = (),
) -> DecoderConfig:
  """Checks a folder and copies it, in our layout and one dtype. One tensor at a time is in memory.

  Args:
    path: the folder to write; must not be `source`.
    added: ids of new tokens, which follow all others. Their rows of embedding and unembedding become the mean of the
      rows before the first of them; missing rows are added.

  Raises:
    ValueError: as `load_pretrained`, or the two folders are the same.
  """
  if pathlib.Path(source).resolve() == pathlib.Path(path).resolve():
    raise ValueError(f"{path} is also the folder to read from: write to another one.")
  config, files, table, _, abstract = _opened(source, head=True)
  entries, names = [], families.tensors(config)
  for name, leaf in mapping.named(abstract):
    own_names = mapping.tensor_names(names, name, leaf.shape)
    for (tensor, shape), (name_in_file, _) in zip(own_names, mapping.tensor_names(table, name, leaf.shape)):
      files.open(name_in_file, shape)  # every tensor is checked before the first is written
      read = functools.partial(files.open, name_in_file, shape)
      if added and name in ("embedding", "lm_head"):
        shape = (max(shape[0], max(added) + 1), *shape[1:])
        read = functools.partial(_with_rows, read, shape[0], added)
      entries.append((tensor, shape, read))
  if added:
    config = dataclasses.replace(config, vocab_size=max(config.vocab_size, max(added) + 1))
  _write(config, entries, path, np.dtype(dtype), shard_bytes)
  return config


def _with_rows(read, size: int, added: Sequence[int]) -> np.ndarray:
  """An embedding table with `size` rows; the rows of added tokens are the mean of the rows before the first of them."""
  rows = np.asarray(read(), np.float32)
  mean = rows[: min(added)].mean(axis=0)
  grown = np.concatenate([rows, np.broadcast_to(mean, (size - len(rows), len(mean)))])
  grown[list(added)] = mean
  return grown


def save_pretrained(
  model: Decoder, config: DecoderConfig, path: str | os.PathLike, *, dtype=None, shard_bytes: int = 5_000_000_000
) -> None:
  """Writes config.json and safetensors for `transformers`. The host has at most one layer's tensor in memory.

  All processes of a run must call it; process 0 writes.

  Args:
    model: the decoder, with weights on any devices; LoRA adapters are merged into them.
    dtype: dtype of the stored weights; by default that of the model.
  """
  params = nnx.split(lora.merged(model, dtype))[1]
  dtype = np.dtype(jax.tree.leaves(params)[0].dtype if dtype is None else dtype)
  entries = mapping.entries(families.tensors(config), params, families.rows(config))
  if not hosts.is_first():
    mapping.hand_over(entries)
    return
  _write(config, entries, path, dtype, shard_bytes)


def write_generation_config(path: str | os.PathLike, eos_ids: Sequence[int], bos_id: int | None) -> None:
  """Writes the ids that end a turn to generation_config.json, beside what it has. Servers end replies by them.

  A file that names all of them is left as it is.
  """
  file = pathlib.Path(path) / "generation_config.json"
  values = dict(bos_token_id=bos_id) | (hf.read_json(file) if file.is_file() else {})
  named = values.get("eos_token_id")
  named = named if isinstance(named, list) else [named]
  if file.is_file() and set(eos_ids) <= set(named):
    return
  ids = list(dict.fromkeys([*(i for i in named if i is not None), *eos_ids]))
  values = {**values, "eos_token_id": ids[0] if len(ids) == 1 else ids}
  values = {name: value for name, value in values.items() if value is not None}
  hf.write_json(file, values)


def _write(config: DecoderConfig, entries, path: str | os.PathLike, dtype: np.dtype, shard_bytes: int) -> None:
  folder = pathlib.Path(path)
  folder.mkdir(parents=True, exist_ok=True)
  tensors.write(folder, entries, dtype, shard_bytes=shard_bytes)
  hf.write_json(folder / "config.json", {**config.to_hf(), "torch_dtype": str(dtype)})
