"""Faults of retrieval that users of other tools reported, tried here with inputs of our own; threads name the kind."""

import json

import numpy as np
import pytest

from ragrl_jax.retrieval import build_index, corpus, faiss_index
from ragrl_jax.structs import Passage


@pytest.mark.parametrize("factory", ["IVF8,Flat", "HNSW8", "IVF4,PQ8x4", "SQ8"])
def test_neighbours_that_faiss_does_not_find_are_no_passages(tmp_path, factory):
  """UltraRAG #517, FlashRAG #247: FAISS pads with -1, which Python takes for the last document."""
  vectors = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
  faiss_index.build(vectors, tmp_path / "i", factory=factory, threads=1, train_rows=40, progress=False)
  options = "nprobe=1" if factory.startswith("IVF") else ""
  index = faiss_index.Approximate(tmp_path / "i", vectors, options=options, oversample=1)
  for k in (39, 60):
    for scores, rows in index.search(vectors[:3], k):
      assert len(rows) == len(scores) == len({*rows.tolist()}) <= 40 and rows.min() >= 0
      np.testing.assert_allclose(scores[0], (vectors[rows[0]] ** 2).sum(), rtol=1e-5)  # each finds itself


def test_odd_lines_and_ids_of_a_corpus_are_kept(tmp_path):
  """U+2028 ends no line, blank lines are none, CRLF is a line's end, and the ids 1 and "1" are one id."""
  rows = [dict(id=1, title="a\u2028b", text="x\u0085y"), dict(id="2", title="", text="z")]
  path = tmp_path / "c.jsonl"
  path.write_bytes("\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode() + b"\n")
  assert [*corpus.read_passages(path)] == [Passage("1", "a\u2028b", "x\u0085y"), Passage("2", "", "z")]
  path.write_text("".join(json.dumps(dict(id=one, text="x")) + "\n" for one in (1, "1")))
  with pytest.raises(ValueError, match="the id '1' occurs twice"):
    build_index(path, "bm25", tmp_path / "i", progress=False)
