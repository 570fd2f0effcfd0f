"""ragrl index as a user calls it; `ragrl serve-index`: tests/retrieval/test_serving.py."""

import json
import sys

import pytest

from ragrl_jax.cli import build_index
from ragrl_jax.retrieval import load_index


def test_an_index_is_built_and_described(tmp_path, monkeypatch, capsys):
  rows = [dict(id=i, contents=f'"T{i}"\nword{i} fact') for i in range(9)]
  (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  words = ["--corpus", tmp_path / "c.jsonl", "--encoder", "hashing", "--out", tmp_path / "index", "--factory", "HNSW8"]
  monkeypatch.setattr(sys, "argv", ["ragrl index", *map(str, words), "--encoder_options", '{"dim": 64}'])
  build_index.main()
  said, bars = capsys.readouterr()
  assert json.loads(said)["encoder"]["dim"] == 64 and json.loads(said)["factory"] == "HNSW8"
  assert "corpus: 9 passages" in bars and "encode: 100%" in bars
  assert load_index(tmp_path / "index").search(["word3 fact"], 1)[0][0].id == "3"


@pytest.mark.parametrize("given, says", [
  (["--chunk_overlap=8"], "--chunk_overlap without --chunk_tokens"), (["--corpus=d.jsonl"], "--corpus is given twice"),
  (["--chunk_tokenizer=folder"], "--chunk_tokenizer without --chunk_tokens"), (["--out="], "--out is empty"),
  (["--factory=HNSW8", "--dtype=int8"], "--factory, --dtype with --encoder bm25"), (["--shard=3"], "such as 1/4"),
  (["--oversample=0"], "argument --oversample: '0': it must be a whole number of at least 1"),
  (["--threads=-1"], "'-1': it must be a whole number of at least 1"),
  (["--options=nprobe=8"], "--options with --encoder bm25"),
  (["--key_variable=NO_KEY"], "only a database takes a token"),
  (["--out=milvus:a.db/b", "--key_variable=NO_KEY"], "--key_variable=NO_KEY: this environment variable holds no token"),
])  # fmt: skip
def test_flags_that_an_index_would_ignore_are_refused(tmp_path, monkeypatch, capsys, given, says):
  arguments = ["ragrl index", f"--corpus={tmp_path}/c.jsonl", "--encoder=bm25", f"--out={tmp_path}/i"]
  monkeypatch.setattr(sys, "argv", [*arguments, *given])
  with pytest.raises(SystemExit) as ended:
    build_index.main()
  assert ended.value.code == 2 and says in capsys.readouterr().err
