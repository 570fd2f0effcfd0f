"""FAISS search over the index's vectors: exact ("Flat"), or any factory string ("HNSW32", "IVF1024,PQ64", …).

Threads: FAISS's OpenMP threads spin while they wait for each other. On a busy machine this takes longer than a small
search (20,000 vectors of 384 numbers, one query, two busy cores: 0.7 ms with one thread, 5 to 50 ms with two).
Therefore only long searches use `threads` threads. The setting is per calling thread and is set before every search.
A pool of n callers with long searches may start n * `threads` threads: use `threads=1` there.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

import faiss
import numpy as np
from tqdm import tqdm

from ragrl_jax.parallel import cores
from ragrl_jax.retrieval import cards
from ragrl_jax.retrieval.vectors import rank_exactly, rescore, take_best

BLOCK = 1 << 16  # rows added, or converted to float32, at a time
LONG = 1 << 28  # multiplications from which several threads pay off: tens of milliseconds on one thread
FEW = 16  # most queries in a call without BLAS, where a batch finds the same candidates as single queries


class Flat:
  """Exact search by inner product: FAISS's exhaustive search over the memory-mapped vectors, without a copy of them."""

  def __init__(self, vectors: np.ndarray, *, max_norm: float, threads: int | None = None):
    self._vectors, self._max_norm, self._threads = vectors, max_norm, threads or cores.count()
    # With BLAS, FAISS is four times as fast for many queries. FAISS 1.15 applies its threshold to queries * dimensions,
    # so by default BLAS needs hundreds of queries. The setting is global to the process. It affects only speed, since
    # scores are computed again.
    if faiss.cvar.distance_compute_blas_threshold > 1000:
      faiss.cvar.distance_compute_blas_threshold = (FEW + 1) * vectors.shape[1]

  def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """float32 [n, D] → n pairs (scores, rows), best first, each of min(k, N) entries."""
    k = min(k, len(self._vectors))
    return rank_exactly(self._scan, self._vectors, queries, k, max_norm=self._max_norm)

  def _scan(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    long = LONG if len(queries) <= FEW else 4 * LONG  # BLAS is four times as fast
    faiss.omp_set_num_threads(self._threads if len(queries) * self._vectors.size >= long else 1)
    block = len(self._vectors) if self._vectors.dtype == np.float32 else BLOCK  # float16 is converted block by block
    scores, rows = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(self._vectors), block):
      part = np.asarray(self._vectors[start : start + block], dtype=np.float32)
      found, at = faiss.knn(queries, part, min(count, len(part)), faiss.METRIC_INNER_PRODUCT)
      scores, rows = np.concatenate([scores, found], axis=1), np.concatenate([rows, at + start], axis=1)
      if scores.shape[1] > count:
        keep = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores, rows = np.take_along_axis(scores, keep, axis=1), np.take_along_axis(rows, keep, axis=1)
    return scores, rows


class Approximate:
  """Approximate search: FAISS finds `oversample` * k candidates. Their exact scores come from the stored vectors."""

  def __init__(
    self, path: pathlib.Path, vectors: np.ndarray, *, options: str = "", oversample: int = 4, threads: int | None = None
  ):
    """
    Args:
      path: the file written by `build`; it is memory-mapped if FAISS can.
      threads: blocks of queries searched at the same time; None uses all cores.

    Raises:
      ValueError: the file belongs to other vectors, or this kind of index does not know an option.
    """
    with cards.opening(path):
      self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    if (self._index.ntotal, self._index.d) != vectors.shape:
      raise ValueError(
        f"{path}: an index of {self._index.ntotal} vectors of {self._index.d} dimensions, but the folder has "
        f"{vectors.shape[0]} vectors of {vectors.shape[1]}: build the index again."
      )
    set_options(self._index, options)
    self._vectors, self._oversample = vectors, oversample
    self._pool = concurrent.futures.ThreadPoolExecutor(threads or cores.count(), thread_name_prefix="faiss")

  def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """float32 [n, D] → n pairs (scores, rows), best first, each of at most k entries."""
    parts = [queries[start : start + FEW] for start in range(0, len(queries), FEW)]
    run = map if len(parts) == 1 else self._pool.map
    return [best for found in run(lambda part: self._search(part, k), parts) for best in found]

  def _search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    faiss.omp_set_num_threads(1)
    _, candidates = self._index.search(queries, min(len(self._vectors), self._oversample * k))
    rows_of_query = [rows[rows >= 0] for rows in candidates]  # FAISS pads with -1
    return [take_best(rescore(self._vectors, query, rows), rows, k) for query, rows in zip(queries, rows_of_query)]


def build(
  vectors: np.ndarray,
  path: pathlib.Path,
  *,
  factory: str,
  options: str = "",
  threads: int | None = None,
  train_rows: int = 1 << 18,
  progress: bool = True,
) -> None:
  """Builds and writes an index: trains it on evenly spaced rows if needed, then adds all vectors.

  Several threads link the graph of HNSW, so only threads=1 gives a reproducible file.

  Raises:
    ValueError: FAISS does not know the factory string or an option, or there are too few vectors to train on.
  """
  faiss.omp_set_num_threads(threads or cores.count())
  total, dim = vectors.shape
  index = make(factory, dim)
  set_options(index, options)
  if not index.is_trained:
    rows = np.unique(np.linspace(0, total - 1, min(total, train_rows)).astype(np.int64))
    what = f"factory={factory!r} cannot be trained on {len(rows)} vectors"
    with _refusing(what, "Use fewer cells or codes, or 'Flat'."):
      index.train(np.asarray(vectors[rows], dtype=np.float32))
  for start in tqdm(range(0, total, BLOCK), desc=f"index: {factory}", unit=" blocks", disable=not progress):
    index.add(np.asarray(vectors[start : start + BLOCK], dtype=np.float32))
  partial = path.with_name(path.name + ".partial")
  faiss.write_index(index, str(partial))
  os.replace(partial, path)


def make(factory: str, dim: int) -> faiss.Index:
  """An empty index for inner products. Raises ValueError if FAISS does not know the factory string."""
  what = f"factory={factory!r} is not an index that FAISS can make for {dim} dimensions"
  with _refusing(what, "Use 'Flat', 'HNSW32' or 'IVF1024,PQ64', for example."):
    index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
  # Skip the sorting of a product quantizer's codes: it takes 2 s per sub-quantizer, for a filter that we never use.
  for part in (index, faiss.try_extract_index_ivf(index)):
    if part is not None and hasattr(faiss.downcast_index(part), "do_polysemous_training"):
      faiss.downcast_index(part).do_polysemous_training = False
  return index


def set_options(index: faiss.Index, options: str) -> None:
  """Sets options "name=value,name=value". Raises ValueError if FAISS does not know one of them."""
  if options:
    hint = "Use nprobe=… for an IVF index, efSearch=… for an HNSW index."
    with _refusing(f"options={options!r} do not fit this index", hint):
      faiss.ParameterSpace().set_index_parameters(index, options)


@contextlib.contextmanager
def _refusing(what: str, hint: str) -> Iterator[None]:
  """Makes FAISS's error a ValueError with its message, but for its C++ signature and location."""
  try:
    yield
  except RuntimeError as error:
    why = re.sub(r"(?s)^.*\.(cpp|h):\d+: (Error: .*? failed: )?", "", str(error)).strip().rstrip(".")
    raise ValueError(f"{what}: {why}. {hint}") from None
