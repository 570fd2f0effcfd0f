import concurrent.futures
import gzip
import itertools
import json
import os
import time
import types
from unittest import mock

import numpy as np
import patience
import pytest
from forks import FORKS
from refusals import refused

from ragrl_jax.retrieval import build, build_index, dense, documents, faiss_index, load_index, vectors
from ragrl_jax.retrieval.encoders import HashingEncoder
from ragrl_jax.structs import Passage

SETTINGS = dict(factory="HNSW8", encoder_options=dict(dim=64), shard_rows=32, batch=10, threads=1, progress=False)


def some(n=200):
  return [Passage(f"p{i}", f"Title {i % 7}", f"word{i % 13} word{i % 29} the fact number {i}") for i in range(n)]


def write(path, passages):
  path.write_text("".join(json.dumps(dict(id=p.id, title=p.title, text=p.text)) + "\n" for p in passages))
  return path


def files(folder):
  return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def build_until(stage, began, corpus, out, settings):
  """Builds an index until this stage, and says so; for a process of its own."""

  def stuck():
    began.set()
    time.sleep(1000)

  calls, read, write_json = itertools.count(), build.corpus_lib.read_passages, build.write_json
  passages = HashingEncoder.passages
  if stage == "corpus":
    build.corpus_lib.read_passages = lambda *given: (stuck() if i == 150 else one for i, one in enumerate(read(*given)))
  elif stage == "encode":  # in the fifth shard of 32, after one of its batches
    HashingEncoder.passages = lambda self, rows: stuck() if next(calls) == 17 else passages(self, rows)
  elif stage == "faiss":
    faiss_index.os = types.SimpleNamespace(**vars(os) | dict(replace=lambda *given: stuck()))
  elif stage == "end":
    build.write_json = lambda path, value: stuck() if path.name == build.INDEX else write_json(path, value)
  build_index(corpus, "hashing", out, **settings)


@pytest.mark.parametrize("more", [dict(chunks=documents.Chunks(2)), dict(shard=(1, 2))])
def test_an_index_of_chunks_or_of_a_part_is_not_that_of_the_whole(tmp_path, more):
  build_index(some(20), "bm25", tmp_path, progress=False, **more)
  refused(rf"another request \(other {next(iter(more))}\)", build_index, some(20), "bm25", tmp_path, progress=False)
  build_index(some(20), "bm25", tmp_path, progress=False, overwrite=True)
  assert len(load_index(tmp_path).search(["fact"], 50)[0]) == 20


@pytest.mark.slow  # starts a process and kills it
@pytest.mark.parametrize("stage, dtype", [
  ("corpus", "float32"), ("encode", "float32"), ("encode", "bfloat16"), ("encode", "int8"), ("faiss", "float32"),
  ("end", "float32"),
])  # fmt: skip
def test_a_killed_build_is_continued_and_gives_the_same_index(tmp_path, stage, dtype, monkeypatch):
  corpus, settings = write(tmp_path / "c.jsonl", some()), dict(SETTINGS, dtype=dtype)
  build_index(corpus, "hashing", tmp_path / "whole", **settings)
  began = FORKS.Event()
  child = FORKS.Process(target=build_until, args=(stage, began, corpus, tmp_path / "out", settings))
  child.start()
  assert began.wait(patience.LIMIT_S)
  child.kill()
  child.join()
  refused("did not finish: run the same `ragrl index` command again", load_index, tmp_path / "out")
  encoded, passages = [], HashingEncoder.passages
  monkeypatch.setattr(HashingEncoder, "passages", lambda self, rows: encoded.extend(rows) or passages(self, rows))
  build_index(corpus, "hashing", tmp_path / "out", **settings)
  # Four shards of 32 were finished before the kill in the fifth, so 128 passages are not encoded again.
  assert len(encoded) == dict(corpus=200, encode=200 - 128, faiss=0, end=0)[stage]
  left = files(tmp_path / "out")
  left.pop("index.faiss.partial", None)
  assert left == files(tmp_path / "whole")
  queries = ["word3 fact", "Title 5 number 77"]
  assert load_index(tmp_path / "out").search(queries, 9) == load_index(tmp_path / "whole").search(queries, 9)


def test_of_two_builds_at_once_the_second_finds_what_the_first_has_built(tmp_path, monkeypatch):
  store = mock.Mock(side_effect=lambda *given, **how: time.sleep(0.3) or stored(*given, **how))
  stored = build.corpus_lib.store
  monkeypatch.setattr(build.corpus_lib, "store", store)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    made = [pool.submit(build_index, some(20), "bm25", tmp_path / "i", progress=False) for _ in range(2)]
    assert {one.result() for one in made} == {tmp_path / "i"} and store.call_count == 1


def test_a_finished_index_is_not_rebuilt(tmp_path, monkeypatch):
  corpus = write(tmp_path / "c.jsonl", some(20))
  for source, out in ((corpus, tmp_path / "a"), (some(20), tmp_path / "b"), (iter(some(20)), tmp_path / "c")):
    build_index(source, "hashing", out, progress=False)
  before = {name: files(tmp_path / name) for name in "abc"}
  monkeypatch.setattr(dense, "encode_corpus", lambda *a, **k: pytest.fail("encoded again"))
  for source, out in ((corpus, tmp_path / "a"), (some(20), tmp_path / "b"), (iter(some(20)), tmp_path / "c")):
    assert build_index(source, "hashing", out, progress=False) == out
  assert before == {name: files(tmp_path / name) for name in "abc"}


@pytest.mark.parametrize("change, says", [
  (dict(corpus=some(21)), "corpus"), (dict(encoder="bm25"), "encoder"), (dict(dtype="float16"), "dtype"),
  (dict(encoder_options=dict(dim=32)), "encoder"), (dict(factory="HNSW8"), "factory"),
])  # fmt: skip
def test_other_settings_need_overwrite(tmp_path, change, says):
  ask = dict(corpus=some(20), encoder="hashing", out=tmp_path / "i", encoder_options=dict(dim=64), progress=False)
  if change.get("encoder") == "bm25":
    change = dict(change, encoder_options={})
  build_index(**ask)
  before = files(tmp_path / "i")
  refused(rf"another request \(other {says}\)", build_index, **dict(ask, **change))
  assert files(tmp_path / "i") == before
  build_index(**dict(ask, **change), overwrite=True)
  build_index(**dict(ask, **change) | dict(out=tmp_path / "fresh"))
  assert files(tmp_path / "i") == files(tmp_path / "fresh")


def test_another_faiss_index_keeps_the_vectors(tmp_path, monkeypatch):
  build_index(some(50), "hashing", tmp_path / "i", progress=False)
  monkeypatch.setattr(HashingEncoder, "passages", lambda self, rows: pytest.fail("encoded again"))
  build_index(some(50), "hashing", tmp_path / "i", factory="HNSW8", overwrite=True, progress=False)
  assert load_index(tmp_path / "i").describe()["factory"] == "HNSW8"


def test_a_changed_corpus_file_is_noticed(tmp_path):
  corpus = write(tmp_path / "c.jsonl", some(20))
  build_index(corpus, "bm25", tmp_path / "i", progress=False)
  before = files(tmp_path / "i")
  write(corpus, some(20))  # written again with the same contents: nothing to do
  build_index(corpus, "bm25", tmp_path / "i", progress=False)
  assert files(tmp_path / "i") == before
  write(corpus, some(20)[::-1])  # the same passages in another order are another corpus
  refused("other corpus", build_index, corpus, "bm25", tmp_path / "i", progress=False)


def test_a_bad_row_leaves_no_files(tmp_path):
  corpus = write(tmp_path / "c.jsonl", some(5))
  corpus.write_text(corpus.read_text() + '{"id": "x"}\n')
  refused("c.jsonl:6: a row must be", build_index, corpus, "bm25", tmp_path / "i", progress=False)
  assert not (tmp_path / "i").exists()
  write(corpus, some(6))  # once the row is mended, the same command builds the index
  build_index(corpus, "bm25", tmp_path / "i", progress=False)
  assert len(load_index(tmp_path / "i").search(["fact"], 10)[0]) == 6


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_repeated_id_is_refused_with_both_lines(tmp_path, name, monkeypatch):
  rows = [json.dumps(dict(id=f"p{i}", text="fact")) for i in (0, 1, 2, 3, 1, 4)]
  text = "\n".join([rows[0], "", *rows[1:]]).encode()  # a blank line is not a passage
  (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
  with pytest.raises(ValueError, match=rf"{name}:3 and .*{name}:6: the id 'p1' occurs twice"):
    build_index(tmp_path / name, "bm25", tmp_path / "i", progress=False)
  assert not (tmp_path / "i").exists()
  again = lambda: build_index([Passage(i, "", "fact") for i in "aba"], "bm25", tmp_path / "i", progress=False)
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # killed before the ids are compared
    patch.setattr(build.corpus_lib, "_refuse_twins", mock.Mock(side_effect=KeyboardInterrupt))
    again()
  refused("passages 0 and 2: the id 'a' occurs twice", again)


def test_a_build_that_stores_by_time_is_continued_too(tmp_path, monkeypatch):
  settings = dict(encoder_options=dict(dim=64), shard_rows=100, batch=8, progress=False)
  build_index(some(), "hashing", tmp_path / "whole", **settings)
  passages, encoded = HashingEncoder.passages, []

  def killed(self, rows):
    if len(encoded) == 56:
      raise KeyboardInterrupt
    encoded.extend(p.id for p in rows)
    return passages(self, rows)

  monkeypatch.setattr(HashingEncoder, "passages", killed)
  with pytest.raises(KeyboardInterrupt):
    build_index(some(), "hashing", tmp_path / "out", note_s=0.0, **settings)
  again = []
  monkeypatch.setattr(HashingEncoder, "passages", lambda self, rows: again.append(len(rows)) or passages(self, rows))
  build_index(some(), "hashing", tmp_path / "out", note_s=0.0, **settings)
  assert again == [8] * 5 + [4] + [8] * 12 + [4]  # 56 passages of the first shard are stored
  assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_bad_requests(tmp_path):
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "thesis.tex").write_text("years of work")
  cases = [
    (dict(corpus=tmp_path / "no.jsonl"), FileNotFoundError, "no such corpus"),
    (dict(corpus=[]), ValueError, "no passages"),
    (dict(corpus=[Passage("a", "", "! of the")], encoder="bm25"), ValueError, "no passage has a word"),
    (dict(encoder="word2vec"), ValueError, "encoder='word2vec': it must be"),
    (dict(out=tmp_path / "mine", overwrite=True), ValueError, "did not write"),
    (dict(factory="HNSV"), ValueError, "not an index that FAISS can make"),
    (dict(factory="HNSW8", options="nprobe=3"), ValueError, "do not fit this index"),
    (dict(dtype="int4"), ValueError, "dtype='int4'"),
    (dict(encoder_options=dict(dim=object())), ValueError, "must be JSON"),
    (dict(encoder=HashingEncoder.fit(some(3)), encoder_options=dict(dim=64)), ValueError, "not for an encoder object"),
  ]
  for i, (change, kind, says) in enumerate(cases):
    with pytest.raises(kind, match=says):
      build_index(**{**dict(corpus=some(20), encoder="hashing", out=tmp_path / f"{i}", progress=False), **change})
    assert not (tmp_path / f"{i}" / build.INDEX).exists()
  assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
  build_index(some(20), "hashing", tmp_path / "old", progress=False)
  for change in (dict(factory="HNSV"), dict(corpus=some(9), factory="HNSV")):  # which cost no index that is to go
    wanted = dict(corpus=some(20), encoder="hashing", out=tmp_path / "old", overwrite=True, progress=False) | change
    refused("not an index that FAISS can make", build_index, **wanted)
    assert load_index(tmp_path / "old").describe()["factory"] == "Flat"


@pytest.mark.parametrize("encoder, options, says", [
  ("bm25", dict(k_1=1), "unknown k_1: for this encoder .bm25. use only k1, b, stemmer, stopwords"),
  ("bm25", dict(k1="1"), "k1='1', b=0.4: they must be numbers"), ("bm25", dict(k1=-1), "k1 must not be negative"),
  ("bm25", dict(b=2), "b must lie"), ("bm25", dict(stemmer=3), "stemmer=3"),
  ("bm25", dict(stemmer="klingon"), "stemmer='klingon'"), ("bm25", dict(stopwords="x"), "stopwords='x'"),
  ("hashing", dict(size=64), "unknown size"), ("hashing", dict(dim="64"), "dim='64'"),
  ("hashing", dict(dim=100), "dim=100: .* multiple of 16"),
  ("hashing", dict(seed=-1), "seed=-1: .* from 0 to 2.64 - 1"),
  ("hashing", dict(title_weight=None), "title_weight=None: it must be a number of at least 0"),
  ("hashing", dict(b=2), "b=2: it must be a number from 0 to 1"),
  ("intfloat/e5-base-v2", {}, "encoder='intfloat/e5-base-v2': .*HF_HUB_OFFLINE is set, and the cache"),
  ("model", dict(pooling="mean"), "unknown pooling: for this encoder .model. use only settings"),
])  # fmt: skip
def test_wrong_options_of_an_encoder_are_refused_before_anything_is_written(tmp_path, encoder, options, says):
  if encoder == "model":
    encoder = tmp_path / "model"
    encoder.mkdir()
    (encoder / "config.json").write_text("{}")
  refused(says, build_index, some(5), encoder, tmp_path / "out", encoder_options=options, progress=False)
  assert not (tmp_path / "out").exists()


class Letters:
  """Counts letters. Tests make it fail in several ways."""

  dim = 26

  def __init__(self, broken=None, name="letters", **more):
    self.broken, self.settings = broken, dict(name=name, **more)

  def queries(self, texts):
    vectors = np.array([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], np.float32)
    return vectors.reshape(len(texts), 26)

  def passages(self, passages):
    vectors = self.queries([p.text for p in passages])
    if self.broken == "nan" and any(p.id == "p13" for p in passages):
      vectors[[p.id for p in passages].index("p13"), 4] = np.nan
    return vectors[:, :20] if self.broken == "shape" else vectors * (1e6 if self.broken == "huge" else 1)


def test_an_encoder_can_be_passed_as_a_function(tmp_path):
  passages = [Passage("a", "", "aaa"), Passage("b", "", "bb"), Passage("c", "", "abc")]
  build_index(passages, Letters(), tmp_path / "i", progress=False)
  found = load_index(tmp_path / "i", encoder=Letters()).search(["b", "?"], 3)
  assert [(p.id, p.score) for p in found[0]] == [("b", 2.0), ("c", 1.0), ("a", 0.0)] and found[1] == []
  refused("pass the object", load_index, tmp_path / "i")
  refused("made with another encoder .name: 'other'", load_index, tmp_path / "i", encoder=Letters(name="other"))
  refused("another encoder .eos: True, the index None.*build", load_index, tmp_path / "i", encoder=Letters(eos=True))
  load_index(tmp_path / "i", encoder=Letters(tokens="a hash"))  # an older index has none


@pytest.mark.parametrize("broken, dtype, says", [
  ("nan", "float32", r"passage 13 \(id 'p13'\) is not finite in float32"), ("shape", "float32", r"array \(20, 20\)"),
  ("huge", "float16", r"passage 0 \(id 'p0'\) is not finite in float16"),
])  # fmt: skip
def test_an_encoder_with_invalid_output_is_stopped(tmp_path, broken, dtype, says):
  refused(says, build_index, some(20), Letters(broken), tmp_path / "i", dtype=dtype, progress=False)


def test_a_build_is_not_continued_with_another_model_in_the_same_folder(tmp_path):
  stored = build.corpus_lib.store(some(20), tmp_path / "corpus", progress=False)
  settings = dict(dtype="float32", shard_rows=8, note_s=0.0, batch=8, progress=False)
  with pytest.raises(ValueError, match="p13"):  # in the second shard
    dense.encode_corpus(stored, Letters("nan"), tmp_path, **settings)
  with pytest.raises(ValueError, match="array"):  # before its first save
    dense.encode_corpus(stored, Letters("shape", name="other"), tmp_path, **settings)
  for one in (Letters(), Letters("huge", name="other")):
    dense.encode_corpus(stored, one, tmp_path, **settings)
    np.testing.assert_array_equal(vectors.open_mapped(tmp_path), one.passages(some(20)))


def test_narrow_vectors_take_less_space_and_hold_what_was_encoded(tmp_path):
  want = dict(float32=50 * 512 * 4, float16=50 * 512 * 2, bfloat16=50 * 512 * 2, int8=50 * 512)
  made = {}
  for dtype, size in want.items():
    build_index(some(50), "hashing", tmp_path / dtype, dtype=dtype, progress=False)
    assert (tmp_path / dtype / vectors.FILE).stat().st_size - 128 == size
    made[dtype] = np.asarray(vectors.open_mapped(tmp_path / dtype)[0:50], np.float32)
  # 11 and 8 significant bits; a code is off by at most half a step of largest / 127.
  np.testing.assert_allclose(made["float16"], made["float32"], rtol=2**-11, atol=2**-25)
  np.testing.assert_allclose(made["bfloat16"], made["float32"], rtol=2**-8)
  step = np.abs(made["float32"]).max(axis=1, keepdims=True) / 127
  assert (np.abs(made["int8"] - made["float32"]) <= 0.5001 * step).all()


def test_one_checksum_tells_stores_apart(tmp_path):
  def made(name, passages, **settings):
    settings = dict(dict(encoder="hashing", encoder_options=dict(dim=64)), **settings)
    return load_index(build_index(passages, out=tmp_path / name, progress=False, **settings)).describe()["made"]

  same = made("a", some(20))
  assert made("b", some(20), factory="HNSW8") == same  # another index over the same vectors
  assert made("c", some(20)[::-1]) != same  # another order
  assert made("d", some(20), dtype="int8") != same and made("e", some(20), encoder_options=dict(dim=64, seed=1)) != same
  card = json.loads((tmp_path / "a" / build.INDEX).read_text())
  (tmp_path / "a" / build.INDEX).write_text(json.dumps(dict(card, dtype="bfloat16")))
  refused("was changed since the index was built", load_index, tmp_path / "a")


def test_searches_run_where_dispatch_says(tmp_path):
  build_index(some(20), "hashing", tmp_path / "i", progress=False)
  ran = []
  retriever = load_index(tmp_path / "i", dispatch=lambda f, *a: (ran.append(f.__name__), f(*a))[1])
  alone = load_index(tmp_path / "i").search(["fact"], 1)
  assert retriever.search(["fact"], 1) == alone and ran == []  # NumPy alone does not need another thread
  retriever.encoder.on_device = True
  assert retriever.search(["fact"], 1) == alone and ran == ["queries"]
  load_index(tmp_path / "i", search="device", dispatch=retriever.dispatch).search(["fact"], 1)
  assert ran == ["queries", "search"]
