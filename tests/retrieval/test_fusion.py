"""Fusion and reranking: scores by hand, files that name them, and what passes through."""

import json
import types

import numpy as np
import pytest
import scorer_folders
from refusals import refused

from ragrl_jax import config as config_lib
from ragrl_jax.models import scorers
from ragrl_jax.retrieval import build_index, fusion, load_index, remote as remote_lib
from ragrl_jax.run import environment_tools
from ragrl_jax.structs import Passage


class Scripted:
  """Gives one ranking, whatever is asked: pairs (id, score)."""

  def __init__(self, *ranking):
    self._found = [Passage(name, "", f"text of {name}", score) for name, score in ranking]

  def search(self, queries, k):
    return [self._found[:k] for _ in queries]

  def read(self, asked, k):
    return [self._found[:k] for _ in asked]

  def describe(self):
    return dict(kind="scripted")


scored = lambda fused, k: [(p.id, p.score) for p in fused.search(["q"], k)[0]]


def test_reciprocal_ranks_by_hand():
  first, second = Scripted(("a", 9.0), ("b", 8.0), ("c", 7.0)), Scripted(("c", 0.2), ("d", 0.1))
  # a: 1/61. b: 1/62. c: 1/63 + 1/61. d: 1/62, after b, which the first retriever found.
  want = dict(c=1 / 63 + 1 / 61, a=1 / 61, b=1 / 62, d=1 / 62)
  assert scored(fusion.Fused([first, second]), 10) == [(name, pytest.approx(score)) for name, score in want.items()]
  assert scored(fusion.Fused([first, second]), 1)[0][0] == "c"  # the third of the first ranking
  # Of the first two each, although depth = 1: a 3/1, b 3/2, c 1/1, d 1/2. But k = 2 keeps two.
  assert scored(fusion.Fused([first, second], weights=[3, 1], rrf_k=0, depth=1), 2) == [("a", 3.0), ("b", 1.5)]
  # What a ranking has twice counts at its first rank: b 1/2, and not 1/2 + 1/3.
  twice = Scripted(("a", 3.0), ("b", 2.0), ("b", 2.0))
  assert scored(fusion.Fused([twice, Scripted(("b", 1.0))], rrf_k=0), 9) == [("b", 1.5), ("a", 1.0)]


def test_weighted_scores_by_hand():
  first, second = Scripted(("a", 9.0), ("b", 8.0), ("c", 5.0)), Scripted(("c", 0.4), ("b", 0.3), ("d", 0.2))
  found = scored(fusion.Fused([first, second], fusion="weighted", weights=[0.6, 0.4]), 10)
  # The first scales to a 1, b 3/4, c 0; the second to c 1, b 1/2, d 0. b: .45 + .2; a: .6; c: 0 + .4; d: 0.
  want = dict(b=0.65, a=0.6, c=0.4, d=0.0)
  assert found == [(name, pytest.approx(score)) for name, score in want.items()]
  assert scored(fusion.Fused([Scripted(("a", 2.0))], fusion="weighted"), 3) == [("a", 1.0)]  # alone it is the best one


def test_a_passage_keeps_its_text_and_blank_queries_find_nothing():
  fused = fusion.Fused([Scripted(("a", 1.0)), Scripted()])
  assert fused.search(["q", " "], 3) == [[Passage("a", "", "text of a", 1 / 61)], []]
  assert fused.read([("a", "")], 1) == [[Passage("a", "", "text of a", 1.0)]]
  assert [part["kind"] for part in fused.describe()["parts"]] == ["scripted"] * 2
  closed = fusion.Fused([types.SimpleNamespace(search=None, describe=dict)])  # such as a recording
  refused("the first retriever .SimpleNamespace. opens no documents", closed.read, [("a", "")], 1)


class Length:
  """Prefers short texts, of the two queries "short" alone."""

  settings = dict(kind="length")

  def scores(self, pairs):
    return np.array([-len(p.text) if query == "short" else 0.0 for query, p in pairs], np.float32)


def test_reranking_by_hand():
  base = Scripted(*((name, 1.0) for name in ("aaaa", "b", "cc", "d")))
  ranked = fusion.Reranked(base, Length(), depth=3)
  short, other = ranked.search(["short", "other"], 2)
  assert [p.id for p in short] == ["b", "cc"] and short[0].score == -len("text of b")
  assert [p.id for p in other] == ["aaaa", "b"]  # equal scores keep their order
  assert len(ranked.search(["short"], 10)[0]) == 3
  said = ranked.describe()
  assert (said["scorer"], said["depth"], said["retriever"]) == (dict(kind="length"), 3, dict(kind="scripted"))


PASSAGES = [Passage(f"p{i}", f"title {i % 3}", f"word{i % 5} word{i % 7} the fact {i}") for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  where = tmp_path_factory.mktemp("fused")
  for encoder in ("bm25", "hashing"):
    build_index(PASSAGES, encoder, where / encoder, progress=False)
  return where


@pytest.mark.parametrize("second", ["bm25", "hashing"])
def test_equal_ids_of_two_corpora_are_two_passages(tmp_path, second):
  corpora = [[Passage(str(i), "", f"alpha beta {name}{i}") for i in range(6)] for name in ("one", "two")]
  corpora[1].append(Passage("z", "", "alpha gamma"))
  for passages, encoder in zip(corpora, ("bm25", second)):
    build_index(passages, encoder, tmp_path / passages[0].text[-4:], progress=False)
  (tmp_path / "both.json").write_text(json.dumps(dict(indexes=["one0", "two0"])))
  found = load_index(tmp_path / "both.json").search(["alpha beta"], 20)[0]
  wanted = {(f"{first}{p.id}", p.text) for first, corpus in zip(("", "1:"), corpora) for p in corpus[:6]}
  assert {(p.id, p.text) for p in found} == wanted | {("z", "alpha gamma")}
  assert all(p.score <= 1 / 61 for p in found)  # no passage has the ranks of two
  # Without a checksum the contents decide.
  by_text = [Scripted(("a", 1.0), ("b", 0.5)), Scripted(("a", 2.0), ("b", 1.0))]
  by_text[1]._found[1] = Passage("b", "", "other text", 1.0)
  assert scored(fusion.Fused(by_text), 9) == [("a", 2 / 61), ("b", 1 / 62), ("b", 1 / 62)]


def test_a_file_that_names_itself_or_nothing_is_refused(tmp_path):
  for names in (["a.json"], ["./b.json", "../" + tmp_path.name + "/a.json"]):
    for name, other in zip("ab", [*names, "a.json"]):
      (tmp_path / f"{name}.json").write_text(json.dumps(dict(indexes=[other])))
    refused("a.json: it is among its own indexes", load_index, tmp_path / "a.json")
  (tmp_path / "a.json").write_text("{}")
  refused("'indexes' is missing", load_index, tmp_path / "a.json")


def test_a_file_fuses_indexes(folder):
  card = dict(indexes=["bm25", "hashing"], depth=20, weights=[2, 1], rerank=None)
  (folder / "both.json").write_text(json.dumps(card))
  found = load_index(folder / "both.json")
  want = fusion.Fused([load_index(folder / name) for name in ("bm25", "hashing")], depth=20, weights=[2, 1])
  assert found.search(["word3 fact 17", "title 2"], 5) == want.search(["word3 fact 17", "title 2"], 5)
  assert found.describe() == want.describe() and found.describe()["parts"][1]["kind"] == "dense"
  assert [p.id for p in found.read([("p7", "")], 1)[0]] == ["p7"]
  refused("belong to one index", load_index, folder / "both.json", options="nprobe=4")


def test_servers_in_nested_files_get_the_settings_of_servers(folder, monkeypatch):
  got = []

  def connected(address, **settings):
    got.append((address, settings))
    return load_index(folder / "bm25")

  monkeypatch.setattr(remote_lib, "RemoteRetriever", connected)
  (folder / "inner.json").write_text(json.dumps(dict(indexes=["http://there:1", "bm25"])))
  (folder / "outer.json").write_text(json.dumps(dict(indexes=["inner.json", "http://here:1"])))
  config = config_lib.default_config().retrieval
  config.index, config.timeout_s = str(folder / "outer.json"), 7.0
  load_index(config.index, **environment_tools.remote(config))
  assert [address for address, _ in got] == ["http://there:1", "http://here:1"]
  assert all(settings["timeout_s"] == 7.0 for _, settings in got)


CROSS = dict(kind="cross-encoder", path=".")


@pytest.mark.parametrize("change, says", [
  (dict(indexes=[]), "at least one index"), (dict(indexes=["gone"]), "no index here: build one with `ragrl index`"),
  (dict(k=3), "fusion.k: there is no such"), (dict(depth=True), "depth=True: it must be"), (dict(depth=0), "depth=0"),
  (dict(depth="10"), "wrong.json: depth='10': it must be a whole number"),
  (dict(fusion="sum"), "fusion='sum'"), (dict(fusion=["rrf"]), "fusion=.'rrf',.: it must be 'rrf' or 'weighted'"),
  (dict(weights=[1]), "there must be 2 weights"), (dict(weights=[1, 0]), "above 0"),
  (dict(weights=2), "weights=2: it must be numbers"), (dict(rrf_k=None), "rrf_k=None: it must be a finite number"),
  (dict(weights=["2"]), "weights=.'2',.: it must be numbers"),
  (dict(rerank=["cross-encoder"]), "rerank=.'cross-encoder'.: it must be an object"),
  (dict(rerank=CROSS | dict(path=1)), "rerank.path=1: it must be a text"),
  (dict(rerank=CROSS | dict(deep=1)), "rerank.deep: there is no such setting"),
  (dict(rerank=CROSS | dict(batch="4")), "rerank.batch='4'"),
  (dict(rerank=CROSS | dict(dtype="float33")), "rerank.dtype='float33'"),
  (dict(rerank=dict(kind="cross-encoder")), "a kind and the path of a model"),
  (dict(rerank=CROSS | dict(kind="bi-encoder")), "config.json|it must be one of cross-encoder"),
])  # fmt: skip
def test_files_with_mistakes(folder, change, says):
  (folder / "wrong.json").write_text(json.dumps(dict(indexes=["bm25", "hashing"]) | change))
  refused(says, load_index, folder / "wrong.json")


@pytest.mark.slow  # compiles a small model
def test_a_file_reranks_by_a_cross_encoder(folder):
  scorer_folders.cross_encoder(folder / "cross")
  rerank = dict(kind="cross-encoder", path="cross", depth=6, batch=4)
  (folder / "again.json").write_text(json.dumps(dict(indexes=["bm25"], rerank=rerank)))
  (found,) = load_index(folder / "again.json").search(["a b word3"], 4)
  candidates = load_index(folder / "bm25").search(["a b word3"], 6)[0]
  scorer = scorers.load_scorer(folder / "cross", "cross-encoder", batch=4)
  scores = scorer.scores([("a b word3", p) for p in candidates])
  assert [p.id for p in found] == [candidates[i].id for i in np.argsort(-scores, kind="stable")[:4]]
  assert [p.score for p in found] == sorted(scores.tolist(), reverse=True)[:4]
