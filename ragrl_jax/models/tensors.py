"""Reads safetensors files through memory maps and writes them as a stream, so no tensor is in memory twice.

The format: 8 bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes.
Source: github.com/huggingface/safetensors, README.
"""

import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors
import xxhash
from jax.experimental import multihost_utils

from ragrl_jax.models import hf
from ragrl_jax.parallel import cores

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PIECE = 2**26  # most bytes of an array that are copied from the devices at a time
WHOLE = 2**28  # bytes that are hashed without a copy
Entry = tuple[str, tuple[int, ...], Callable[[], np.ndarray | Iterable[np.ndarray]]]  # of `write`


class TensorFolder:
  """The tensors of a folder with `model.safetensors`, or with an index and its shards."""

  def __init__(self, path: str | os.PathLike, *, stem: str = "model", config: str = "config.json"):
    """Opens the folder; reads the headers only.

    Args:
      stem: the file's name without ".safetensors".
      config: name of the config file that determines the tensors, for messages.

    Raises:
      ValueError: the folder has no safetensors, a shard is missing or damaged, or the index does not match its shards.
    """
    self.path, self._config = pathlib.Path(path), config
    self._entries: dict[str, tuple[pathlib.Path, str, tuple[int, ...], int, int]] = {}
    self.metadata: dict[str, Any] = {}  # of all files' headers
    index, file = self.path / f"{stem}.safetensors.index.json", self.path / f"{stem}.safetensors"
    if file.exists():  # as in transformers, also beside an index that was left there
      self._add(file)
    elif index.exists():
      weight_map = hf.required(hf.read_json(index), "weight_map", str(index))
      if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ValueError(f"{index}: weight_map must name a file for each tensor. Fetch it again.")
      for shard in sorted(set(weight_map.values())):
        if pathlib.Path(shard).name != shard:
          raise ValueError(f"{index} names the shard {shard!r}: it must be the name of a file in the folder.")
        self._add(self.path / shard)
      if missing := sorted(set(weight_map) - set(self._entries)):
        raise ValueError(f"{self.path / weight_map[missing[0]]} has no tensor {missing[0]}, which {index} names.")
    else:
      raise ValueError(
        f"{self.path} holds neither {file.name} nor {index.name}: weights are read as safetensors only (a *.bin file "
        "is a pickle, which is never opened: convert it with transformers' save_pretrained)."
      )

  def _add(self, file: pathlib.Path) -> None:
    header, start = _read_header(file)
    self.metadata |= header.pop("__metadata__", {})
    for name, entry in header.items():
      if name in self._entries:
        raise ValueError(f"tensor {name} is in {self._entries[name][0].name} and in {file}: remove one of them.")
      begin, end = entry["data_offsets"]
      self._entries[name] = (file, entry["dtype"], tuple(entry["shape"]), start + begin, end - begin)

  def names(self) -> set[str]:
    """Names of all tensors."""
    return set(self._entries)

  def file(self, name: str) -> pathlib.Path:
    """The file that contains a tensor."""
    return self._entries[name][0]

  def shape(self, name: str) -> tuple[int, ...]:
    """The shape of a tensor."""
    return self._entries[name][2]

  def fingerprint(self) -> str:
    """`fingerprint` of the stored tensors, each as its bytes. The folder's name and its shards do not matter."""
    raw = lambda file, at, size: np.memmap(file, np.uint8, "r", at, (size,)) if size else np.zeros(0, np.uint8)
    return fingerprint(
      {f"{name} {dtype} {shape}": raw(file, at, size) for name, (file, dtype, shape, at, size) in self._entries.items()}
    )

  def check(self, name: str, shape: Sequence[int]) -> None:
    """Raises a ValueError unless the folder has a tensor of this name and shape, in one of DTYPES."""
    if name not in self._entries:
      raise ValueError(f"{self.path} has no tensor {name} of shape {tuple(shape)}, which {self._config} asks for.")
    file, dtype, actual, *_ = self._entries[name]
    if actual != tuple(shape):
      raise ValueError(f"{file}: tensor {name} has shape {actual}, {self._config} asks for {tuple(shape)}.")
    if dtype not in DTYPES:
      raise ValueError(f"{file}: tensor {name} is {dtype}: it must be one of {', '.join(DTYPES)}.")

  def open(self, name: str, shape: Sequence[int]) -> np.ndarray:
    """The tensor as a read-only memory map; only the parts that are used are read. Raises ValueError: see `check`."""
    self.check(name, shape)
    file, dtype, shape_found, offset, _ = self._entries[name]
    return np.memmap(file, dtype=DTYPES[dtype], mode="r", offset=offset, shape=shape_found)

  def equal(self, one: str, other: str) -> bool:
    """Whether two tensors have the same shape and values; read piece by piece, up to the first difference."""
    if self.shape(one) != self.shape(other):
      return False
    first, second = (self.open(name, self.shape(name)) for name in (one, other))
    rows = max(1, 2**24 // max(1, first[0].size if first.ndim else 1))
    pieces = range(0, len(first), rows) if first.ndim else ()
    return all(np.array_equal(first[at : at + rows], second[at : at + rows]) for at in pieces)


def fingerprint(arrays: Mapping[str, Any]) -> str:
  """A hash that identifies weights: of every array's name, shape, dtype and all its values; 32 hexadecimal digits.

  XXH3 recognises changes, not forgeries. It reads some 9 GB/s on one core, so 7B parameters of 16 bits take 2 s and
  the time to read them (`benchmarks/fingerprint.py`). Nothing is cached.

  Args:
    arrays: name → an array of numpy or of JAX on the devices of this process.
  """

  def hashed(name: str) -> bytes:
    array = arrays[name]
    digest = xxhash.xxh3_128(f"{name} {array.dtype} {array.shape} ".encode())
    whole = isinstance(array, np.ndarray) or not array.ndim or array.nbytes <= WHOLE
    for piece in [np.asarray(array)] if whole else pieces(array):
      digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
    return digest.digest()

  with cores.pool() as pool:
    return xxhash.xxh3_128(b"".join(pool.map(hashed, sorted(arrays)))).hexdigest()


def pieces(x: jax.Array) -> Iterator[np.ndarray]:
  """The array in pieces along its first axis, of at most PIECE bytes, so that no device or host holds all of it."""
  if not x.is_fully_addressable:
    yield multihost_utils.process_allgather(x, tiled=True)
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


@functools.partial(jax.jit, static_argnames="size")
def _rows(part, start, size):
  return jax.lax.dynamic_slice_in_dim(part, start, size)


def _read_header(file: pathlib.Path) -> tuple[dict, int]:
  """The header and the byte at which the data begins. The library checks that both are whole and agree."""
  try:
    with safetensors.safe_open(file, "np"), open(file, "rb") as stream:
      length = int.from_bytes(stream.read(8), "little")
      return json.loads(stream.read(length)), 8 + length
  except FileNotFoundError as error:
    raise ValueError(f"{file} is missing: the folder is incomplete, fetch it again.") from error
  except safetensors.SafetensorError as error:
    raise ValueError(f"{file} is truncated, damaged, or not a safetensors file ({error}). Fetch it again.") from error


def write(
  path: str | os.PathLike,
  entries: Sequence[Entry],
  dtype,
  *,
  shard_bytes: int,
  stem: str = "model",
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes a folder's tensors one after the other, with one of them in memory at a time.

  Files get their final names only when all are complete. So an interrupted call keeps the old files.

  Args:
    entries: (name, shape, function that returns the array, or its pieces along the first axis).
    dtype: dtype of the stored tensors: float32, float16 or bfloat16.
    shard_bytes: largest size of a file, in bytes; a tensor is never split.
    stem: the file's name without ".safetensors".
    metadata: more entries of the files' metadata.

  Raises:
    ValueError: another dtype, or an array that does not have its entry's shape.
  """
  folder, dtype = pathlib.Path(path), np.dtype(dtype)
  if dtype not in NAMES:
    raise ValueError(f"weights cannot be stored as {dtype}: use one of {', '.join(map(str, NAMES))}.")
  shards, size_filled = [[]], 0
  for entry in entries:
    size = _bytes(entry[1], dtype)
    if size_filled and size_filled + size > shard_bytes:
      shards.append([])
      size_filled = 0
    shards[-1].append(entry)
    size_filled += size
  names = (
    [f"{stem}.safetensors"]
    if len(shards) == 1
    else [f"{stem}-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
  )
  for name, shard in zip(names, shards):
    _write_file(folder / f"{name}.partial", shard, dtype, metadata or {})
  # Without the index, shards of which only some are new are refused. It comes last.
  index = folder / f"{stem}.safetensors.index.json"
  index.unlink(missing_ok=True)
  for old in (*folder.glob(f"{stem}.safetensors"), *folder.glob(f"{stem}-*-of-*.safetensors")):
    if old.name not in names:  # other readers might take it instead
      old.unlink()
  for name in names:
    os.replace(folder / f"{name}.partial", folder / name)
  if len(names) > 1:
    weight_map = {entry[0]: name for name, shard in zip(names, shards) for entry in shard}
    total = sum(_bytes(shape, dtype) for _, shape, _ in entries)
    hf.write_json(index, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _bytes(shape: Sequence[int], dtype: np.dtype) -> int:
  return dtype.itemsize * math.prod(shape)


def _write_file(file: pathlib.Path, entries, dtype: np.dtype, metadata: Mapping[str, str]) -> None:
  header, at = {"__metadata__": {"format": "pt", **metadata}}, 0
  for name, shape, _ in entries:
    end = at + _bytes(shape, dtype)
    header[name], at = dict(dtype=NAMES[dtype], shape=list(shape), data_offsets=[at, end]), end
  encoded = json.dumps(header).encode()
  encoded += b" " * (-len(encoded) % 8)  # the data start at a multiple of eight bytes
  with open(file, "wb") as stream:
    stream.write(len(encoded).to_bytes(8, "little") + encoded)
    for name, shape, read in entries:
      array, rows = read(), 0
      for piece in (array,) if isinstance(array, np.ndarray) else array:
        if piece.shape[1:] != tuple(shape[1:]):
          raise ValueError(f"tensor {name} has shape {piece.shape}, it must have {tuple(shape)}.")
        rows += len(piece)
        stream.write(np.ascontiguousarray(piece, dtype).view(np.uint8).data)
      if rows != shape[0]:
        raise ValueError(f"tensor {name} has {rows} rows, it must have {tuple(shape)}.")
