"""Exact ranking by inner product. Scores and order do not depend on the search that found the candidates."""

from collections.abc import Callable

import numpy as np

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]  # ([n, D], k) → scores [n, k], rows [n, k]


def rescore(vectors: np.ndarray, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Inner products of one query `[D]` with `vectors[rows]`, summed in float64, returned as float32.

  A score depends only on its two vectors, not on the batch, the block or the number of threads.
  """
  return (vectors[rows].astype(np.float64) * query.astype(np.float64)).sum(axis=1).astype(np.float32)


def ordered(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """The k best (scores, rows), best first; equal scores in the order of their rows."""
  order = np.lexsort((rows, -scores))[:k]
  return scores[order], rows[order]


def exact(
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
    k: number of rows wanted.
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
  found: list = [None] * len(queries)
  open_, count = np.arange(len(queries)), min(total, max(k + 8, first))
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
