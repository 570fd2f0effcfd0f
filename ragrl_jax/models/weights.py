"""Decoder weights ↔ a Hugging Face folder (config.json and safetensors)."""

import functools
import json
import os
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from ragrl_jax.models import hf, tensors
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import rules

# Our parameter → its tensor there. Matrices under layers/ are transposed: [in, out] here, [out, in] there.
TENSORS = {
  "embedding": "model.embed_tokens.weight",
  "final_norm": "model.norm.weight",
  "lm_head": "lm_head.weight",
  "layers/attention_norm": "model.layers.{}.input_layernorm.weight",
  "layers/q": "model.layers.{}.self_attn.q_proj.weight",
  "layers/k": "model.layers.{}.self_attn.k_proj.weight",
  "layers/v": "model.layers.{}.self_attn.v_proj.weight",
  "layers/o": "model.layers.{}.self_attn.o_proj.weight",
  "layers/q_bias": "model.layers.{}.self_attn.q_proj.bias",
  "layers/k_bias": "model.layers.{}.self_attn.k_proj.bias",
  "layers/v_bias": "model.layers.{}.self_attn.v_proj.bias",
  "layers/o_bias": "model.layers.{}.self_attn.o_proj.bias",
  "layers/q_norm": "model.layers.{}.self_attn.q_norm.weight",
  "layers/k_norm": "model.layers.{}.self_attn.k_norm.weight",
  "layers/mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
  "layers/gate": "model.layers.{}.mlp.gate_proj.weight",
  "layers/up": "model.layers.{}.mlp.up_proj.weight",
  "layers/down": "model.layers.{}.mlp.down_proj.weight",
}


def load_pretrained(
  path: str | os.PathLike, *, dtype=jnp.float32, mesh: jax.sharding.Mesh | None = None, compute_dtype=None,
  remat: bool = False,
) -> tuple[Decoder, DecoderConfig]:
  """A decoder from a Hugging Face folder.

  Args:
    path: holds config.json and safetensors, one file or shards with an index.
    dtype: of the weights in memory, whatever the files hold.
    mesh: spread the weights over it (`parallel/rules.py`): each device's part is read straight from disk.
    compute_dtype: of the matmuls; `dtype` by default.
    remat: as the Decoder's.

  Raises:
    ValueError: an unknown architecture; a tensor missing, surplus or of another shape; a damaged file.
  """
  folder = pathlib.Path(path)
  where = folder / "config.json"
  config = DecoderConfig.from_hf(hf.read_json(where), str(where))
  files = tensors.TensorFolder(folder)
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(
    config, rngs=nnx.Rngs(0), param_dtype=dtype, dtype=dtype if compute_dtype is None else compute_dtype, remat=remat,
    mesh=mesh)))
  _refuse_surplus(files, config, abstract)
  shardings = None if mesh is None else jax.tree.leaves(rules.shardings(mesh, abstract))
  params = [_load(files, name, leaf, shardings and shardings[i]) for i, (name, leaf) in enumerate(_named(abstract))]
  return nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(abstract), params)), config


def _load(files, name: str, leaf, sharding) -> jax.Array:
  if sharding is None:
    return jnp.asarray(_read(files, name, leaf.shape, np.dtype(leaf.dtype), (slice(None),) * leaf.ndim))
  parts = {}  # devices that hold the same part share one reading of it

  def part(index):
    bounds = tuple((piece.start, piece.stop) for piece in index)
    if bounds not in parts:
      parts[bounds] = _read(files, name, leaf.shape, np.dtype(leaf.dtype), index)
    return parts[bounds]

  return jax.make_array_from_callback(leaf.shape, sharding, part)


def tensor_names(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
  """The tensors, with their shapes there, that make up our parameter: one, or one a layer."""
  template = TENSORS[name]
  if "{}" not in template:
    return [(template, shape)]
  return [(template.format(i), shape[:0:-1]) for i in range(shape[0])]


def _refuse_surplus(files, config, abstract) -> None:
  known = {tensor for name, leaf in _named(abstract) for tensor, _ in tensor_names(name, leaf.shape)}
  # Some tied checkpoints keep a copy of the embedding; older Llama files keep the rotary frequencies.
  surplus = sorted(
    tensor for tensor in files.names() - known
    if not (config.tied and tensor == "lm_head.weight") and not tensor.endswith("rotary_emb.inv_freq"))
  if surplus:
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} has no place in a {config.family} model as config.json describes "
      f"it ({len(surplus)} such tensors): the two must be of one model.")


def _read(files, name: str, shape, dtype, index: tuple[slice, ...]) -> np.ndarray:
  """The part of our parameter at this index, from the files' tensors."""
  entries = tensor_names(name, shape)
  if "{}" not in TENSORS[name]:
    return np.asarray(files.open(*entries[0])[index], dtype=dtype)
  chosen = entries[index[0]]
  sizes = [len(range(*part.indices(size))) for part, size in zip(index[1:], shape[1:])]
  out = np.empty((len(chosen), *sizes), dtype)
  for place, entry in zip(out, chosen):
    place[...] = files.open(*entry)[index[:0:-1]].T
  return out


def _named(tree) -> Iterator[tuple[str, jax.Array]]:
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    yield "/".join(rules.names_of(path)), leaf


def save_pretrained(
  model: Decoder, config: DecoderConfig, path: str | os.PathLike, *, dtype=None, shard_bytes: int = 5_000_000_000,
) -> None:
  """Writes config.json and safetensors that `transformers` loads. One tensor at a time is held on the host.

  Args:
    model: the decoder, its weights on any devices. Every process of a run must call.
    config: its config.
    path: the folder, made if need be.
    dtype: to store the weights in; as they are by default.
    shard_bytes: files are closed before they would grow beyond this.
  """
  folder = pathlib.Path(path)
  params = list(_named(nnx.split(model)[1]))
  dtype = np.dtype(params[0][1].dtype if dtype is None else dtype)
  entries = [
    (*entry, functools.partial(_to_host, leaf, i if "{}" in TENSORS[name] else None))
    for name, leaf in params for i, entry in enumerate(tensor_names(name, leaf.shape))]
  if jax.process_index() != 0:  # the others only hand over their parts
    for _, _, read in entries:
      read()
    return
  folder.mkdir(parents=True, exist_ok=True)
  tensors.write(folder, entries, dtype, shard_bytes=shard_bytes)
  values = {**config.to_hf(), "torch_dtype": str(dtype)}
  partial = folder / "config.json.partial"
  partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
  os.replace(partial, folder / "config.json")


@jax.jit
def _layer(stacked, number):
  return jax.lax.dynamic_index_in_dim(stacked, number, keepdims=False)


def _to_host(leaf: jax.Array, layer: int | None) -> np.ndarray:
  """The parameter, or one layer of it as its tensor lies in the file; gathered from all hosts if it is spread."""
  part = leaf if layer is None else _layer(leaf, layer)
  part = np.asarray(part if part.is_fully_addressable else multihost_utils.process_allgather(part, tiled=True))
  return part if layer is None else part.T
