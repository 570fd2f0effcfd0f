import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ragrl_jax.retrieval import build_index, load_index, replay
from ragrl_jax.structs import Passage

PASSAGES = [Passage(f"p{i}", f'Title "{i}"', f"word{i % 4} fact\nline é山") for i in range(12)]


class Counting:
  """Passes calls on, counts them, and answers from a growing list, as a live search engine would."""

  def __init__(self, inner):
    self.inner, self.calls, self.lock = inner, 0, threading.Lock()

  def describe(self):
    return self.inner.describe()

  def search(self, queries, k):
    with self.lock:
      self.calls += 1
    return self.inner.search(queries, k)


@pytest.fixture
def index(tmp_path):
  return Counting(load_index(build_index(PASSAGES, "bm25", tmp_path / "i", progress=False)))


def test_a_recording_is_played_back(index, tmp_path):
  recorder = replay.Recorder(index, tmp_path / "r.jsonl")
  asked = recorder.search(["word1", "word2 fact", "nothing of this", ""], 5)
  assert load_index(tmp_path / "r.jsonl").search(["", "nothing of this", "word2 fact", "word1"], 5) == asked[::-1]


def test_a_recording_with_larger_k_answers_a_smaller_k(index, tmp_path):
  recorder = replay.Recorder(index, tmp_path / "r.jsonl")
  five = recorder.search(["fact"], 5)[0]
  assert load_index(tmp_path / "r.jsonl").search(["fact"], 2) == [five[:2]]


def test_a_missing_query_is_named(index, tmp_path):
  replay.Recorder(index, tmp_path / "r.jsonl").search(["word1"], 2)
  played = load_index(tmp_path / "r.jsonl")
  with pytest.raises(ValueError, match=r"r.jsonl: the query 'word3' with k=2 is not recorded .not at all, 1 others"):
    played.search(["word1", "word3"], 2)
  with pytest.raises(ValueError, match=r"'word1' with k=3 is not recorded .only with k=2"):
    played.search(["word1"], 3)
  with pytest.raises(ValueError, match="no such recording"):
    load_index(tmp_path / "no.jsonl")


def test_a_recording_is_continued_after_a_kill(index, tmp_path):
  path = tmp_path / "r.jsonl"
  recorder = replay.Recorder(index, path)
  first = recorder.search(["word1"], 3)
  whole = path.read_bytes()
  recorder.search(["word2"], 3)
  path.write_bytes(path.read_bytes()[:-7])  # the kill came while the second answer was written
  with pytest.raises(ValueError, match="'word2'"):
    load_index(path).search(["word2"], 3)
  again = replay.Recorder(index, path)
  assert path.read_bytes() == whole
  second = again.search(["word2", "word1"], 3)
  assert load_index(path).search(["word1", "word2"], 3) == first + second[:1]
  assert len(path.read_text().splitlines()) == 3  # the retriever's description and two answers, each once


def test_a_broken_line_is_refused_with_its_number(index, tmp_path):
  path = tmp_path / "r.jsonl"
  replay.Recorder(index, path).search(["word1"], 3)
  for line in ('{"query": "x"}', "{broken", '{"query": "x", "k": 1, "passages": [["a"]]}', "[3]"):
    path.write_text(path.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(ValueError, match="r.jsonl:2: no record"):
      load_index(path)


def test_threads_write_complete_lines(index, tmp_path):
  recorder = replay.Recorder(index, tmp_path / "r.jsonl")
  with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda i: recorder.search([f"word{i % 4}", f"query {i % 10}"], 3), range(80)))
  rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
  assert sorted(row["query"] for row in rows[1:]) == sorted(
    {f"word{i}" for i in range(4)} | {f"query {i}" for i in range(10)}
  )
  assert index.calls == 80
