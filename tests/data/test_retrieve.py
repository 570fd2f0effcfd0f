"""`ragrl retrieve`: rows with an index's passages."""

import os
import pathlib
import subprocess
import sys

import pytest

from ragrl_jax import retrieval, structs
from ragrl_jax.data import readers, writers
from ragrl_jax.run import questions
from ragrl_jax.store import episodes

ROOT = pathlib.Path(__file__).parents[2]
PARIS = structs.Passage("1", "France", "The capital of France is Paris.")
OSLO = structs.Passage("2", "Norway", "The capital of Norway is Oslo.")


def example(**fields):
  return structs.Example("q", "What is the capital of Norway?", ("Oslo",), **fields)


def test_only_known_gold_passages_are_marked():
  both = dict(passages=(PARIS, OSLO))
  assert questions.marked(example(**both)).supporting == ()  # Oslo is in a passage, but no one says that it supports
  assert questions.marked(example(**both, meta=dict(gold_ids=[2]))).supporting == (1,)
  lost = structs.Passage("x", "norway", "An older text of the article.")
  found = questions.marked(
    example(**both, meta={episodes.GOLDS: (lost,)}, evidence=((0, OSLO.text), (0, "In no passage.")))
  )
  assert found.supporting == (1,) and found.evidence == ((1, OSLO.text),)


@pytest.mark.slow  # starts a process
def test_the_command_attaches_marks_and_counts(tmp_path):
  writers.write_passages(tmp_path / "corpus.jsonl", [PARIS, OSLO])
  retrieval.build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index", progress=False)
  own = structs.Example("own", "Where?", ("Lima",), (PARIS,))
  writers.write_examples(tmp_path / "q.jsonl", [example(meta=dict(gold_ids=["2"])), own])

  def told(index):
    words = [sys.executable, "-m", "ragrl_jax", "retrieve", "--data=q.jsonl", f"--index={index}", "--top_k=1"]
    environment = os.environ | dict(PYTHONPATH=str(ROOT))
    return subprocess.run([*words, "--out=a.jsonl.gz"], cwd=tmp_path, env=environment, capture_output=True, text=True)

  missing = told("none")
  assert missing.returncode == 2 and "none: no index here" in missing.stderr.splitlines()[-1]
  assert not (tmp_path / "a.jsonl.gz").exists()
  done = told("index")
  assert done.returncode == 0, done.stderr
  assert "2 questions, 2 with passages, 1 with an answer in a passage (50.0%), 1 with marked" in done.stdout
  asked, kept = readers.read_examples(tmp_path / "a.jsonl.gz")
  assert [p.text for p in asked.passages] == [OSLO.text] and asked.supporting == (0,)
  assert [p.text for p in kept.passages] == [PARIS.text] and kept.supporting == ()
