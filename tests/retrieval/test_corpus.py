import gzip
import hashlib
import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ragrl_jax.retrieval.corpus import ROWS, Corpus, checksum, contents, from_contents, read_passages, store
from ragrl_jax.structs import Passage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def write(path, *lines):
  raw = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode() + b"\n"
  path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
  return path


def test_both_kinds_of_rows(tmp_path):
  path = write(
    tmp_path / "c.jsonl",
    dict(id="a", title="Kaltun", text="The mentor of Kaltun is Belmor."),
    dict(id=7, contents='"Evil (TV)"\nA series.\nSecond line.'),  # Search-R1: title in double quotes
    dict(id="f", contents="Kaltun\nA town."),  # FlashRAG: title without quotes
    dict(id="n", contents="no title here"),
    dict(id="t", text="only text"),
    "",
    dict(id="q", contents='"Title alone"'),
    dict(id="z", title=None, text=""),
    dict(_id="MED-10", title="Statins", text="A study.", metadata=dict(url="x")),  # BEIR
    dict(_id=7, title="", text="Another."),
  )
  assert list(read_passages(path)) == [
    Passage("a", "Kaltun", "The mentor of Kaltun is Belmor."),
    Passage("7", "Evil (TV)", "A series.\nSecond line."),
    Passage("f", "Kaltun", "A town."),
    Passage("n", "", "no title here"),
    Passage("t", "", "only text"),
    Passage("q", "Title alone", ""),
    Passage("z", "", ""),
    Passage("MED-10", "Statins", "A study."),
    Passage("7", "", "Another."),
  ]


@pytest.mark.parametrize(
  "line, says",
  [
    ("{not json", "not JSON"),
    ("[1, 2]", "must be a JSON object"),
    ('{"id": 1.5, "text": "x"}', '"id" must be'),
    ('{"id": true, "text": "x"}', '"id" must be'),
    ('{"id": "x"}', "this one has"),
    ('{"id": "x", "text": 3}', '"text" must be a string'),
    ('{"id": "x", "contents": null}', '"contents" must be a string'),
    ('{"id": "x", "title": ["a"], "text": ""}', '"title" must be a string'),
    ('{"id": "x", "text": "\\ud800"}', "surrogate"),
  ],
)
def test_a_bad_row_is_refused_with_file_and_line(tmp_path, line, says):
  path = write(tmp_path / "bad.jsonl", dict(id="a", text="fine"), "", line, dict(id="b", text="fine"))
  with pytest.raises(ValueError, match=f"bad.jsonl:3: .*{says}"):
    list(read_passages(path))


def test_invalid_utf8_is_refused_with_the_line(tmp_path):
  (tmp_path / "b.jsonl").write_bytes(b'{"id": "a", "text": "x"}\n{"id": "b", "text": "\xff"}\n')
  with pytest.raises(ValueError, match="b.jsonl:2: not UTF-8"):
    list(read_passages(tmp_path / "b.jsonl"))


def test_a_cut_gz_is_refused(tmp_path):
  rows = [dict(id=str(i), text=hashlib.sha256(str(i).encode()).hexdigest()) for i in range(2000)]
  whole = write(tmp_path / "whole.jsonl.gz", *rows).read_bytes()
  assert list(read_passages(tmp_path / "whole.jsonl.gz")) == [Passage(row["id"], "", row["text"]) for row in rows]
  (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ValueError, match=r"cut.jsonl.gz:\d+: the compressed file is broken or cut off"):
    list(read_passages(tmp_path / "cut.jsonl.gz"))
  (tmp_path / "no.jsonl.gz").write_bytes(b'{"id": "a", "text": "plain text"}\n')
  with pytest.raises(ValueError, match=r"no.jsonl.gz:1: the compressed file"):
    list(read_passages(tmp_path / "no.jsonl.gz"))


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.lists(st.builds(Passage, TEXT, TEXT, TEXT), min_size=1, max_size=6))
def test_what_is_stored_is_read_back(tmp_path_factory, passages):
  folder = tmp_path_factory.mktemp("store")
  kept = store(iter(passages), folder, progress=False)
  assert list(kept) == passages and len(kept) == len(passages)
  assert [Corpus(folder)[i] for i in reversed(range(len(passages)))] == passages[::-1]
  assert kept.checksum == checksum(passages)


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(TEXT, TEXT)
def test_contents_and_back(title, text):
  # A title is one line without surrounding white space. Nothing else is lost.
  assert from_contents(contents(Passage("i", title, text))) == (" ".join(title.split()), text) or not title.split()


def test_the_checksum_depends_on_the_order(tmp_path):
  a, b = Passage("a", "", "x"), Passage("b", "", "y")
  assert checksum([a, b]) != checksum([b, a])
  assert checksum([Passage("a", "bc", "")]) != checksum([Passage("a", "b", "c")])
  assert checksum([a]) == checksum([Passage("a", "", "x", score=1.0)])


def test_offsets_and_passages_are_memory_mapped(tmp_path):
  kept = store((Passage(str(i), "", "x" * 50) for i in range(100)), tmp_path, progress=False)
  assert isinstance(kept._offsets, np.memmap) and isinstance(kept._rows, np.memmap)
  with pytest.raises(IndexError):
    kept[100]


def test_truncated_passages_are_detected(tmp_path):
  kept = store((Passage(str(i), "", f"text {i}") for i in range(9)), tmp_path, progress=False)
  (tmp_path / ROWS).write_bytes((tmp_path / ROWS).read_bytes()[:-5])
  with pytest.raises(ValueError, match="the copy is incomplete"):
    Corpus(tmp_path)
  assert kept.checksum


def test_a_corpus_without_passages_is_refused(tmp_path):
  with pytest.raises(ValueError, match="no passages"):
    store([], tmp_path, progress=False)
  with pytest.raises(ValueError, match="no corpus is stored here"):
    Corpus(tmp_path)
