"""Verdicts on disk: each is asked for once, and a kill of the writer leaves no broken verdict."""

import concurrent.futures
import contextlib
import itertools
import random
import sqlite3
import threading

import pytest
from forks import FORKS

from ragrl_jax.judging import judge_api
from ragrl_jax.judging.judge_api import Cached
from ragrl_jax.store import disk_cache


class Judge:
  """Gives a number that grows with every pair, and None for "?"."""

  pace = judge_api.Pace(batch=7)

  def __init__(self, start=0.0, **identity):
    self.said, self.identity, self.asked = start, identity, []

  def describe(self):
    return dict(kind="counter", **self.identity)

  def judge(self, pairs):
    self.asked += pairs
    found = []
    for _, claim in pairs:
      self.said += 0.001
      found.append(None if claim == "?" else self.said)
    return found


def test_verdicts_are_stored_by_judge_and_text(tmp_path):
  first = Judge()
  assert Cached(first, tmp_path / "v").judge([("p", "a"), ("p", "b"), ("p", "a")]) == [0.001, 0.002, 0.001]
  assert Cached(Judge(0.5), tmp_path / "v").judge([("p", "b"), ("p", "a")]) == [0.002, 0.001]
  assert Cached(Judge(0.5, model="x"), tmp_path / "v").judge([("p", "b")]) == [0.501]
  # Moving a space from one text to the other gives another pair.
  assert Cached(Judge(0.5), tmp_path / "v").judge([("p ", "b"), ("p", " b")]) == [0.501, 0.502]
  made = Cached(first, tmp_path / "v")
  assert made.pace.batch == 7 and len(first.asked) == 2
  assert made.judge([("p", "?")]) == made.judge([("p", "?")]) == [None] and len(first.asked) == 4  # None is not stored
  pairs = [(f"p\x00\ud800 {i}", "c\n'; DROP TABLE entries; --") for i in range(1200)]  # many, of any text
  assert made.judge(pairs) == made.judge(pairs)


def test_a_failure_stores_the_verdicts_that_were_given(tmp_path):
  class Failing(Judge):
    def judge(self, pairs):
      raise judge_api.JudgeFailed("refused", [("p", "bad")], {pair: 0.7 for pair in pairs if pair[1] != "bad"})

  Cached(Judge(), tmp_path / "v").judge([("p", "old")])
  for new in (("p", "new"), ("p", "old")):
    with pytest.raises(judge_api.JudgeFailed) as failure:
      Cached(Failing(), tmp_path / "v").judge([("p", "old"), ("p", "bad"), new])
    assert failure.value.answered == {new: 0.7, ("p", "old"): 0.001} and failure.value.queries == (("p", "bad"),)


def test_the_first_verdict_is_kept(tmp_path):
  asked, gate, first, second = threading.Event(), threading.Event(), Judge(0.1), Judge(0.7)
  answer = second.judge
  second.judge = lambda pairs: asked.set() or gate.wait(60) and answer(pairs)
  late = Cached(second, tmp_path / "v")
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    got = pool.submit(late.judge, [("p", "a")])
    assert asked.wait(60)
    assert Cached(first, tmp_path / "v").judge([("p", "a")]) == [0.101]
    gate.set()
  assert got.result() == [0.101] and second.asked  # it asked the judge, and then used the stored verdict


def test_many_threads_and_two_runs_share_a_file(tmp_path):
  runs = [Cached(Judge(), tmp_path / "v") for _ in range(2)]
  work = lambda i: runs[i % 2].judge([("p", str(n)) for n in range(30)])
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    said = [*pool.map(work, range(8))]
  assert all(verdicts == said[0] for verdicts in said)
  cache = runs[0]._cache
  written = lambda self, key: setattr(cache, "_unsaved", {}) or key in self.keys()  # by another thread, at a first look
  cache._unsaved = type("Unsaved", (dict,), dict(__contains__=written))(key=1)
  assert cache.get(["key"]) == dict(key=1)


def judge_for_ever(file, start, said):
  """Judges numbered claims, ten at a time, and says up to which number all are stored."""
  disk_cache._BUSY_S = 60.0  # what is said must already be stored
  judge = Judge()
  judge.judge = lambda pairs: [float(int(claim) % 2) for _, claim in pairs]
  made = Cached(judge, file)
  for number in itertools.count(start, 10):
    made.judge([("p", str(number + i)) for i in range(10)])
    said.send(number + 10)


@pytest.mark.slow  # the first fork waits for a server that imports JAX
def test_two_killed_writers_leave_complete_verdicts(tmp_path):
  file, writers = tmp_path / "v", {}
  for start in (0, 100_000):
    pipe, said = FORKS.Pipe(duplex=False)
    writers[start] = pipe, FORKS.Process(target=judge_for_ever, args=(file, start, said), daemon=True)
    writers[start][1].start()
    said.close()
  told = {start: next(n for n in iter(pipe.recv, None) if n - start >= 50) for start, (pipe, _) in writers.items()}
  for _, writer in writers.values():
    writer.kill()
  for start, (pipe, writer) in writers.items():
    writer.join()
    with contextlib.suppress(EOFError):
      while True:  # what was said just before the kill is stored, too
        told[start] = pipe.recv()
  connection = sqlite3.connect(file)
  assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
  rows = connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0]
  connection.close()
  assert rows >= sum(number - start for start, number in told.items()) and rows % 10 == 0
  pairs, never = [("p", str(n)) for start, end in told.items() for n in range(start, end)], Judge()
  assert Cached(never, file).judge(pairs) == [float(int(claim) % 2) for _, claim in pairs] and never.asked == []


# ---- damage to the file ----------------------------------------------------------------------------------------------

PAIRS = [("p", str(i)) for i in range(100)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
  """The bytes of a file with a verdict on each of PAIRS."""
  file = tmp_path_factory.mktemp("sound") / "v"
  truthful(file)
  return file.read_bytes()


def truthful(file):
  """What a judge says of PAIRS beside this file: 0.05 belongs to PAIRS[5]."""
  judge = Judge()
  judge.judge = lambda pairs: [int(claim) / 100 for _, claim in pairs]
  return Cached(judge, file).judge(PAIRS)


flipped = lambda raw, place: raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


def asked_for_all(file):
  """Whether the judge is asked about every pair, so that the file is not used. The verdicts must equal the judge's."""
  judge = Judge(0.5)
  assert len(Cached(judge, file).judge(PAIRS)) == len(PAIRS)
  return judge.asked == PAIRS


DAMAGES = {
  "text": lambda raw: b"my notes\n" * 200,
  "truncated": lambda raw: raw[:-4096],  # a page
  "cut short": lambda raw: raw[:50],
  "header": lambda raw: flipped(raw, 3),  # with which every database begins
  "one bit of one verdict": lambda raw: flipped(raw, raw.index(b"0.05")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path, caplog, sound, damage):
  raw = damage(sound)
  (tmp_path / "v").write_bytes(raw)
  (tmp_path / "v-journal").write_bytes(b"")
  assert asked_for_all(tmp_path / "v")
  assert [record.levelname for record in caplog.records] == ["WARNING"] and "v.damaged1" in caplog.text
  assert (tmp_path / "v.damaged1").read_bytes() == raw and not (tmp_path / "v-journal").exists()
  assert not asked_for_all(tmp_path / "v") and len(caplog.records) == 1  # the new file is in use


def test_random_bytes_give_no_wrong_verdict_and_no_low_level_error(tmp_path, sound):
  rng, truth = random.Random(0), [int(claim) / 100 for _, claim in PAIRS]
  for case in range(8):
    file, raw = (tmp_path / str(case), bytearray(sound if case % 4 else sound[:-1000]))
    for _ in range(1 + case % 3):
      raw[rng.randrange(200 if case % 2 else len(raw))] = rng.randrange(256)
    file.write_bytes(raw)
    assert truthful(file) == truth, case


def test_a_file_damaged_under_a_run_is_set_aside_once(tmp_path, caplog, sound):
  (tmp_path / "v").write_bytes(sound)
  runs = [Cached(Judge(0.5), tmp_path / "v") for _ in range(2)]
  assert runs[0].judge(PAIRS[:1]) == runs[1].judge(PAIRS[:1]) == [0.0]
  (tmp_path / "v").write_bytes(b"\0" * len(sound))
  assert runs[0].judge(PAIRS[:1]) == [0.501] == runs[1].judge(PAIRS[:1])  # the second one finds the new file
  assert [path.name for path in tmp_path.glob("v.*")] == ["v.damaged1"] and len(caplog.records) == 1


def test_a_locked_file_is_skipped_with_a_warning(tmp_path, monkeypatch, caplog, sound):
  monkeypatch.setattr(disk_cache, "_BUSY_S", 0.02)
  (tmp_path / "v").write_bytes(sound)
  judge = Judge(0.5)
  made, other = Cached(judge, tmp_path / "v"), sqlite3.connect(tmp_path / "v", isolation_level=None)
  other.execute("BEGIN EXCLUSIVE")
  assert made.judge(PAIRS[:2]) == made.judge(PAIRS[:2]) == [0.501, 0.502]  # the second time from memory
  assert [record.levelname for record in caplog.records] == ["WARNING"] and "locked" in caplog.text
  assert asked_for_all(tmp_path / "v")  # a run may also start
  other.close()
  assert made.judge([("p", "new")]) == [0.503]  # the file is not tried again for a while
  made._cache._rest_until = 0.0
  assert made.judge([*PAIRS[:2], ("p", "newer")]) == [0.0, 0.01, 0.504]  # the stored verdicts are still there
  assert Cached(Judge(), tmp_path / "v").judge([("p", "new")]) == [0.503] and not list(tmp_path.glob("v.*"))


@pytest.mark.parametrize("mark", [0, 0x72616772])  # the second: verdicts of version 0.2
def test_files_of_another_kind_are_refused(tmp_path, mark):
  with sqlite3.connect(tmp_path / "other") as connection:
    connection.execute("CREATE TABLE verdicts (key BLOB, verdict REAL)")
    connection.execute(f"PRAGMA application_id={mark}")
  connection.close()
  before = (tmp_path / "other").read_bytes()
  for place, why in (("other", "another kind"), (".", "directory"), ("other/v", "irectory|exists")):
    with pytest.raises(ValueError, match=f"{why}.*config.judge.cache"):
      Cached(Judge(), tmp_path / place)
  assert (tmp_path / "other").read_bytes() == before
