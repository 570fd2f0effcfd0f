"""Vectors on disk, memory-mapped: float32, float16, bfloat16, or int8 codes with a scale for each row.

vectors.npy   [N, D] float32, float16, uint16 (the bits of bfloat16) or int8
scales.npy    [N] float32, with int8 only: a row is its codes times its scale
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import ml_dtypes
import numpy as np

from ragrl_jax.retrieval import checksums

FILE, SCALES = "vectors.npy", "scales.npy"
DTYPES = ("float32", "float16", "bfloat16", "int8")
LARGEST = 127  # the largest code


class Int8:
  """Rows stored as int8 codes with a float32 scale per row. `vectors[rows]` returns them in float32.

  Attributes:
    codes: int8 [N, D].
    scales: float32 [N].
  """

  dtype = np.dtype(np.int8)

  def __init__(self, codes: np.ndarray, scales: np.ndarray):
    self.codes, self.scales, self.shape, self.size = codes, scales, codes.shape, codes.size

  def __len__(self) -> int:
    return len(self.codes)

  def __getitem__(self, rows: Any) -> np.ndarray:
    return self.codes[rows].astype(np.float32) * self.scales[rows][..., None]

  def __setitem__(self, rows: Any, made: np.ndarray) -> None:
    self.codes[rows], self.scales[rows] = quantised(made)

  def flush(self) -> None:
    """Writes changes to disk."""
    for part in (self.codes, self.scales):
      assert isinstance(part, np.memmap)
      part.flush()


def quantised(made: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(int8 codes [n, D], float32 scales [n]) of rows [n, D]: the largest number of a row gets the code ±127."""
  made = np.asarray(made, dtype=np.float32)
  scales = np.abs(made).max(axis=-1) / np.float32(LARGEST)
  codes = np.rint(made / np.where(scales > 0, scales, np.float32(1))[..., None])
  return np.clip(codes, -LARGEST, LARGEST).astype(np.int8), scales


def create(folder: pathlib.Path, dtype: str, shape: tuple[int, int]) -> Any:
  """Creates files whose rows are assigned later.

  Raises:
    ValueError: an unknown dtype.
  """
  if dtype not in DTYPES:
    raise ValueError(f"dtype={dtype!r}: it must be one of {', '.join(DTYPES)}.")
  stored = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
  if dtype == "int8":
    np.lib.format.open_memmap(folder / SCALES, mode="w+", dtype=np.float32, shape=shape[:1])
  np.lib.format.open_memmap(folder / FILE, mode="w+", dtype=stored, shape=shape)
  return mapped(folder, mode="r+")


def mapped(folder: str | os.PathLike, *, mode: Any = "r") -> Any:
  """The stored vectors, memory-mapped: an array or an `Int8`. Both have `vectors[rows]` and `vectors.shape`.

  Raises:
    ValueError: a file is not such an array.
  """
  folder = pathlib.Path(folder)
  with checksums.opening(folder / FILE):
    found = np.load(folder / FILE, mmap_mode=mode, allow_pickle=False)
    if found.dtype not in (np.float32, np.float16, np.uint16, np.int8):
      raise ValueError(f"numbers of type {found.dtype}")
  if found.dtype == np.uint16:
    return found.view(ml_dtypes.bfloat16)
  if found.dtype == np.int8:
    with checksums.opening(folder / SCALES):
      scales = np.load(folder / SCALES, mmap_mode=mode, allow_pickle=False)
      if scales.dtype != np.float32 or scales.shape != found.shape[:1]:
        raise ValueError(f"{scales.dtype} {list(scales.shape)}, but it must be float32 {list(found.shape[:1])}")
    return Int8(found, scales)
  return found
