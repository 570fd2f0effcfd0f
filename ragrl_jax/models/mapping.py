"""Our parameters, stacked over the layers, ↔ the tensors of a folder, one a layer.

A table names, for each of our parameters, its tensor; `{}` stands for the layer. Matrices under layers/ are transposed:
[in, out] here, [out, in] in the files. Other parameters lie as they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ragrl_jax.models.tensors import TensorFolder
from ragrl_jax.parallel import rules

Table = Mapping[str, str]


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


def refuse_surplus(files: TensorFolder, table: Table, abstract: Any, ignore: Callable[[str], bool], model: str) -> None:
  """Raises a ValueError for a tensor that the model has no place for and that is not to be ignored."""
  known = {tensor for name, leaf in named(abstract) for tensor, _ in tensor_names(table, name, leaf.shape)}
  surplus = sorted(tensor for tensor in files.names() - known if not ignore(tensor))
  if surplus:
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} has no place in a {model} model as config.json describes it "
      f"({len(surplus)} such tensors): the two must be of one model.")


def load(files: TensorFolder, table: Table, abstract: Any, shardings: Any = None) -> Any:
  """The tree of arrays that `abstract` describes. With shardings, each device's part is read straight from disk.

  Raises:
    ValueError: a tensor is missing or has another shape.
  """
  spread = None if shardings is None else jax.tree.leaves(shardings)
  leaves = []
  for i, (name, leaf) in enumerate(named(abstract)):
    entries, stacked = tensor_names(table, name, leaf.shape), "{}" in table[name]
    if spread is None:
      leaves.append(jnp.asarray(_read(files, entries, stacked, leaf, (slice(None),) * leaf.ndim)))
    else:
      leaves.append(jax.make_array_from_callback(leaf.shape, spread[i], _reader(files, entries, stacked, leaf)))
  return jax.tree.unflatten(jax.tree.structure(abstract), leaves)


def _reader(files, entries, stacked, leaf):
  parts = {}  # devices that hold the same part share one reading of it

  def part(index):
    bounds = tuple((piece.start, piece.stop) for piece in index)
    if bounds not in parts:
      parts[bounds] = _read(files, entries, stacked, leaf, index)
    return parts[bounds]

  return part


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


def entries(table: Table, params: Any) -> list[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]:
  """What `tensors.write` takes: every tensor's name, shape and reader, gathered from all hosts when it is read."""
  found = []
  for name, leaf in named(params):
    for i, (tensor, shape) in enumerate(tensor_names(table, name, leaf.shape)):
      found.append((tensor, shape, _to_host(leaf, i if "{}" in table[name] else None)))
  return found


@jax.jit
def _layer(stacked, number):
  return jax.lax.dynamic_index_in_dim(stacked, number, keepdims=False)


def _to_host(leaf: jax.Array, layer: int | None) -> Callable[[], np.ndarray]:
  def read():
    part = leaf if layer is None else _layer(leaf, layer)
    part = np.asarray(part if part.is_fully_addressable else multihost_utils.process_allgather(part, tiled=True))
    return part if layer is None else part.T

  return read
