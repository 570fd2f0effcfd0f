"""`ragrl retrieve`: rows with an index's passages."""

import dataclasses

from console import ragrl

from ragrl_jax import retrieval, structs
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import answer_recall
from ragrl_jax.run import questions
from ragrl_jax.store import episodes

PARIS = structs.Passage("1", "France", "The capital of France is Paris.")
OSLO = structs.Passage("2", "Norway", "The capital of Norway is Oslo.")
example = lambda **fields: structs.Example("q", "What is the capital of Norway?", ("Oslo",), **fields)


def test_only_known_gold_passages_are_marked():
  both = dict(passages=(PARIS, OSLO))
  assert questions.marked(example(**both)).supporting == ()  # Oslo is in a passage, but no one says that it supports
  assert questions.marked(example(**both, meta=dict(gold_ids=[2]))).supporting == (1,)
  lost = structs.Passage("x", "norway", "An older text of the article.")
  evidence = ((0, OSLO.text), (0, "In no passage."))
  found = questions.marked(example(**both, meta={episodes.GOLDS: (lost,)}, evidence=evidence))
  assert found.supporting == (1,) and found.evidence == ((1, OSLO.text),)


def test_gold_passages_that_a_row_has_lost_stay_known(tmp_path):
  own = structs.Passage("x", "norway", "An older text."), structs.Passage("y", "Sweden", "The other one.")
  bare = questions.without_passages(example(passages=own, supporting=(0, 1)))
  asked = questions.marked(dataclasses.replace(bare, passages=(PARIS, OSLO)))
  writers.write_examples(tmp_path / "a.jsonl", [asked])
  (again,) = readers.read_examples(tmp_path / "a.jsonl")
  assert again == dataclasses.replace(asked, source="a") and again.supporting == (1,)
  assert answer_recall.gold_scores(again, again.passages, 5)["recall"] == 0.5  # one of two articles was found
  assert questions.without_passages(again).meta == bare.meta


def test_the_command_attaches_marks_and_counts(tmp_path):
  writers.write_passages(tmp_path / "corpus.jsonl", [PARIS, OSLO])
  retrieval.build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index", progress=False)
  own = structs.Example("own", "Is it?", ("no",), (dataclasses.replace(PARIS, text="There is no other."),))
  writers.write_examples(tmp_path / "q.jsonl", [example(meta=dict(gold_ids=["2"])), own])

  words = "retrieve", "--data=q.jsonl", "--top_k=1", "--out=a.jsonl.gz"
  missing = ragrl(*words, "--index=none", cwd=tmp_path)
  assert missing.returncode == 2 and "none: no index here" in missing.stderr.splitlines()[-1]
  assert not (tmp_path / "a.jsonl.gz").exists()
  counts = "2 questions, 2 with passages, 1 with an answer in a passage (50.0%), 1 with marked"
  ragrl(*words, "--index=index", cwd=tmp_path, says=counts)
  asked, kept = readers.read_examples(tmp_path / "a.jsonl.gz")
  assert [p.text for p in asked.passages] == [OSLO.text] and asked.supporting == (0,)
  assert [p.text for p in kept.passages] == ["There is no other."] and kept.supporting == ()
