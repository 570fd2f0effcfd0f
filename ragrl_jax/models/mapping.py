"""Our parameters, stacked over the layers, ↔ the tensors of a folder, one a layer.

A table names, for each of our parameters, its tensor; `{}` stands for the layer. Matrices under layers/ are transposed:
[in, out] here, [out, in] in the files. Other parameters lie as they are.
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
PIECE = 2**26  # bytes of an array that leave the devices at once


def named(tree: Any) -> Iterator[tuple[str, Any]]:
  """(path/of/parameter, leaf) in the tree's order."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    yield "/".join(rules.names_of(path)), leaf


def tensor_names(table: Table, name: str, shape: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
  """The tensors, with their shapes there, that make up our parameter: one, or one a layer."""
  template = table[name]
  if "{}" not in template:
    return [(template, tuple(shape))]
  return [(template.format(i), tuple(shape[:0:-1])) for i in range(shape[0])]


def refuse_layers(files: TensorFolder, where: str, **layers: int) -> None:
  """Raises a ValueError for numbers of layers that the folder cannot hold. They are looked at before anything is made
  of that size: a config.json may say anything.

  Args:
    files: the folder's tensors.
    where: the path of its config.json.
    **layers: the number by its key there.
  """
  for key, number in layers.items():
    if number > len(files.names()):
      raise ValueError(
        f"{where}: {key} is {number}, and there are {len(files.names())} tensors beside it: the two "
        "must be of one model."
      )


def refuse_surplus(files: TensorFolder, table: Table, abstract: Any, ignore: Callable[[str], bool], model: str) -> None:
  """Raises a ValueError for a tensor that the model has no place for and that is not to be ignored."""
  known = {tensor for name, leaf in named(abstract) for tensor, _ in tensor_names(table, name, leaf.shape)}
  surplus = sorted(tensor for tensor in files.names() - known if not ignore(tensor))
  if surplus:
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} has no place in a {model} model as config.json describes it "
      f"({len(surplus)} such tensors): the two must be of one model."
    )


def load(files: TensorFolder, table: Table, abstract: Any, shardings: Any = None) -> Any:
  """The tree of arrays that `abstract` describes. With shardings, each device's part is read straight from disk, and
  beside the arrays one part is held at a time.

  Raises:
    ValueError: a tensor is missing or has another shape; all are looked at before anything is allocated.
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
  """An array whose parts are read one after the other; devices that hold the same part share one reading of it."""
  holders: dict[tuple, list] = {}
  for device, index in sharding.addressable_devices_indices_map(shape).items():
    holders.setdefault(tuple((piece.start, piece.stop) for piece in index), []).append(device)
  parts = []
  for bounds, devices in holders.items():
    part = read(tuple(slice(*ends) for ends in bounds))
    parts += [jax.device_put(part, device) for device in devices]
    jax.block_until_ready(parts)  # the host's copy goes before the next one comes
  return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _read(files, entries, stacked, leaf, index: tuple[slice, ...]) -> np.ndarray:
  """The part of our parameter at this index: only that part of the files is touched."""
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
  """What `tensors.write` takes: every tensor's name, shape and reader, gathered from all hosts when it is read.

  All hosts must read all of them, in order.
  """
  found = []
  for name, leaf in named(params):
    for i, (tensor, shape) in enumerate(tensor_names(table, name, leaf.shape)):
      read = functools.partial(_layer_to_host, leaf, i) if "{}" in table[name] else functools.partial(_pieces, leaf)
      found.append((tensor, shape, read))
  return found


def hand_over(entries) -> None:
  """What the processes do that do not write, while the first one writes these entries."""
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
  """The array in stretches of its first axis, of PIECE bytes at most: no device or host holds all of it on the way."""
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
        # A slice, for NumPy's view of an array stays in memory as long as the array.
        piece[low - start : high - start, *shard.index[1:]] = _rows(shard.data, np.int32(low - first), high - low)
    yield piece
