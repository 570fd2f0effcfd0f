import json
import math

import hypothesis
import hypothesis.strategies as st
import pytest
import trec_runs

from ragrl_jax.core.metrics import retrieval
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


def test_by_hand():
  # "a" and "d" have equal scores: trec_eval puts the later id first. The order is d a b; relevant are a (2) and b (1).
  run = {"q1": {"a": 1.0, "d": 1.0, "b": 0.5}, "other": {"x": 1.0}}
  judged = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"x": 0}, "q3": {"m": 1}}
  assert retrieval.ordered(run["q1"]) == ["d", "a", "b"]
  assert retrieval.ordered({"a": 0.5, "b": 0.3 + 0.2 + 1e-12}) == ["b", "a"]  # equal in 32 bits
  assert retrieval.ordered({"b": 0.5, "c": 0.5 - 1e-12, "a": 0.6}) == ["a", "c", "b"]
  found = retrieval.measured(run, judged, ["nDCG@10", "AP", "AP@2", "RR", "R@2", "P@2", "P@10", "Success@1"])
  by_hand = {
    "nDCG@10": (2 / math.log2(3) + 1 / 2) / (2 + 1 / math.log2(3)),
    "AP": (1 / 2 + 2 / 3) / 2,
    "AP@2": (1 / 2) / 2,
    "RR": 1 / 2,
    "R@2": 1 / 2,
    "P@2": 1 / 2,
    "P@10": 2 / 10,
    "Success@1": 0.0,
  }
  for name, value in by_hand.items():
    assert found[name] == dict(q1=pytest.approx(value), q2=0.0, q3=0.0)  # q2 has no relevant passage, q3 no results
  assert retrieval.means(run, judged, ["RR"]) == {"RR": pytest.approx(0.5 / 3)}


def test_as_ir_measures():
  judgements, run = trec_runs.made_up()
  wanted = json.loads(trec_runs.GOLDEN.read_text())["made up"]
  assert retrieval.means(run, judgements, trec_runs.MEASURES) == pytest.approx(wanted, abs=1e-12)
  assert min(wanted.values()) > 0.02


def test_unknown_measures_are_refused():
  for name in ("ndcg", "nDCG@0", "P", "R", "MAP", "nDCG@-1", "AP@", ""):
    with pytest.raises(ValueError, match=f"the measure {name!r} is unknown"):
      retrieval.means({}, {}, [name])
