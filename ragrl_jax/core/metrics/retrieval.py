"""Ranking metrics, as trec_eval and BEIR compute them, of one ranking and of a run's file.

A run is {query id: {passage id: score}}, judgements (qrels) are {query id: {passage id: grade}}. As in trec_eval, a
run's order is by score in 32 bits, and equal scores are ordered by id, from the last to the first; ranks are ignored.
Every judged query counts: one without results, or without a relevant passage, scores 0. Names are ir_measures'.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Run = Mapping[str, Mapping[str, float]]
Judgements = Mapping[str, Mapping[str, int]]
MEASURES = ("nDCG@10", "R@100", "AP", "RR", "P@10", "Success@5")
_EVERY = 1 << 62

# ---- one ranking -----------------------------------------------------------------------------------------------------


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float | None:
  """Normalised discounted cumulative gain at k, in [0, 1]; None if no passage is relevant.

  DCG@k = sum over ranks i = 1..k of rel_i / log2(i + 1), over the DCG@k of the best possible ranking. The gain is
  linear, as in trec_eval and BEIR. An id that occurs twice counts at its first rank only; its second rank gains 0.

  Args:
    ranked: passage ids, best first.
    relevance: id → grade; grades of 0 and below are not relevant.
    k: number of ranks that count, at least 1.

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
  relevant = {name for name, grade in relevance.items() if grade > 0}
  return len(relevant & set(ranked[:k])) / len(relevant) if relevant else None


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


def average_precision(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float:
  """The sum of the precisions at the ranks of relevant passages among the first k, over the number of relevant ones."""
  relevant, hits, total = {name for name, grade in relevance.items() if grade > 0}, 0, 0.0
  for rank, name in enumerate(ranked[:k], 1):
    if name in relevant:
      hits += 1
      total += hits / rank
  return total / len(relevant) if relevant else 0.0


def precision(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float:
  """The share of relevant passages among k ranks; ranks that the ranking does not fill are not relevant."""
  return sum(relevance.get(name, 0) > 0 for name in ranked[:k]) / k


def success(ranked: Sequence[str], relevance: Mapping[str, int | float], k: int) -> float:
  """1 if one of the first k is relevant, else 0."""
  return float(any(relevance.get(name, 0) > 0 for name in ranked[:k]))


def _dcg(gains: Sequence[int | float]) -> float:
  return sum((gain / math.log2(place + 2) for place, gain in enumerate(gains)), 0.0)


def _at_least_one(k: int) -> None:
  if k < 1:
    raise ValueError(f"k={k}: a ranking is scored at k of at least 1.")


# ---- a run -----------------------------------------------------------------------------------------------------------


def ordered(scores: Mapping[str, float]) -> list[str]:
  """The ids, best first."""
  return sorted(sorted(scores, reverse=True), key=lambda name: -np.float32(scores[name]))


def measured(run: Run, judgements: Judgements, names: Sequence[str] = MEASURES) -> dict[str, dict[str, float]]:
  """{measure: {judged query: score}}.

  Args:
    run: the ranking; queries that are not judged are left out.
    judgements: grades; those of 0 and below are not relevant.
    names: nDCG, AP, RR with "@k" or without; R, P, Success with "@k".

  Raises:
    ValueError: there is no such measure.
  """
  scorers = {name: _scorer(name) for name in names}
  rankings = {query: ordered(run.get(query, {})) for query in judgements}
  return {
    name: {query: scorer(rankings[query], grades) for query, grades in judgements.items()}
    for name, scorer in scorers.items()
  }


def means(run: Run, judgements: Judgements, names: Sequence[str] = MEASURES) -> dict[str, float]:
  """{measure: mean over the judged queries}. See `measured`; 0 without judged queries."""
  scores = measured(run, judgements, names)
  return {name: sum(values.values()) / max(len(values), 1) for name, values in scores.items()}


_SCORERS: dict[str, Callable[..., float | None]] = dict(
  nDCG=ndcg, R=recall, RR=reciprocal_rank, AP=average_precision, P=precision, Success=success
)


def _scorer(name: str) -> Callable[[Sequence[str], Mapping[str, int]], float]:
  match = re.fullmatch(r"([A-Za-z]+)(?:@([1-9]\d{0,6}))?", name)
  scorer = _SCORERS.get(match[1]) if match else None
  if match is None or scorer is None or (match[2] is None and match[1] in ("P", "Success", "R")):
    raise ValueError(f"the measure {name!r} is unknown: there are nDCG@k, R@k, AP, RR, P@k, Success@k (--measures).")
  k = int(match[2]) if match[2] else _EVERY
  return lambda ranked, grades: scorer(ranked, grades, k) or 0.0  # None: no relevant passage
