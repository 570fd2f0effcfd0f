"""Converts between our parameters, which are stacked over the layers, and a folder's tensors, one per layer.

A table gives the tensor's name for each of our parameters. The first `{}` in it is the layer's number, the second one
the expert's. If the layers of a stack do not follow each other in the folder, the table gives a tuple, the name of each
one. The axes of what is stacked are reversed: matrices are [in, out] here, [out, in] in the files. Entry i of the last
axis is row i of the tensor, or row `rows[i]` (`families.rows`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import tensors
from ragrl_jax.models.tensors import TensorFolder
from ragrl_jax.parallel import rules

Table = Mapping[str, str | tuple[str, ...]]
Rows = Mapping[str, np.ndarray]
NONE: Rows = {}
_PARTS = ("", "weight"), ("_bias", "bias")


def named(tree: Any) -> Iterator[tuple[str, Any]]:
  """(path/of/parameter, leaf) in the tree's order."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    yield "/".join(rules.names_of(path)), leaf


def tensor_names(table: Table, name: str, shape: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
  """(name, shape in the file) of the tensors of our parameter: one, or one per layer, or one per layer and expert."""
  template, stacked = table[name], _stacked(table, name)
  if not isinstance(template, str):
    return [(name_of_layer, tuple(shape[:0:-1])) for name_of_layer in template]
  if not stacked:
    return [(template, tuple(shape))]
  return [(template.format(*place), tuple(shape[: stacked - 1 : -1])) for place in np.ndindex(*shape[:stacked])]


def _stacked(table: Table, name: str) -> int:
  """Number of leading axes of our parameter over which its tensors are stacked."""
  template = table[name]
  return template.count("{}") if isinstance(template, str) else 1


def renamed(table: Table, change: Callable[[str], str]) -> Table:
  """The table with changed names of tensors."""
  return {name: change(x) if isinstance(x, str) else tuple(map(change, x)) for name, x in table.items()}


def weights_and_biases(modules: Mapping[str, str]) -> dict[str, str]:
  """The table of linear layers and norms, from their names: `name` is a module's weight, `name`_bias its bias."""
  return {name + end: f"{module}.{kind}" for name, module in modules.items() for end, kind in _PARTS}


def refuse_layers(files: TensorFolder, where: str, **layers: int) -> None:
  """Raises a ValueError if config.json gives more layers, by their key there, than the folder has tensors.

  This check comes before any memory of that size is allocated, since a config.json may contain any number.
  """
  for key, number in layers.items():
    if number > len(files.names()):
      raise ValueError(
        f"{where}: {key} is {number}, and there are {len(files.names())} tensors beside it: tensors "
        "and config.json must be of the same model."
      )


def refuse_surplus(files: TensorFolder, table: Table, abstract: Any, ignore: Callable[[str], bool], model: str) -> None:
  """Raises a ValueError for a tensor that belongs to no parameter of the model, unless `ignore(name)` is true."""
  expected = {tensor for name, leaf in named(abstract) for tensor, _ in tensor_names(table, name, leaf.shape)}
  surplus = sorted(tensor for tensor in files.names() - expected if not ignore(tensor))
  if surplus:
    raise ValueError(
      f"{files.file(surplus[0])}: tensor {surplus[0]} has no place in a {model} model as config.json describes it "
      f"({len(surplus)} such tensors): tensors and config.json must be of the same model."
    )


def load(files: TensorFolder, table: Table, abstract: Any, shardings: Any = None, rows: Rows = NONE) -> Any:
  """Reads the tree of arrays that `abstract` describes.

  Args:
    abstract: the tree, with a shape and a dtype for each leaf.
    shardings: a sharding for each leaf: each device's part is read directly from disk, and the host holds one part at a
      time. None: all arrays are on the default device.
    rows: of parameters whose last axis has another order than their tensors.

  Raises:
    ValueError: a tensor is missing or has another shape. All are checked before any memory is allocated.
  """
  for name, leaf in named(abstract):
    for entry in tensor_names(table, name, leaf.shape):
      files.check(*entry)
  spread = None if shardings is None else jax.tree.leaves(shardings)
  leaves = []
  for i, (name, leaf) in enumerate(named(abstract)):
    where = tensor_names(table, name, leaf.shape), _stacked(table, name)
    read = functools.partial(_read, files, *where, leaf, rows.get(name))
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


def _read(files, entries, stacked: int, leaf, rows: np.ndarray | None, index: tuple[slice, ...]) -> np.ndarray:
  """The part of our parameter at this index; only this part of the files is read."""
  dtype = np.dtype(leaf.dtype)
  if not stacked:
    return np.asarray(files.open(*entries[0])[index], dtype=dtype)
  entry_numbers = np.arange(len(entries)).reshape(leaf.shape[:stacked])[index[:stacked]]
  sizes = [len(range(*part.indices(size))) for part, size in zip(index[stacked:], leaf.shape[stacked:])]
  out = np.empty((*entry_numbers.shape, *sizes), dtype)
  for place, number in np.ndenumerate(entry_numbers):
    tensor = files.open(*entries[number])[index[-1] if rows is None else rows[index[-1]]]
    out[place] = tensor[(slice(None), *index[-2 : stacked - 1 : -1])].T
  return out


def entries(table: Table, params: Any, rows: Rows = NONE) -> list[tensors.Entry]:
  """(name, shape, reader) of every tensor, for `tensors.write`.

  A reader gathers its tensor from all hosts, so all hosts must call all readers, in the same order.
  """
  result = []
  for name, leaf in named(params):
    stacked = _stacked(table, name)
    for i, (tensor, shape) in enumerate(tensor_names(table, name, leaf.shape)):
      place = np.unravel_index(i, leaf.shape[:stacked]) if stacked else ()
      read = functools.partial(tensors.pieces, leaf)
      if stacked:
        read = functools.partial(_matrix_to_host, leaf, place, rows.get(name))
      result.append((tensor, shape, read))
  return result


def hand_over(entries) -> None:
  """Calls all readers without writing. The other processes call it while process 0 writes the entries."""
  for _, _, read in entries:
    for _ in read():
      pass


@jax.jit
def _matrix(stacked, place):
  for number in place:
    stacked = jax.lax.dynamic_index_in_dim(stacked, number, keepdims=False)
  return stacked


def _matrix_to_host(leaf: jax.Array, place, rows: np.ndarray | None) -> Iterator[np.ndarray]:
  tensor = np.concatenate(list(tensors.pieces(_matrix(leaf, tuple(np.int32(number) for number in place))))).T
  yield tensor if rows is None else tensor[np.argsort(rows)]
