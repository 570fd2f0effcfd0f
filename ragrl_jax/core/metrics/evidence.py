"""Metrics of the use of evidence: passages named, quotes found in them, and wasted searches."""

import dataclasses
from collections.abc import Collection, Hashable, Sequence


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Agreement of a named set with the gold set; each number in [0, 1], `exact` 0 or 1."""

  precision: float
  recall: float
  f1: float
  exact: float


def overlap(named: Collection[Hashable], golds: Collection[Hashable]) -> Overlap:
  """Agreement of two sets of passages. Repeats count once. An empty set is right only if there are no golds."""
  ours, theirs = set(named), set(golds)
  if not ours and not theirs:
    return Overlap(1.0, 1.0, 1.0, 1.0)
  common = len(ours & theirs)
  return Overlap(
    common / len(ours) if ours else 0.0,
    common / len(theirs) if theirs else 0.0,
    2.0 * common / (len(ours) + len(theirs)),
    float(ours == theirs),
  )


def quoted(span: str, context: str) -> bool:
  """Whether the context contains the span word for word; any white space counts as one space."""
  span = " ".join(span.split())
  return bool(span) and span in " ".join(context.split())


def compression(evidence: int, context: int) -> float:
  """Length of the evidence divided by the context's, both in one unit; 0 for an empty context."""
  return evidence / context if context > 0 else 0.0


def recall_at(ranked: Sequence[Hashable], golds: Collection[Hashable], k: int) -> float:
  """Share of the golds among the first k; 0 without golds."""
  golds = set(golds)
  return len(golds & set(ranked[:k])) / len(golds) if golds else 0.0


def wasted_searches(queries: Sequence[str], found: Sequence[Collection[Hashable]], golds: Collection[Hashable]) -> int:
  """Number of searches that repeat an earlier query or return no new gold passage.

  Args:
    queries: in order; compared without regard to case and white space.
    found: for each query, ids of the passages it returned.
    golds: ids of the gold passages. If empty, only repeats are counted.

  Raises:
    ValueError: the numbers of queries and results differ.
  """
  if len(queries) != len(found):
    raise ValueError(f"{len(queries)} queries but {len(found)} results.")
  asked, shown, wasted = set(), set(), 0
  for query, passages in zip(queries, found):
    key = " ".join(query.lower().split())
    new = (set(passages) & set(golds)) - shown
    wasted += key in asked or (bool(golds) and not new)
    asked.add(key)
    shown |= new
  return wasted
