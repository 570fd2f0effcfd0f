"""Metrics of the use of evidence: passages named. Searches: searches.py."""

import dataclasses
from collections.abc import Collection, Hashable


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


def joint(answer: Overlap, facts: Overlap) -> Overlap:
  """HotpotQA's joint metrics of an answer (`qa.overlap`) and its supporting facts (`overlap`).

  Precision, recall and exact match are products; F1 is of this precision and recall. HotpotQA's answers have the yes/no
  rule, and its facts are (title, sentence) pairs; passages make it the same metric by passage.

  Source: HotpotQA (arXiv 1809.09600) sec. 5.2, and its evaluation script.
  """
  precision, recall = answer.precision * facts.precision, answer.recall * facts.recall
  f1 = 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0
  return Overlap(precision, recall, f1, answer.exact * facts.exact)
