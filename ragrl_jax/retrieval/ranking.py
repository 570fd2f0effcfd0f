"""Exact ranking by inner product: whatever found the candidates, the same scores and the same order come out."""

from collections.abc import Callable

import numpy as np

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]  # ([n, D], k) → scores [n, k], rows [n, k]


def rescore(vectors: np.ndarray, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Inner products of one query `[D]` with `vectors[rows]`, summed in float64, as float32.

  A score depends on the two vectors alone: not on the batch, the block or the number of threads.
  """
  return (vectors[rows].astype(np.float64) * query.astype(np.float64)).sum(axis=1).astype(np.float32)


def ordered(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """The k best, best first; equal scores in the order of their rows."""
  order = np.lexsort((rows, -scores))[:k]
  return scores[order], rows[order]


def exact(
  search: Search, vectors: np.ndarray, queries: np.ndarray, k: int, *, max_norm: float
) -> list[tuple[np.ndarray, np.ndarray]]:
  """The true top k for each query, from a search whose float32 sums are off in the last bits.

  A few more candidates than k are fetched and scored again. When the k-th score lies within rounding of the worst
  candidate, a passage that was left out could still belong in front of it: then twice as many are fetched.

  Args:
    search: exhaustive search, best first: (queries, count) → (float32 scores, int64 rows), both [n, count].
    vectors: [N, D], what was searched (mapped from disk or not).
    queries: float32 [n, D].
    k: how many are wanted.
    max_norm: the longest vector's Euclidean norm.

  Returns:
    For each query (float32 scores, int64 rows), at most k of them.
  """
  total, dim = vectors.shape
  # |error| of a float32 sum of D products is at most D * 2^-24 * |q| |v|; twice that, for two sums compared.
  slack = 2.0 * dim * 2.0**-24 * max_norm * np.linalg.norm(queries.astype(np.float64), axis=1)
  found: list = [None] * len(queries)
  open_, count = np.arange(len(queries)), min(total, k + 8)
  while len(open_):
    rough, rows = search(queries[open_], count)
    left = []
    for i, worst, candidates in zip(open_, rough[:, -1], rows):
      scores, best = ordered(rescore(vectors, queries[i], candidates), candidates, k)
      found[i] = scores, best
      if count < total and scores[-1] <= worst + slack[i]:
        left.append(i)
    open_, count = np.array(left, dtype=np.int64), min(total, 2 * count)
  return found
