"""Ranking metrics: nDCG, recall and reciprocal rank at k, as trec_eval and BEIR compute them."""

import math
from collections.abc import Mapping, Sequence


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float | None:
  """Normalised discounted cumulative gain at k.

  DCG@k = sum over ranks i = 1..k of rel_i / log2(i + 1), over the DCG@k of the best possible ranking. The gain is
  linear, as in trec_eval and BEIR. An id that occurs twice counts at its first rank only; its second rank gains 0.

  Args:
    ranked: passage ids, best first.
    relevance: id → grade; grades of 0 and below are not relevant.
    k: number of ranks that count, at least 1.

  Returns:
    In [0, 1]; None if no passage is relevant.

  Raises:
    ValueError: k is below 1.
  """
  _at_least_one(k)
  ideal = sorted((grade for grade in relevance.values() if grade > 0), reverse=True)[:k]
  if not ideal:
    return None
  seen: set[str] = set()
  gains = []
  for name in ranked[:k]:
    gains.append(0.0 if name in seen else max(relevance.get(name, 0), 0))
    seen.add(name)
  return _dcg(gains) / _dcg(ideal)


def recall(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float | None:
  """Share of the relevant passages (grade above 0) among the first k; None if no passage is relevant.

  Raises:
    ValueError: k is below 1.
  """
  _at_least_one(k)
  wanted = {name for name, grade in relevance.items() if grade > 0}
  return len(wanted & set(ranked[:k])) / len(wanted) if wanted else None


def reciprocal_rank(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float | None:
  """1 / rank of the first relevant passage (grade above 0) among the first k, else 0; None if no passage is relevant.

  Its mean over queries is MRR@k.

  Raises:
    ValueError: k is below 1.
  """
  _at_least_one(k)
  if not any(grade > 0 for grade in relevance.values()):
    return None
  return next((1.0 / rank for rank, name in enumerate(ranked[:k], 1) if relevance.get(name, 0) > 0), 0.0)


def _dcg(gains: Sequence[int | float]) -> float:
  return sum((gain / math.log2(place + 2) for place, gain in enumerate(gains)), 0.0)


def _at_least_one(k: int) -> None:
  if k < 1:
    raise ValueError(f"k={k}: a ranking is scored at k of at least 1.")
