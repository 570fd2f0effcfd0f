"""The real questions, if they are present: in RAGRL_DATA, or in shared/data beside the repository."""

import gzip
import json
import os
import pathlib

import pytest

from ragrl_jax.data import readers

HERE = pathlib.Path(os.environ.get("RAGRL_DATA") or pathlib.Path(__file__).parents[3] / "shared" / "data")
FILES = sorted((HERE / "qa").glob("*.jsonl.gz")) if HERE.is_dir() else []
pytestmark = [pytest.mark.real, pytest.mark.skipif(not FILES, reason=f"no real questions in {HERE}/qa: set RAGRL_DATA")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_every_row_is_read(path):
  with gzip.open(path, "rt") as file:
    rows = [json.loads(line) for line in file]
  examples = list(readers.read_examples(path))
  assert len(examples) == len(rows)
  for row, example in zip(rows, examples):
    assert (example.id, example.question) == (row["id"], row["question"])
    assert list(example.golds) == list(dict.fromkeys(row["answers"]))
    given = [(p["id"], p["title"], p["text"]) for p in row["passages"]]
    assert [(p.id, p.title, p.text) for p in example.passages] == given
    assert list(example.supporting) == row["supporting"]
    for place, sentence in example.evidence:
      assert sentence in example.passages[place].text


def test_hotpotqa_has_two_gold_passages():
  for example in readers.read_examples(HERE / "qa" / "hotpotqa_dev.jsonl.gz"):
    assert len(example.supporting) == 2
