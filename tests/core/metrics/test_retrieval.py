import json
import math

import hypothesis
import hypothesis.strategies as st
import pytest
import trec_runs
from refusals import refused

from ragrl_jax.core.metrics import retrieval
from ragrl_jax.core.metrics.retrieval import ndcg, recall, reciprocal_rank

IDS = st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True)
GRADES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3), max_size=8)


@pytest.mark.parametrize("metric, ranked, grades, k, want", [
  # Gains 0, 2, 1 at ranks 1, 2, 3: DCG = 2/log2(3) + 1/log2(4) = 2/1.58496 + 1/2 = 1.76186.
  # Best order 2, 1: IDCG = 2/log2(2) + 1/log2(3) = 2.63093. Ratio 0.66967.
  (ndcg, "xba", dict(a=1, b=2), 10, 1.7618595 / 2.6309298),
  (ndcg, "xba", dict(a=1, b=2), 2, 1.2618595 / 2.6309298),  # the third rank does not count: (2/1.58496) / 2.63093
  # Of three relevant passages two are found, which is all that the ideal ranking has at k = 2.
  (ndcg, "ab", dict(a=1, b=1, c=1), 2, 1), (recall, "ab", dict(a=1, b=1, c=1), 2, 2 / 3),
  # The second "a" takes a rank and earns nothing: 1/log2(2) over 1/log2(2) + 1/log2(3).
  (ndcg, "aa", dict(a=1, b=1), 2, 1 / (1 + 1 / math.log2(3))), (recall, "aa", dict(a=1, b=1), 2, 0.5),
  (ndcg, "xa", dict(a=1, x=-1), 10, 1 / math.log2(3)),  # a negative grade has no gain
  (reciprocal_rank, "xab", dict(a=1, b=2), 3, 1 / 2), (reciprocal_rank, "xya", dict(a=1), 2, 0),
  (ndcg, "", dict(a=1), 10, 0), (recall, "", dict(a=1), 10, 0),
  # Queries without relevant passages cannot be scored.
  (ndcg, "a", {}, 10, None), (ndcg, "a", dict(a=0, b=-1), 10, None), (recall, "a", {}, 10, None),
  (recall, "a", dict(a=0), 10, None), (reciprocal_rank, "a", dict(a=0), 2, None),
])  # fmt: skip
def test_a_ranking_by_hand(metric, ranked, grades, k, want):
  assert metric([*ranked], grades, k) == (want if want is None else pytest.approx(want, rel=1e-6))
  refused("k=0", metric, [*ranked], grades, 0)


def test_one_relevant_passage_at_rank_r_scores_its_discount():
  for rank in range(1, 12):
    ranked = [f"n{i}" for i in range(rank - 1)] + ["right"]
    assert ndcg(ranked, {"right": 1}, 10) == pytest.approx(1 / math.log2(rank + 1) if rank <= 10 else 0)


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
  by_hand = {
    "nDCG@10": (2 / math.log2(3) + 1 / 2) / (2 + 1 / math.log2(3)), "AP": (1 / 2 + 2 / 3) / 2, "AP@2": (1 / 2) / 2,
    "RR": 1 / 2, "R@2": 1 / 2, "P@2": 1 / 2, "P@10": 2 / 10, "Success@1": 0.0,
  }  # fmt: skip
  found = retrieval.measured(run, judged, [*by_hand])
  for name, value in by_hand.items():
    assert found[name] == dict(q1=pytest.approx(value), q2=0.0, q3=0.0)  # q2 has no relevant passage, q3 no results
  assert retrieval.means(run, judged, ["RR"]) == {"RR": pytest.approx(0.5 / 3)}


def test_as_ir_measures_and_unknown_measures_are_refused():
  judgements, run = trec_runs.made_up()
  wanted = json.loads(trec_runs.GOLDEN.read_text())["made up"]
  assert retrieval.means(run, judgements, trec_runs.MEASURES) == pytest.approx(wanted, abs=1e-12)
  assert min(wanted.values()) > 0.02
  for name in ("ndcg", "nDCG@0", "P", "R", "MAP", "nDCG@-1", "AP@", ""):
    refused(f"the measure {name!r} is unknown", retrieval.means, {}, {}, [name])
