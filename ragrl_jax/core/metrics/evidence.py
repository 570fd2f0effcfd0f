"""How evidence was used: passages named, quotes that stand in them, and searches that brought nothing."""

import dataclasses
from collections.abc import Collection, Hashable, Sequence


@dataclasses.dataclass(frozen=True)
class Overlap:
  precision: float
  recall: float
  f1: float
  exact: float


def overlap(named: Collection[Hashable], golds: Collection[Hashable]) -> Overlap:
  """How two sets of passages meet. Repeats count once; naming nothing is right only where nothing was to be named."""
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
  """Whether the span stands in the context word for word, white space of any kind being one space."""
  span = " ".join(span.split())
  return bool(span) and span in " ".join(context.split())


def compression(evidence: int, context: int) -> float:
  """Length of the evidence as a share of the context's, both in one unit; 0 for an empty context."""
  return evidence / context if context > 0 else 0.0


def recall_at(ranked: Sequence[Hashable], golds: Collection[Hashable], k: int) -> float:
  """Share of the golds among the first k; 0 without golds."""
  golds = set(golds)
  return len(golds & set(ranked[:k])) / len(golds) if golds else 0.0


def wasted_searches(queries: Sequence[str], found: Sequence[Collection[Hashable]], golds: Collection[Hashable]) -> int:
  """How many searches repeat an earlier one, or bring no gold passage that was not shown before.

  Args:
    queries: in order; compared without regard to case and white space.
    found: for each, what identifies the passages it brought.
    golds: the same for the gold passages. Where none are known, only repeats are counted.

  Raises:
    ValueError: not one result for each query.
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
