import math

import hypothesis
import hypothesis.strategies as st
import pytest

from ragrl_jax.core.metrics.retrieval import ndcg, recall, reciprocal_rank

IDS = st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True)
GRADES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3), max_size=8)


def test_ndcg_by_hand():
  # Gains 0, 2, 1 at ranks 1, 2, 3: DCG = 2/log2(3) + 1/log2(4) = 2/1.58496 + 1/2 = 1.76186.
  # Best order 2, 1: IDCG = 2/log2(2) + 1/log2(3) = 2.63093. Ratio 0.66967.
  assert ndcg(["x", "b", "a"], {"a": 1, "b": 2}, 10) == pytest.approx(1.7618595 / 2.6309298, rel=1e-6)
  # At k = 2 the third rank does not count: (2/1.58496) / 2.63093.
  assert ndcg(["x", "b", "a"], {"a": 1, "b": 2}, 2) == pytest.approx(1.2618595 / 2.6309298, rel=1e-6)


def test_one_relevant_passage_at_rank_r_scores_its_discount():
  for rank in range(1, 11):
    ranked = [f"n{i}" for i in range(rank - 1)] + ["right"]
    assert ndcg(ranked, {"right": 1}, 10) == pytest.approx(1 / math.log2(rank + 1))
  assert ndcg([f"n{i}" for i in range(10)] + ["right"], {"right": 1}, 10) == 0


def test_the_ideal_ranking_is_cut_at_k():
  # Three relevant passages and k = 2: two relevant results are a perfect score.
  assert ndcg(["a", "b"], {"a": 1, "b": 1, "c": 1}, 2) == 1
  assert recall(["a", "b"], {"a": 1, "b": 1, "c": 1}, 2) == pytest.approx(2 / 3)


def test_an_id_twice_counts_once():
  # The second "a" takes a rank and earns nothing: 1/log2(2) over 1/log2(2) + 1/log2(3).
  assert ndcg(["a", "a"], {"a": 1, "b": 1}, 2) == pytest.approx(1 / (1 + 1 / math.log2(3)))
  assert recall(["a", "a"], {"a": 1, "b": 1}, 2) == 0.5


def test_reciprocal_rank_by_hand():
  assert reciprocal_rank(["x", "a", "b"], {"a": 1, "b": 2}, 3) == 1 / 2
  assert reciprocal_rank(["x", "y", "a"], {"a": 1}, 2) == 0 and reciprocal_rank(["a"], {"a": 0}, 2) is None


def test_queries_without_relevant_passages_cannot_be_scored():
  assert ndcg(["a"], {}, 10) is None and recall(["a"], {}, 10) is None
  assert ndcg(["a"], {"a": 0, "b": -1}, 10) is None and recall(["a"], {"a": 0}, 10) is None
  assert ndcg([], {"a": 1}, 10) == 0 and recall([], {"a": 1}, 10) == 0


def test_negative_grades_have_no_gain():
  assert ndcg(["bad", "a"], {"a": 1, "bad": -1}, 10) == pytest.approx(1 / math.log2(3))


@pytest.mark.parametrize("metric", [ndcg, recall, reciprocal_rank])
def test_k_below_one_is_refused(metric):
  with pytest.raises(ValueError, match="k=0"):
    metric(["a"], {"a": 1}, 0)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(IDS, GRADES, st.integers(1, 10))
def test_bounds_and_swaps(ranked, grades, k):
  score = ndcg(ranked, grades, k)
  if score is None:
    assert not any(grade > 0 for grade in grades.values())
    return
  assert 0 <= score <= 1 + 1e-12
  best = sorted(grades, key=lambda name: -grades[name])
  assert ndcg(best, grades, k) == pytest.approx(1)
  by_grade = sorted(ranked, key=lambda name: -grades.get(name, 0))
  assert ndcg(by_grade, grades, k) >= score - 1e-12  # ordering by grade never lowers the score
  assert 0 <= recall(ranked, grades, k) <= recall(ranked, grades, k + 1) <= 1
