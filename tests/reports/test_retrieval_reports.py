"""Faults of retrieval that users of other tools reported, tried here with inputs of our own; threads name the kind."""

import json

import numpy as np
import pytest

from ragrl_jax.retrieval import build_index, corpus, faiss_index, fusion, load_index, remote
from ragrl_jax.structs import Passage


class Ranking:
  """Finds the same passages, whatever is asked."""

  def __init__(self, *names):
    self._found = [Passage(name, "", f"text of {name}", 1.0) for name in names]

  def search(self, queries, k):
    return [self._found[:k] for _ in queries]

  def describe(self):
    return dict(kind="ranking")


def test_reciprocal_ranks_begin_at_1_and_a_missing_passage_adds_nothing():
  """sentence-transformers #3883: ranks from 0, and passages that a ranking lacks get a score."""
  (found,) = fusion.Fused([Ranking("a"), Ranking("b", "a")]).search(["q"], 3)
  assert [(p.id, p.score) for p in found] == [("a", pytest.approx(1 / 61 + 1 / 62)), ("b", pytest.approx(1 / 61))]


def test_no_passage_without_a_common_word_is_returned(tmp_path):
  """bm25s #127, haystack #5982: the k best include passages whose score is 0."""
  passages = [Passage(str(i), "", text) for i, text in enumerate(("The cat sat", "A dog", "Of a mouse"))]
  index = load_index(build_index(passages, "bm25", tmp_path / "i", progress=False))
  assert index.search(["the", "", "?!", "zebra", "cat"], 3)[:4] == [[], [], [], []]
  assert [p.id for p in index.search(["cat"], 3)[0]] == ["0"]


@pytest.mark.parametrize(
  ("factory", "options"), [("IVF8,Flat", "nprobe=1"), ("HNSW8", ""), ("IVF4,PQ8x4", "nprobe=1"), ("SQ8", "")]
)
def test_neighbours_that_faiss_does_not_find_are_no_passages(tmp_path, factory, options):
  """UltraRAG #517, FlashRAG #247: FAISS pads with -1, which Python takes for the last document."""
  vectors = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
  faiss_index.build(vectors, tmp_path / "i", factory=factory, threads=1, train_rows=40, progress=False)
  index = faiss_index.Approximate(tmp_path / "i", vectors, options=options, oversample=1)
  for k in (39, 60):
    for scores, rows in index.search(vectors[:3], k):
      assert len(rows) == len(scores) == len({*rows.tolist()}) <= 40 and rows.min() >= 0
      np.testing.assert_allclose(scores[0], (vectors[rows[0]] ** 2).sum(), rtol=1e-5)  # each finds itself


def test_equal_ids_of_two_corpora_are_two_passages(tmp_path):
  """Devwhisper #266: fusion goes by ids that are no identity."""
  for name in ("one", "two"):
    corpus = [Passage(str(i), "", f"alpha beta {name}{i}") for i in range(6)]
    build_index(corpus, "bm25", tmp_path / name, progress=False)
  (tmp_path / "both.json").write_text(json.dumps(dict(indexes=["one", "two"])))
  (found,) = load_index(tmp_path / "both.json").search(["alpha beta"], 12)
  assert {p.text for p in found} == {f"alpha beta {name}{i}" for name in ("one", "two") for i in range(6)}
  assert len({p.id for p in found}) == 12 and max(p.score for p in found) == 1 / 61  # no strangers' ranks are added


def test_text_of_every_script_is_found_by_its_words(tmp_path):
  """haystack #12837, #12867, quant-mind #146, claude-obsidian #120: BM25 is blind to text without spaces."""
  world = {
    "日本の首都は東京です": ("首都", "東京", "日本の首都はどこですか"),
    "北京是中国的城市": ("中国", "北京"),
    "हिन्दी भाषा भारत में": ("हिन्दी", "भाषा"),
    "กรุงเทพมหานครเป็นเมืองหลวง": ("กรุงเทพ", "เมืองหลวง"),
    "İstanbul büyük bir şehir": ("istanbul", "İSTANBUL"),
  }
  index = load_index(build_index([Passage(text, "", text) for text in world], "bm25", tmp_path / "i", progress=False))
  for text, queries in world.items():
    assert [[p.id for p in found] for found in index.search(queries, 1)] == [[text]] * len(queries)


def test_odd_lines_and_ids_of_a_corpus_are_kept(tmp_path):
  """U+2028 ends no line, blank lines are none, CRLF is a line's end, and the ids 1 and "1" are one id."""
  rows = [dict(id=1, title="a\u2028b", text="x\u0085y"), dict(id="2", title="", text="z")]
  path = tmp_path / "c.jsonl"
  path.write_bytes("\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode() + b"\n")
  assert [*corpus.read_passages(path)] == [Passage("1", "a\u2028b", "x\u0085y"), Passage("2", "", "z")]
  path.write_text("".join(json.dumps(dict(id=one, text="x")) + "\n" for one in (1, "1")))
  with pytest.raises(ValueError, match="the id '1' occurs twice"):
    build_index(path, "bm25", tmp_path / "i", progress=False)


def test_quotes_that_belong_to_tab_separated_text_stay(tmp_path):
  """A CSV reader takes the quotes of "Heroes" is a song for its own."""
  (tmp_path / "c.tsv").write_bytes(b'id\ttitle\ttext\r\n1\t"Heroes"\t"Heroes" is a song\r\n')
  assert [*corpus.read_passages(tmp_path / "c.tsv")] == [Passage("1", "Heroes", '"Heroes" is a song')]


def test_a_server_that_gives_no_scores_is_read():
  """Search-R1 #176: a retriever whose answer has documents without scores."""
  (found,) = remote._read(dict(result=[[dict(id=7, contents='"T"\nx')]]), ["q"], 3)
  assert found == [Passage("7", "T", "x", None)]
