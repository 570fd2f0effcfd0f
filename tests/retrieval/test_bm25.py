import collections
import json
import math
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from refusals import refused

from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.retrieval.bm25 import Words
from ragrl_jax.structs import Passage


def tokens(text):
  """As bm25s cuts it."""
  return [w for w in re.findall(r"(?u)\b\w\w+\b", text.lower()) if w not in STOPWORDS_EN]


def bm25(passages, query, *, k1, b):
  """BM25 with Lucene's idf, directly from its definition, in Python floats: one score per passage."""
  documents = [tokens(f"{p.title}\n{p.text}") for p in passages]
  mean = sum(map(len, documents)) / len(documents)
  frequency = collections.Counter(word for document in documents for word in set(document))
  scores = []
  for document in documents:
    counts, score = collections.Counter(document), 0.0
    for word in tokens(query):
      if counts[word]:
        idf = math.log(1 + (len(documents) - frequency[word] + 0.5) / (frequency[word] + 0.5))
        score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(document) / mean))
    scores.append(score)
  return scores


def world(n, seed):
  draw = random.Random(seed)
  words = [f"w{int(draw.paretovariate(0.6)) % 300}" for _ in range(3000)] + ["the", "of", "a"] * 200
  return [Passage(f"p{i}", draw.choice(words), " ".join(draw.choices(words, k=draw.randint(1, 40)))) for i in range(n)]


def test_by_hand(tmp_path):
  # Three passages of one, one and two words; N = 3, mean length 4/3. "cat": df 2, idf = ln(1 + 1.5/2.5) = 0.470004.
  # Length 1: norm = 0.9 * (0.6 + 0.4 * 0.75) = 0.81, score 0.470004/1.81 = 0.259671.
  # Length 2: norm = 0.9 * (0.6 + 0.4 * 1.5) = 1.08, score 0.470004/2.08 = 0.225963.
  passages = [Passage("0", "", "dog"), Passage("1", "cat", "dog"), Passage("2", "", "Cat!")]
  build_index(passages, "bm25", tmp_path / "i", progress=False)
  found = load_index(tmp_path / "i").search(["cat"], 3)[0]
  assert [p.id for p in found] == ["2", "1"]
  assert [p.score for p in found] == pytest.approx([0.259671, 0.225963], abs=1e-6)


@pytest.mark.parametrize("k1, b", [(0.9, 0.4), (1.5, 0.75), (0.0, 1.0)])
def test_against_the_definition(tmp_path, k1, b):
  passages = world(200, seed=int(k1 * 10))
  build_index(passages, "bm25", tmp_path / "i", encoder_options=dict(k1=k1, b=b), progress=False)
  retriever, draw = load_index(tmp_path / "i"), random.Random(1)
  for _ in range(30):
    query = " ".join(draw.choices(draw.choice(passages).text.split(), k=draw.randint(1, 6)))
    scores = bm25(passages, query, k1=k1, b=b)
    found = retriever.search([query], 10)[0]
    positive = sorted((s for s in scores if s > 0), reverse=True)
    assert len(found) == min(10, len(positive))
    np.testing.assert_allclose([p.score for p in found], positive[:10], rtol=1e-5)
    np.testing.assert_allclose([scores[int(p.id[1:])] for p in found], [p.score for p in found], rtol=1e-5)


def test_stemming_finds_other_forms(tmp_path):
  passages = [Passage("a", "", "He was running"), Passage("b", "", "A walk")]
  build_index(passages, "bm25", tmp_path / "plain", progress=False)
  build_index(passages, "bm25", tmp_path / "stem", encoder_options=dict(stemmer="english"), progress=False)
  assert load_index(tmp_path / "plain").search(["runs"], 1) == [[]]
  assert load_index(tmp_path / "stem").search(["runs"], 1)[0][0].id == "a"
  assert load_index(tmp_path / "stem").describe()["words"]["stemmer"] == "english"


WORLD = [  # text, then queries that find it
  ("日本の首都は東京です", "首都", "日本の首都はどこですか", "東京"), ("北京是中国的城市。雨", "中国", "北京", "雨"),
  ("서울은 대한민국의 수도이다", "서울", "대한민국", "\u1109\u1165\u110b\u116e\u11af"),  # the last one decomposed
  ("हिन्दी भाषा भारत में", "हिन्दी भाषा", "भाषा"), ("กรุงเทพมหานครเป็นเมืองหลวง", "กรุงเทพ", "เมืองหลวง"),
  ("İstanbul büyük bir şehir, IŞIK", "istanbul", "İSTANBUL", "i\u0307stanbul", "ışık", "s\u0327ehir"),
  ("القاهرة عاصمة مصر", "القَاهِرَة", "مِصْر", "مـصر", "\ufee3\ufebc\ufeae"),  # marks, tatweel, glyphs
  ("أحمد شوقي", "احمد", "\u0627\u0654حمد"), ("ירושלים בירה", "יְרוּשָׁלַיִם"),
  ("Москва́ столица России", "москва", "МОСКВА", "Росси́и"), ("ﬁne ＮＨＫ co\u00adoperate", "fine", "nhk", "cooperate"),
  ("ខ្មែរ ភាសា", "ខ្មែរ"),
]  # fmt: skip


def test_text_of_the_world_is_found(tmp_path, caplog):
  passages = [Passage(str(i), "", row[0]) for i, row in enumerate(WORLD)]
  passages += [Passage("x", "", "?! 😀"), Passage("y", "", "the")]
  build_index(passages, "bm25", tmp_path / "i", progress=False)
  assert "2 of 14 passages have no words to search by, such as '?! 😀'" in caplog.text
  index = load_index(tmp_path / "i")
  assert index.describe()["wordless"] == 2
  for i, (_, *queries) in enumerate(WORLD):
    for found in index.search(queries, np.int64(1)):
      assert found and found[0].id == str(i), queries
  assert index.search(["the", "?!", "首都"], 1)[:2] == index.search(["the", "?!", "首都"], 1)[:2] == [[], []]
  assert caplog.text.count("2 of 3 queries have no words to search by, such as 'the'") == 1
  assert Words()("NHK東京 x 雨") == ["nhk", "東京", "東", "京", "雨"]
  assert Words(pattern="all")("vitamin C, é") == ["vitamin", "c", "é"] and Words()("vitamin C, é") == ["vitamin"]


def test_words_of_another_rule_are_refused(tmp_path):
  for kind, file in (("bm25", "index.json"), ("hashing", "encoder.json")):
    build_index(world(5, seed=0), kind, tmp_path / kind, progress=False)
    assert json.loads((tmp_path / kind / "build.json").read_text())["encoder"]["words"] == 2
    for one in {file, "build.json"}:  # as an earlier version wrote them
      text = (tmp_path / kind / one).read_text()
      (tmp_path / kind / one).write_text(re.sub('"(rule|words)": 2', r'"\1": 1', text))
    refused("rule 1, this version has rule 2: build it again", load_index, tmp_path / kind, verify_bytes=0)
    refused("another request .other encoder.", build_index, world(5, seed=0), kind, tmp_path / kind, progress=False)


def test_neither_bm25_nor_judges_of_words_start_jax(tmp_path):
  asks = """import sys, jax.lax
from jax._src import xla_bridge
from ragrl_jax.judging import lexical
from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.structs import Passage
lexical._stop_words()
build_index([Passage("1", "", "an apple")], "bm25", sys.argv[1], progress=False)
assert load_index(sys.argv[1]).search(["apple"], k=1)[0]
sys.exit(xla_bridge.backends_are_initialized())"""
  subprocess.run([sys.executable, "-c", asks, tmp_path / "index"], check=True)


def test_english_words_are_those_of_bm25s():
  texts = "Don't stop_it, 3.5% of A's!", "naïve Curaçao—based “quotes” é, O’Neil’s €5 x² 50½", "The U.S.A. 1558–1603"
  assert [Words()(text) for text in texts] == [tokens(text) for text in texts]


def test_files_are_reproducible_memory_mapped_and_never_unpickled(tmp_path, monkeypatch):
  monkeypatch.setattr("bm25s.BM25._np_csc", None)  # at 21 million passages its sort would take 19 GB more
  for name in ("a", "b"):
    build_index(world(50, seed=0), "bm25", tmp_path / name, progress=False)
  files = sorted((tmp_path / "a" / "bm25").iterdir())
  for file in files:
    raw = file.read_bytes()
    assert len(files) == 5 and raw == (tmp_path / "b" / "bm25" / file.name).read_bytes()
    if file.suffix == ".npy":
      assert b"|O" not in raw[:128]  # no object arrays, so nothing to unpickle
    else:
      json.loads(raw)
  assert isinstance(load_index(tmp_path / "a")._index.scores["data"], np.memmap)
