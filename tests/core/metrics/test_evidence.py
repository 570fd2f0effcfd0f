import pytest

from ragrl_jax.core.metrics import evidence


def test_overlap_by_hand():
  # 3 named, 2 golds, 1 in common: precision 1/3, recall 1/2, F1 2 * 1 / (3 + 2).
  got = evidence.overlap([1, 2, 3, 3], [3, 4])
  assert (got.precision, got.recall, got.f1, got.exact) == pytest.approx((1 / 3, 0.5, 0.4, 0.0))
  assert evidence.overlap("ab", "ba").exact == 1.0
  assert evidence.overlap([], [1]) == evidence.Overlap(0.0, 0.0, 0.0, 0.0)
  assert evidence.overlap([], []) == evidence.Overlap(1.0, 1.0, 1.0, 1.0)


def test_joint_of_answer_and_facts_by_hand():
  # Facts: 2 named, 1 of 3 gold: precision 1/2, recall 1/3. Answer: precision 2/3, recall 1. Joint: 1/3, 1/3, F1 1/3.
  facts = evidence.overlap([("A", 0), ("B", 1)], [("A", 0), ("C", 0), ("D", 2)])
  found = evidence.joint(evidence.Overlap(2 / 3, 1.0, 4 / 5, 0.0), facts)
  assert (found.precision, found.recall, found.f1, found.exact) == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0))
  right = evidence.Overlap(1.0, 1.0, 1.0, 1.0)
  assert evidence.joint(right, evidence.overlap([("A", 0)], [("A", 0)])) == right
  assert evidence.joint(evidence.Overlap(0.0, 0.0, 0.0, 0.0), facts).f1 == 0  # a wrong answer
