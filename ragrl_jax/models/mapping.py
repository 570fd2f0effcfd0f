"""Converts between our parameters, which are stacked over the layers, and a folder's tensors, one per layer.

A table gives for each of our parameters the name of its tensor; `{}` stands for the layer's number. Matrices under
layers/ are transposed: [in, out] here, [out, in] in the files. Other parameters have the same shape.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ragrl_jax.models.tensors import TensorFolder
from ragrl_jax.parallel import rules

Table = Mapping[str, str]
PIECE = 2**26  # bytes of an array that are copied from the devices at a time


def named(tree: Any) -> Iterator[tuple[str, Any]]:
  """(path/of/parameter, leaf) in the tree's order."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    yield "/".join(rules.names_of(path)), leaf


def tensor_names(table: Table, name: str, shape: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
  """(name, shape in the file) of the tensors of our parameter: one, or one per layer."""
  template = table[name]
  if "{}" not in template:
    return [(template, tuple(shape))]
  return [(template.format(i), tuple(shape[:0:-1])) for i in range(shape[0])]


def refuse_layers(files: TensorFolder, where: str, **layers: int) -> None:
  """Raises a ValueError if config.json gives more layers than the folder has tensors.

  This check comes before any memory of that size is allocated, since a config.json may contain any number.

  Args:
    files: the folder's tensors.
    where: the path of its config.json.
    **layers: number of layers, by its key in config.json.
  """
  for key, number in layers.items():
    if number > len(files.names()):
      raise ValueError(
        f"{where}: {key} is {number}, and there are {len(files.names())} tensors beside it: tensors "
        "and config.json must be of the same model."
      )


def refuse_surplus(files: TensorFolder, table: Table, abstract: Any, ignore: Callable[[str], bool], model: str) -> None:
  """Raises a ValueError for a tensor that belongs to no parameter of the model, unless `ignore(name)` is true."""
  known = {tensor for name, leaf in named(abstract) for tensor, _ in tensor_names(table, name, leaf.shape)}
  surplus = sorted(tensor for tensor in files.names() - known if not ignore(tensor))
  if surplus:
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} has no place in a {model} model as config.json describes it "
      f"({len(surplus)} such tensors): tensors and config.json must be of the same model."
    )


def load(files: TensorFolder, table: Table, abstract: Any, shardings: Any = None) -> Any:
  """Reads the tree of arrays that `abstract` describes.

  With shardings, each device's part is read directly from disk; the host holds one part at a time.

  Raises:
    ValueError: a tensor is missing or has another shape. All are checked before any memory is allocated.
  """
  for name, leaf in named(abstract):
    for entry in tensor_names(table, name, leaf.shape):
      files.check(*entry)
  spread = None if shardings is None else jax.tree.leaves(shardings)
  leaves = []
  for i, (name, leaf) in enumerate(named(abstract)):
    read = functools.partial(_read, files, tensor_names(table, name, leaf.shape), "{}" in table[name], leaf)
    leaves.append(
      jnp.asarray(read((slice(None),) * leaf.ndim)) if spread is None else _part_by_part(leaf.shape, spread[i], read)
    )
  return jax.tree.unflatten(jax.tree.structure(abstract), leaves)


def _part_by_part(shape, sharding: jax.sharding.Sharding, read: Callable[[tuple[slice, ...]], np.ndarray]) -> jax.Array:
  """Reads an array part by part; a part that several devices hold is read once."""
  holders: dict[tuple, list] = {}
  for device, index in sharding.addressable_devices_indices_map(shape).items():
    holders.setdefault(tuple((piece.start, piece.stop) for piece in index), []).append(device)
  parts = []
  for bounds, devices in holders.items():
    part = read(tuple(slice(*ends) for ends in bounds))
    parts += [jax.device_put(part, device) for device in devices]
    jax.block_until_ready(parts)  # so that the host's copy is freed before the next part is read
  return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _read(files, entries, stacked, leaf, index: tuple[slice, ...]) -> np.ndarray:
  """The part of our parameter at this index; only this part of the files is read."""
  dtype = np.dtype(leaf.dtype)
  if not stacked:
    return np.asarray(files.open(*entries[0])[index], dtype=dtype)
  chosen = entries[index[0]]
  sizes = [len(range(*part.indices(size))) for part, size in zip(index[1:], leaf.shape[1:])]
  out = np.empty((len(chosen), *sizes), dtype)
  for place, entry in zip(out, chosen):
    place[...] = files.open(*entry)[index[:0:-1]].T
  return out


def entries(table: Table, params: Any) -> list[tuple[str, tuple[int, ...], Callable[[], Iterator[np.ndarray]]]]:
  """(name, shape, reader) of every tensor, for `tensors.write`. A reader gathers its tensor from all hosts.

  So all hosts must call all readers, in the same order.
  """
  found = []
  for name, leaf in named(params):
    for i, (tensor, shape) in enumerate(tensor_names(table, name, leaf.shape)):
      read = functools.partial(_layer_to_host, leaf, i) if "{}" in table[name] else functools.partial(_pieces, leaf)
      found.append((tensor, shape, read))
  return found


def hand_over(entries) -> None:
  """Calls all readers without writing: what the other processes do while the first one writes the entries."""
  for _, _, read in entries:
    for _ in read():
      pass


@jax.jit
def _layer(stacked, number):
  return jax.lax.dynamic_index_in_dim(stacked, number, keepdims=False)


def _layer_to_host(leaf: jax.Array, layer: int) -> Iterator[np.ndarray]:
  yield np.concatenate(list(_pieces(_layer(leaf, np.int32(layer))))).T


@functools.partial(jax.jit, static_argnames="size")
def _rows(part, start, size):
  return jax.lax.dynamic_slice_in_dim(part, start, size)


def _pieces(x: jax.Array) -> Iterator[np.ndarray]:
  """The array in pieces along its first axis, of at most PIECE bytes, so that no device or host holds all of it."""
  if not x.is_fully_addressable:
    x = multihost_utils.process_allgather(x, tiled=True)
    yield x
    return
  rows = max(1, PIECE // (x.nbytes // len(x)))
  for start in range(0, len(x), rows):
    stop = min(start + rows, len(x))
    piece = np.empty((stop - start, *x.shape[1:]), x.dtype)
    for shard in x.addressable_shards:
      first, last, _ = shard.index[0].indices(len(x))
      low, high = max(start, first), min(stop, last)
      if shard.replica_id == 0 and low < high:
        # A jitted slice: np.asarray of the whole shard would stay in memory as long as the shard.
        piece[low - start : high - start, *shard.index[1:]] = _rows(shard.data, np.int32(low - first), high - low)
    yield piece
