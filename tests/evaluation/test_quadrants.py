import json

import pytest
from console import ragrl
from refusals import refused

from ragrl_jax import retrieval
from ragrl_jax.data import readers
from ragrl_jax.evaluation import quadrants
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Passage


def row(name, outcome, source="nq", ended="answer", **more):
  return dict(id=name, source=source, outcome=outcome, ended=ended, response_tokens=10, episode_tokens=100) | more


WITH = [row("1", 1.0), row("2", 1.0), row("3", 0.0), row("4", 0.0), row("5", None), row("1", 1.0, "popqa")]
WITHOUT = [row("1", 0.0, "popqa"), row("5", 1.0), row("4", 0.0), row("3", 1.0), row("2", 0.0), row("1", 1.0)]


def test_four_classes_by_hand_and_a_set_without_a_name_is_not_lost_in_the_total():
  found = quadrants.crossed(WITH, WITHOUT, "outcome")
  # nq: 1 both, 2 with alone, 3 without alone, 4 neither; 5 has no verdict. All: popqa's one is with alone.
  assert found["nq"] == {"both": 0.25, "first only": 0.25, "second only": 0.25, "neither": 0.25, "n": 4}
  assert found["popqa"] == {"both": 0.0, "first only": 1.0, "second only": 0.0, "neither": 0.0, "n": 1}
  assert found[""] == {"both": 0.2, "first only": 0.4, "second only": 0.2, "neither": 0.2, "n": 5}
  head, one = quadrants.text(quadrants.crossed(WITH[:1], WITHOUT[-1:], "outcome")).splitlines()
  assert head == "set   both    first only   second only   neither   n"
  assert one == "nq    1.000   0.000        0.000         0.000     1"
  one = [row("1", 0.0, measures=dict(reason_recall=1.0)), row("2", 0.0, measures=dict(reason_recall=None))]
  found = quadrants.crossed(one, one, "measure/reason_recall")  # a recipe's measure
  assert found["nq"]["both"] == 1.0 and found["nq"]["n"] == 1
  for given, says in (
    ((WITH, WITHOUT[:-1], "outcome"), "1 are only in the first"), ((WITH, WITHOUT, "em"), "'em'"),
    (([*WITH, WITH[0]], WITHOUT, "outcome"), "several answers to a question"),
  ):  # fmt: skip
    refused(says, quadrants.crossed, *given)
  some = [row("1", 1.0, num_searches=0), row("2", 0.0, source=None, num_searches=0)]
  for found in (quadrants.crossed(some, some, "outcome"), quadrants.need(some, some, "outcome")):
    assert {name: of["n"] for name, of in found.items()} == {"": 2, "(no name)": 1, "nq": 1}


def test_searches_that_were_needed_by_hand():
  searched = dict(zip("12345", (1, 2, 1, 0, 0)))
  may = [row(i, float(i in "135"), num_searches=searched[i]) for i in "12345"]
  never = [row(i, float(i in "12"), num_searches=0) for i in "54321"]
  # 1, 2 and 3 were searched for: 1 and 2 are right without (one of them was made wrong), 3 only with it. 4 is wrong.
  found = quadrants.need(may, never, "outcome")
  assert found == {"nq": pytest.approx(dict(n=5, searched=0.6, over=2 / 3, needed=1 / 3, under=1 / 2))}
  assert quadrants.text(found).splitlines()[1].split() == ["nq", "0.600", "0.667", "0.333", "0.500", "5"]
  assert quadrants.need(never, never, "outcome")["nq"]["over"] is None
  refused("the second evaluation searched for 3 questions", quadrants.need, never, may, "outcome")


def test_of_several_seeds_a_question_has_its_mean():
  seeds = [
    [row("1", 1.0, num_searches=1), row("2", 1.0, num_searches=0), row("3", None, ended="failed", num_searches=0)],
    [row("1", 0.0, num_searches=0), row("3", 1.0, num_searches=2), row("2", 0.0, num_searches=0)],
    [row("2", 0.0, num_searches=0), row("1", 1.0, num_searches=1), row("3", 0.0, num_searches=0)],
  ]
  one, two, three = quadrants.over_seeds(seeds, "outcome")
  assert (one["outcome"], two["outcome"], three["outcome"]) == pytest.approx((2 / 3, 1 / 3, 1 / 2))
  assert one["num_searches"] == pytest.approx(2 / 3) and three["num_searches"] == 1 and three["ended"] == "answer"
  # Right from a half on: questions 1 and 3.
  assert quadrants.crossed([one, two, three], seeds[0][:2] + [row("3", 0.0)], "outcome")["nq"]["first only"] == 1 / 3
  assert quadrants.over_seeds(seeds[:1], "outcome") is seeds[0]
  measured = [[row("1", 0.0, measures=dict(recall=float(seed)))] for seed in range(2)]
  assert quadrants.over_seeds(measured, "measure/recall")[0]["measures"]["recall"] == 0.5
  refused("3 seeds of an evaluation have different questions", quadrants.over_seeds, [*seeds[:2], WITH[:1]], "outcome")


def test_the_curve_by_hand():
  at = lambda retrieval: dict(settings=dict(retrieval=retrieval))
  results = {"k5": (at(dict(top_k=5)), WITH), "none": (at(None), WITHOUT[:2])}
  none, five = quadrants.curve(results, "outcome")
  assert (none["folder"], none["top_k"], none["mean"], none["n"]) == ("none", 0, 0.5, 2)
  assert (five["top_k"], five["mean"], five["n"]) == (5, 0.6, 5) and five["low"] < 0.6 < five["high"]
  assert (five["response_tokens"], five["given_tokens"]) == (10.0, 90.0)
  said = quadrants.curve_text([five], "outcome").splitlines()[1]
  assert said.split()[:2] == ["5", "0.600"] and said.endswith("k5")
  # Transcripts from elsewhere have no tokens.
  bare = [row("1", 1.0, response_tokens=None, episode_tokens=None)]
  (found,) = quadrants.curve({"k": (at("e5, top 3"), bare)}, "outcome")
  assert found["top_k"] == 0 and found["response_tokens"] is None
  assert "–" in quadrants.curve_text([found], "outcome")


def test_the_commands(tmp_path):
  for name, rows in (("a", WITH), ("b", WITHOUT), ("seeds/seed_0", WITH), ("seeds/seed_1", WITHOUT)):
    jsonl.write(tmp_path / name / "predictions.jsonl", rows)
  settings = dict(recipe="untrained", data="x", retrieval=dict(top_k=5))
  (tmp_path / "a" / "metrics.json").write_text(json.dumps(dict(n=1, settings=settings)))
  passages = [dict(id=str(i), title="", text=text) for i, text in enumerate(("In Oslo.", "In Paris."))]
  asked = dict(question="Where?", answers=["Paris"], passages=passages, meta=dict(type="bridge"))
  jsonl.write(tmp_path / "asked.jsonl", (asked | dict(id=str(i), question=f"Where {i}?") for i in range(5)))
  data = f"--data={tmp_path}/asked.jsonl"
  for command, says in (
    (["quadrants", f"--curve={tmp_path}/a"], "0.600"),
    (["quadrants", f"--results={tmp_path}/seeds", f"--results={tmp_path}/b"], "popqa"),
    # The second of two passages holds the answer: 1 / log2(3).
    (["recall", data, "--only=type=bridge", "--top_k=2"], '"ndcg@2": 0.63'),
    (["split", data, f"--out={tmp_path}/train.jsonl", f"--out={tmp_path}/held.jsonl"], "train.jsonl: 4 questions"),
    (["make-lear-sft", data, f"--out={tmp_path}", "--oracle=string_inclusion"], "5 of 5"),
  ):
    ragrl(*command, says=says)
  corpus = [Passage("a", "", "Where? In Bergen."), Passage("b", "", "Nowhere.")]
  index = retrieval.build_index(corpus, "bm25", tmp_path / "index", progress=False)
  searched = ["recall", data, f"--index={index}", "--top_k=2"]
  said = json.loads(ragrl(*searched).stdout)  # what the index finds, though the questions have passages
  assert said["recall@2"] == 0.0 and said["measured"] == f"searches in {index} for 5 questions"
  (tmp_path / "odd.jsonl").write_text(json.dumps(dict(id="0", question="zzzz?", answers=["Paris"])) + "\n")
  found = ["recall", f"--data={tmp_path}/odd.jsonl", f"--index={index}", "--top_k=2"]
  assert json.loads(ragrl(*found).stdout)["recall@2"] == 0.0  # BM25 finds nothing
  said = json.loads(ragrl(*searched, "--own_passages").stdout)
  assert said["recall@2"] == 1.0 and said["measured"] == "the own passages of 5 questions"
  (first, *_) = readers.read_examples(tmp_path / "filter.jsonl.gz")
  assert first.meta["turns"] == [["model", "<extract> In Paris. </extract>"]]
