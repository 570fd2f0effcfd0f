import json
import random
import shutil

import numpy as np
import pytest
from refusals import refused

from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.structs import Passage

PASSAGES = [Passage(f"p{i}", "", f"word{i} fact") for i in range(12)]


@pytest.fixture
def folder(tmp_path):
  return build_index(PASSAGES, "hashing", tmp_path / "i", progress=False)


def test_a_folder_can_be_moved(folder, tmp_path):
  expected = load_index(folder).search(["word3"], 2)
  shutil.move(folder, tmp_path / "elsewhere")
  assert load_index(tmp_path / "elsewhere").search(["word3"], 2) == expected


def test_an_index_over_changed_passages_is_refused(folder, tmp_path):
  other = build_index(PASSAGES[::-1], "hashing", tmp_path / "other", progress=False)
  shutil.rmtree(folder / "corpus")
  shutil.copytree(other / "corpus", folder / "corpus")
  refused("the passages differ from those that were indexed", load_index, folder)


@pytest.mark.parametrize("vectors, says", [
  (np.zeros((11, 512), np.float32), r"its shape is \(11, 512\), but it must be \(12, 512\)"),
  (np.array([object()] * 12, dtype=object), "Python object|allow_pickle"),  # never unpickled
  (np.ones((12, 512), np.float32), "vectors.npy: changed since"),
])  # fmt: skip
def test_other_vectors_are_refused(folder, vectors, says):
  np.save(folder / "vectors.npy", vectors, allow_pickle=True)
  refused(says, load_index, folder)
  build_index(PASSAGES, "hashing", folder, overwrite=True, progress=False)
  assert load_index(folder).search(["word3"], 1)


@pytest.fixture
def lexical(tmp_path):
  return build_index(PASSAGES, "bm25", tmp_path / "bm25", progress=False)


def changed(path, old, new):
  raw = path.read_bytes()
  assert old in raw
  path.write_bytes(raw.replace(old, new, 1))


@pytest.mark.parametrize("name, old, new, says", [
  ("corpus/passages.jsonl", b"word3", b"word4", "changed since the index was built"),
  ("corpus/corpus.json", b'"rows": 12', b'"rows": 12 ', "bytes, but"),
  ("corpus/corpus.json", b'"rows"', b'"r0ws"', "'rows' is missing"),
  ("bm25/vocab.index.json", b'"word3"', b'"word_"', "changed since the index was built"),
  ("bm25/params.index.json", b"0.9", b"0.8", "changed since the index was built"),
  ("index.json", b"{", b"[", "not valid JSON"),
])  # fmt: skip
def test_a_changed_file_is_refused_by_its_name(lexical, name, old, new, says):
  changed(lexical / name, old, new)
  refused(f"{name}: .*{says}", load_index, lexical)
  build_index(PASSAGES, "bm25", lexical, overwrite=True, progress=False)
  assert load_index(lexical).search(["word3"], 1)


def test_an_empty_vocabulary_is_refused(lexical):
  (lexical / "bm25" / "vocab.index.json").write_text("{}")
  refused(r"vocab.index.json: 2 bytes, but", load_index, lexical)
  entered(lexical, files={})
  refused(r"vocab.index.json: 0 words, but the scores are for 13", load_index, lexical)


def test_of_a_large_index_only_the_sizes_are_compared(folder):
  np.save(folder / "vectors.npy", -np.load(folder / "vectors.npy"))
  assert load_index(folder, verify_bytes=1000)
  (folder / "encoder.json").unlink()
  refused("encoder.json: this file of the index is missing", load_index, folder, verify_bytes=0)


def entered(folder, **entries):
  """Changes entries of index.json."""
  card = json.loads((folder / "index.json").read_text())
  (folder / "index.json").write_text(json.dumps(card | entries))


MANY = [Passage(f"p{i}", "", f"word{i} other{i % 17}") for i in range(200)]


def test_search_parameters_can_change(tmp_path):
  folder = build_index(MANY, "hashing", tmp_path / "ivf", factory="IVF20,Flat", options="nprobe=1", progress=False)
  queries = [f"other{i}" for i in range(17)]
  narrow, wide = load_index(folder), load_index(folder, options="nprobe=20")
  exact = load_index(build_index(MANY, "hashing", tmp_path / "flat", progress=False)).search(queries, 3)
  assert wide.search(queries, 3) == exact != narrow.search(queries, 3)
  assert wide.describe()["options"] == "nprobe=20" and narrow.describe()["options"] == "nprobe=1"
  refused("do not fit this index", load_index, folder, options="efSearch=3")
  refused("do not fit this index", load_index, tmp_path / "flat", options="nprobe=3")
  refused("no effect with search='device'", load_index, folder, options="nprobe=3", search="device")
  refused("BM25 has neither", load_index, build_index(MANY, "bm25", tmp_path / "bm25", progress=False), options="a=1")
  refused("at an address has encoder and options of its own", load_index, "http://a:1", options="nprobe=3")


def test_a_newer_format_and_unknown_settings_are_refused(folder):
  refused("search='gpu': it must be", load_index, folder, search="gpu")
  refused("settings are for a retriever at an address", load_index, folder, timeout_s=3)
  entered(folder, format=2)
  refused("index format 2, this version reads 1", load_index, folder)


@pytest.mark.parametrize("name, value, says", [
  ("dim", "512", "'dim' is '512', which is of another type"), ("factory", None, "'factory' is None"),
  ("corpus", [], "'corpus.checksum' is missing"), ("encoder", dict(kind="hashing"), "'encoder.settings' is missing"),
  ("max_norm", True, "'max_norm' is True"), ("files", dict(vectors=3), "it cannot be read"),
  ("files", None, "'files' is None"),
])  # fmt: skip
def test_an_entry_of_another_type_is_named(folder, name, value, says):
  entered(folder, **{name: value})
  refused(f"index.json: {says}", load_index, folder)


def test_damaged_arrays_are_named_without_digests(folder, lexical, tmp_path):
  entered(folder, files={})
  entered(lexical, files={})
  search = lambda index: load_index(index).search(["word3"], 2)
  for index, name, array in [
    (lexical, "corpus/offsets.npy", np.zeros((2, 2))), (lexical, "bm25/indptr.csc.index.npy", np.array([0, 3, 1])),
    (lexical, "bm25/indices.csc.index.npy", np.zeros(2, np.int32)), (folder, "vectors.npy", np.zeros((12, 512))),
  ]:  # fmt: skip
    kept = (index / name).read_bytes()
    np.save(index / name, array)
    refused(name.rpartition("/")[2] + ".*" + "copy the index again", search, index)
    (index / name).write_bytes(kept)
  changed(folder / "corpus" / "passages.jsonl", b'["p3"', b'{"p3"')
  refused("passages.jsonl: it cannot be read", search, folder)


def test_a_faiss_file_cut_short_is_named(tmp_path):
  folder = build_index(MANY, "hashing", tmp_path / "ivf", factory="IVF20,Flat", progress=False)
  entered(folder, files={})
  raw = (folder / "index.faiss").read_bytes()
  for kept in (b"", raw[:3], raw[:100], raw[: len(raw) // 2], b"XXXX" + raw[4:]):
    (folder / "index.faiss").write_bytes(kept)
    refused("index.faiss: it cannot be read .*copy the index again", load_index, folder)


@pytest.mark.parametrize("kind", ["bm25", "hashing"])
def test_no_damage_ends_in_a_raw_error(kind, tmp_path):
  """Bytes of every file are lost or changed, with and without digests: one line names the folder, or it still works."""
  draw = random.Random(0)
  whole = build_index(PASSAGES, kind, tmp_path / "whole", progress=False)
  names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
  for number in range(120):
    folder = tmp_path / str(number)
    shutil.copytree(whole, folder)
    if number % 2:
      entered(folder, files={})
    path = folder / draw.choice(names)
    raw = bytearray(path.read_bytes())
    at = draw.randrange(len(raw))
    if draw.random() < 0.5:
      raw = raw[:at]
    else:
      raw[at : at + draw.randrange(1, 9)] = draw.randbytes(draw.randrange(0, 9))
    path.write_bytes(raw)
    try:
      load_index(folder).search(["word3 fact", "word5"], 3)
    except ValueError as error:
      assert str(folder) in str(error), (path, error)
