"""Vectors on disk, memory-mapped, and exact ranking by inner product, whatever search found the candidates.

vectors.npy   [N, D] float32, float16, uint16 (the bits of bfloat16) or int8
scales.npy    [N] float32, with int8 only: a row is its codes times its scale
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ragrl_jax.retrieval import cards

FILE, SCALES = "vectors.npy", "scales.npy"
DTYPES = ("float32", "float16", "bfloat16", "int8")
LARGEST = 127  # the largest code
Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]  # ([n, D], k) → scores [n, k], rows [n, k]


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

  def __setitem__(self, rows: Any, values: np.ndarray) -> None:
    self.codes[rows], self.scales[rows] = quantise(values)

  def flush(self) -> None:
    """Writes changes to disk."""
    for part in (self.codes, self.scales):
      assert isinstance(part, np.memmap)
      part.flush()


def quantise(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(int8 codes [n, D], float32 scales [n]) of rows [n, D]: the largest number of a row gets the code ±127."""
  rows = np.asarray(rows, dtype=np.float32)
  scales = np.abs(rows).max(axis=-1) / np.float32(LARGEST)
  codes = np.rint(rows / np.where(scales > 0, scales, np.float32(1))[..., None])
  return np.clip(codes, -LARGEST, LARGEST).astype(np.int8), scales


def create(folder: pathlib.Path, dtype: str, shape: tuple[int, int]) -> Any:
  """Creates files whose rows are assigned later. Raises ValueError: an unknown dtype."""
  if dtype not in DTYPES:
    raise ValueError(f"dtype={dtype!r}: it must be one of {', '.join(DTYPES)}.")
  file_dtype = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
  if dtype == "int8":
    np.lib.format.open_memmap(folder / SCALES, mode="w+", dtype=np.float32, shape=shape[:1])
  np.lib.format.open_memmap(folder / FILE, mode="w+", dtype=file_dtype, shape=shape)
  return open_mapped(folder, mode="r+")


def open_mapped(folder: str | os.PathLike, *, mode: Any = "r") -> Any:
  """The stored vectors, memory-mapped: an array or an `Int8`. Both have `vectors[rows]` and `vectors.shape`.

  Raises:
    ValueError: a file is not such an array.
  """
  folder = pathlib.Path(folder)
  with cards.opening(folder / FILE):
    result = np.load(folder / FILE, mmap_mode=mode, allow_pickle=False)
    if result.dtype not in (np.float32, np.float16, np.uint16, np.int8):
      raise ValueError(f"numbers of type {result.dtype}")
  if result.dtype == np.uint16:
    return result.view(ml_dtypes.bfloat16)
  if result.dtype == np.int8:
    return Int8(result, cards.load_array(folder / SCALES, np.float32, result.shape[:1], mode))
  return result


def rescore(vectors: np.ndarray, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Inner products of one query `[D]` with `vectors[rows]`, summed in float64, returned as float32.

  A score depends only on its two vectors, not on the batch, the block or the number of threads.
  """
  return (vectors[rows].astype(np.float64) * query.astype(np.float64)).sum(axis=1).astype(np.float32)


def take_best(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """The k best (scores, rows), best first; equal scores in the order of their rows."""
  order = np.lexsort((rows, -scores))[:k]
  return scores[order], rows[order]


def rank_exactly(
  search: Search,
  vectors: np.ndarray,
  queries: np.ndarray,
  k: int,
  *,
  max_norm: float,
  errors: np.ndarray | float = 0.0,
  first: int = 0,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """The true top k for each query, from a search whose float32 sums have rounding errors.

  A few more candidates than k are fetched and scored again. If the k-th score is within rounding error of the worst
  candidate, a row outside the candidates could still belong to the top k. Then twice as many candidates are fetched.

  Args:
    search: exhaustive search, best first: (queries, count) → (float32 scores, int64 rows), both [n, count].
    vectors: the searched vectors [N, D], memory-mapped or not.
    queries: float32 [n, D].
    max_norm: the largest Euclidean norm of a vector.
    errors: [n], largest error of the search's scores from rounding of vectors and queries, in addition to the errors of
      float32 sums.
    first: number of candidates of the first search; at least k + 8 are used.

  Returns:
    (float32 scores, int64 rows) of each query, with at most k entries each.
  """
  total, dim = vectors.shape
  # The error of a float32 sum of D products is at most D * 2^-24 * |q| |v|. Two such sums are compared: twice that.
  slack = 2.0 * dim * 2.0**-24 * max_norm * np.linalg.norm(queries.astype(np.float64), axis=1) + errors
  result: list = [None] * len(queries)
  open_, count = np.arange(len(queries)), min(total, max(k + 8, first))
  while len(open_):
    rough, rows = search(queries[open_], count)
    unresolved = []
    for i, worst, candidates in zip(open_, rough[:, -1], rows):
      scores, best = take_best(rescore(vectors, queries[i], candidates), candidates, k)
      result[i] = scores, best
      if count < total and scores[-1] <= worst + slack[i]:
        unresolved.append(i)
    open_, count = np.array(unresolved, dtype=np.int64), min(total, 2 * count)
  return result
