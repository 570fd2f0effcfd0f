import json
import shutil

import numpy as np
import pytest

from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.structs import Passage

PASSAGES = [Passage(f"p{i}", "", f"word{i} fact") for i in range(12)]


@pytest.fixture
def folder(tmp_path):
  return build_index(PASSAGES, "hashing", tmp_path / "i", progress=False)


def test_a_missing_index_is_refused(tmp_path):
  with pytest.raises(ValueError, match="no index here: build one with launchers/build_index.py"):
    load_index(tmp_path / "nowhere")


def test_a_folder_can_be_moved(folder, tmp_path):
  expected = load_index(folder).search(["word3"], 2)
  shutil.move(folder, tmp_path / "elsewhere")
  assert load_index(tmp_path / "elsewhere").search(["word3"], 2) == expected


def test_an_index_over_changed_passages_is_refused(folder, tmp_path):
  other = build_index(PASSAGES[::-1], "hashing", tmp_path / "other", progress=False)
  shutil.rmtree(folder / "corpus")
  shutil.copytree(other / "corpus", folder / "corpus")
  with pytest.raises(ValueError, match="the passages differ from those that were indexed"):
    load_index(folder)


def test_vectors_of_another_size_are_refused(folder):
  np.save(folder / "vectors.npy", np.zeros((11, 512), np.float32))
  with pytest.raises(ValueError, match=r"its shape is \(11, 512\), but it must be \(12, 512\)"):
    load_index(folder)


def test_vectors_are_never_unpickled(folder):
  np.save(folder / "vectors.npy", np.array([object()] * 12, dtype=object), allow_pickle=True)
  with pytest.raises(ValueError, match="Python object|allow_pickle"):
    load_index(folder)


@pytest.fixture
def lexical(tmp_path):
  return build_index(PASSAGES, "bm25", tmp_path / "bm25", progress=False)


def changed(path, old, new):
  raw = path.read_bytes()
  assert old in raw
  path.write_bytes(raw.replace(old, new, 1))


@pytest.mark.parametrize(
  "name, old, new, says",
  [
    ("corpus/passages.jsonl", b"word3", b"word4", "changed since the index was built"),
    ("corpus/corpus.json", b'"rows": 12', b'"rows": 12 ', "bytes, but"),
    ("corpus/corpus.json", b'"rows"', b'"r0ws"', "'rows' is missing"),
    ("bm25/vocab.index.json", b'"word3"', b'"word_"', "changed since the index was built"),
    ("bm25/params.index.json", b"0.9", b"0.8", "changed since the index was built"),
    ("index.json", b"{", b"[", "not valid JSON"),
  ],
)
def test_a_changed_file_is_refused_by_its_name(lexical, name, old, new, says):
  changed(lexical / name, old, new)
  with pytest.raises(ValueError, match=f"{name}: .*{says}"):
    load_index(lexical)


def test_an_empty_vocabulary_is_refused(lexical):
  (lexical / "bm25" / "vocab.index.json").write_text("{}")
  with pytest.raises(ValueError, match=r"vocab.index.json: 2 bytes, but"):
    load_index(lexical)
  without_digests(lexical)
  with pytest.raises(ValueError, match=r"vocab.index.json: 0 words, but the scores are for 13"):
    load_index(lexical)


def test_a_changed_vector_is_refused_and_a_missing_file_too(folder):
  vectors = np.load(folder / "vectors.npy")
  np.save(folder / "vectors.npy", -vectors)
  with pytest.raises(ValueError, match="vectors.npy: changed since"):
    load_index(folder)
  assert load_index(folder, verify_bytes=1000)  # only sizes, if there is too much to read
  (folder / "encoder.json").unlink()
  with pytest.raises(ValueError, match="encoder.json: this file of the index is missing"):
    load_index(folder, verify_bytes=0)


def without_digests(folder):
  card = json.loads((folder / "index.json").read_text())
  del card["files"]
  (folder / "index.json").write_text(json.dumps(card))


def test_an_index_without_digests_loads_with_a_warning(folder, caplog):
  expected = load_index(folder).search(["word3"], 2)
  assert not caplog.records
  without_digests(folder)
  assert load_index(folder).search(["word3"], 2) == expected
  assert ["without digests" in record.getMessage() for record in caplog.records] == [True]


def test_search_parameters_can_change(tmp_path):
  many = [Passage(f"p{i}", "", f"word{i} other{i % 17}") for i in range(200)]
  folder = build_index(many, "hashing", tmp_path / "ivf", factory="IVF20,Flat", options="nprobe=1", progress=False)
  queries = [f"other{i}" for i in range(17)]
  narrow, wide = load_index(folder), load_index(folder, options="nprobe=20")
  exact = load_index(build_index(many, "hashing", tmp_path / "flat", progress=False)).search(queries, 3)
  assert wide.search(queries, 3) == exact != narrow.search(queries, 3)
  assert wide.describe()["options"] == "nprobe=20" and narrow.describe()["options"] == "nprobe=1"
  with pytest.raises(ValueError, match="do not fit this index"):
    load_index(folder, options="efSearch=3")


def test_a_newer_format_and_unknown_settings_are_refused(folder):
  with pytest.raises(ValueError, match="search='gpu': it must be"):
    load_index(folder, search="gpu")
  with pytest.raises(ValueError, match="settings are for a retriever at an address"):
    load_index(folder, timeout_s=3)
  card = json.loads((folder / "index.json").read_text())
  (folder / "index.json").write_text(json.dumps(dict(card, format=2)))
  with pytest.raises(ValueError, match="index format 2, this version reads 1"):
    load_index(folder)
