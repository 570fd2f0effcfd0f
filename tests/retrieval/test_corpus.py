import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from refusals import refused

from ragrl_jax.retrieval.corpus import ROWS, Corpus, checksum, contents, from_contents, read_passages, store
from ragrl_jax.structs import Passage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def write(path, *lines):
  path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
  return path


ROWS_READ = [  # a row, and the title and text of its passage
  (dict(id="a", title="Kaltun", text="The mentor of Kaltun is Belmor."), "Kaltun", "The mentor of Kaltun is Belmor."),
  (dict(id=7, contents='"Evil (TV)"\nA series.\n2nd line.'), "Evil (TV)", "A series.\n2nd line."),  # Search-R1: quotes
  (dict(id="f", contents="Kaltun\nA town."), "Kaltun", "A town."),  # FlashRAG: title without quotes
  (dict(id="n", contents="no title here"), "", "no title here"), (dict(id="t", text="only text"), "", "only text"),
  (dict(id="q", contents='"Title alone"'), "Title alone", ""), (dict(id="z", title=None, text=""), "", ""),
  (dict(id="c", contents="a line", title="T"), "T", "a line"), (dict(id="d", contents="U\na", title="T"), "U", "a"),
  (dict(_id="MED-10", title="Statins", text="A study.", metadata=dict(url="x")), "Statins", "A study."),  # BEIR
  (dict(_id=7, title="", text="Another."), "", "Another."),
]  # fmt: skip


def test_both_kinds_of_rows(tmp_path):
  rows = [row for row, *_ in ROWS_READ]
  found = list(read_passages(write(tmp_path / "c.jsonl", *rows[:5], "", *rows[5:])))
  assert [(one.title, one.text) for one in found] == [(title, text) for _, title, text in ROWS_READ]
  assert [one.id for one in found] == ["a", "7", "f", "n", "t", "q", "z", "c", "d", "MED-10", "7"]


@pytest.mark.parametrize("line, says", [
  ("{not json", "not JSON"), ("[1, 2]", "must be a JSON object"), ('{"id": 1.5, "text": "x"}', '"id" must be'),
  ('{"id": true, "text": "x"}', '"id" must be'), ('{"id": "x"}', "this one has"),
  ('{"id": "x", "text": 3}', '"text" must be a string'),
  ('{"id": "x", "contents": null}', '"contents" must be a string'),
  ('{"id": "x", "title": ["a"], "text": ""}', '"title" must be a string'),
  ('{"id": "x", "text": "\\ud800"}', "surrogate"),
])  # fmt: skip
def test_a_bad_row_is_refused_with_file_and_line(tmp_path, line, says):
  path = write(tmp_path / "bad.jsonl", dict(id="a", text="fine"), "", line, dict(id="b", text="fine"))
  refused(f"bad.jsonl:3: .*{says}", list, read_passages(path))


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.lists(st.builds(Passage, TEXT, TEXT, TEXT), min_size=1, max_size=6, unique_by=lambda one: one.id))
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


def test_what_is_stored_is_memory_mapped_and_truncated_passages_are_detected(tmp_path):
  kept = store((Passage(str(i), "", "x" * 50) for i in range(100)), tmp_path, progress=False)
  assert isinstance(kept._offsets, np.memmap) and isinstance(kept._rows, np.memmap)
  with pytest.raises(IndexError):
    kept[100]
  (tmp_path / ROWS).write_bytes((tmp_path / ROWS).read_bytes()[:-5])
  refused("the copy is incomplete", Corpus, tmp_path)
  assert kept.checksum
  refused("no corpus is stored here", Corpus, tmp_path / "none")
