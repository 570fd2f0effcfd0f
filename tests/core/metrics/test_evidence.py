import pytest

from ragrl_jax.core.metrics import evidence


def test_overlap_by_hand():
  # 3 named, 2 golds, 1 in common: 1/3, 1/2, 2 * 1 / (3 + 2).
  got = evidence.overlap([1, 2, 3, 3], [3, 4])
  assert (got.precision, got.recall, got.f1, got.exact) == pytest.approx((1 / 3, 0.5, 0.4, 0.0))
  assert evidence.overlap("ab", "ba").exact == 1.0
  assert evidence.overlap([], [1]) == evidence.Overlap(0.0, 0.0, 0.0, 0.0)
  assert evidence.overlap([], []) == evidence.Overlap(1.0, 1.0, 1.0, 1.0)


def test_quoted():
  context = "One two\n  three four."
  assert evidence.quoted("two three", context)
  assert not evidence.quoted("Two three", context)
  assert not evidence.quoted("  ", context)


def test_compression_and_recall():
  assert evidence.compression(25, 100) == 0.25
  assert evidence.compression(25, 0) == 0.0
  assert evidence.recall_at(["a", "b", "c"], ["c", "a"], 2) == 0.5
  assert evidence.recall_at(["a"], [], 2) == 0.0


def test_wasted_searches():
  golds = {"g1", "g2"}
  assert evidence.wasted_searches(["x", "y"], [{"g1"}, {"g2", "z"}], golds) == 0
  assert evidence.wasted_searches(["x", "y"], [{"g1"}, {"g1"}], golds) == 1  # nothing new
  assert evidence.wasted_searches(["x", " X "], [{"g1"}, {"g2"}], golds) == 1  # a repeat, whatever it brings
  assert evidence.wasted_searches(["x"], [{"z"}], golds) == 1
  assert evidence.wasted_searches(["x", "x", "y"], [{"z"}, {"z"}, {"z"}], ()) == 1  # no golds known: repeats only
  assert evidence.wasted_searches([], [], golds) == 0
  with pytest.raises(ValueError, match="1 queries"):
    evidence.wasted_searches(["x"], [], golds)
