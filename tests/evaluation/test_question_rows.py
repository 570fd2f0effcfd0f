import pytest
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.report import kept_traces, page as page_lib, question_rows
from ragrl_jax.store import episodes, jsonl, metrics


def row(name, em, source="nq", **more):
  fields = dict(id=name, question=f"{name}?", golds=["x", "y"], prediction="x" if em else "no", em=em, f1=em)
  fields |= dict(cover_em=em, outcome=em, num_searches=2, response_tokens=9, ended="answer", source=source, hops=1)
  return fields | more


def folder(path, rows):
  jsonl.write(path / "predictions.jsonl", rows)
  return path


@pytest.fixture
def two(tmp_path):
  first = [row("a", 1.0), row("b", 0.0), row("c", 0.0, "pop", hops=2), row("d", 1.0, "pop")]
  second = [row("d", 0.0, "pop"), *(row(name, 1.0) for name in "abe"), row("c", 1.0, "pop", hops=2), row("new", 1.0)]
  first.append(row("e", None, ended="failed"))
  return [folder(tmp_path / "first", first), folder(tmp_path / "second", second)]


def joined(folders):
  return question_rows.joined([path / "predictions.jsonl" for path in folders])


def test_questions_are_joined_by_set_and_id(two):
  questions, alone = joined(two)
  assert [[one["id"] for one in rows] for rows in questions] == [[name] * 2 for name in "abcde"] and alone == 1
  assert [[one["line"] for one in rows] for rows in questions] == [[0, 1], [1, 2], [2, 4], [3, 0], [4, 3]]
  refused("no question in common", joined, [two[0], folder(two[0].parent / "other", [row("a", 1.0, "triviaqa")])])


def test_parts_of_two_by_hand(two):
  parts = question_rows.measured(joined(two)[0])
  found = [(part["group"], part["name"], part["n"]) for part in parts]
  assert found == [("", "all questions", 4), ("Set", "nq", 2), ("Set", "pop", 2), ("Hops", "1", 3), ("Hops", "2", 1)]
  whole = parts[0]  # e has failed on one side; a right both times, b and c won, d lost
  assert (whole["won"], whole["lost"], whole["right"], whole["wrong"], whole["difference"]) == (2, 1, 1, 0, 0.25)
  # Three questions differ: of 8 sign patterns, 3 : 0 twice is more extreme, 2 : 1 six times is as extreme: p = 1.
  assert whole["p"] == 1.0 and whole["sides"][0]["em"] == 0.5 and whole["sides"][1]["em"] == 0.75
  assert whole["interval"][0] < 0.25 < whole["interval"][1] and parts[4]["interval"] == (1.0, 1.0)
  # Nine won, none lost: both sign patterns without an exception, of 2^9.
  pairs = [(row(str(i), 0.0), row(str(i), 1.0)) for i in range(9)]
  assert question_rows.measured(pairs)[0]["p"] == pytest.approx(2 / 2**9)
  assert question_rows.measured([(row("a", 1.0), row("a", 1.0))])[0]["p"] == 1.0


def test_columns(two):
  questions, _ = joined(two)
  long = question_rows.columns(questions, [0, -1, 1, -1, -1])
  assert long["source"] == [0, 0, 1, 1, 0] and long["sources"] == ["nq", "pop"] and long["trace"] == [0, -1, 1, -1, -1]
  assert long["ends"] == ["answer", "failed"] and long["sides"][0]["ended"] == [0, 0, 0, 0, 1]
  assert long["sides"][0]["em"] == [1, 0, 0, 1, None] and long["sides"][1]["line"] == [1, 2, 4, 0, 3]
  (cut,) = question_rows.columns([(row("a", 0.12345, question="w" * 900, line=0),)], [-1])["question"]
  assert len(cut) == question_rows.MAX_SIGNS + 2


def test_changed_questions_are_kept_first_and_the_rest_evenly(two, tmp_path):
  segments = [dict(owner="environment", text="Q?"), dict(owner="model", text="x", stop="eos")]
  for path in two:
    facts = {structs.NO_VERDICT: "the judge said maybe"}
    about = dict(segments=segments, facts=facts, ended="answer", failure="", gold_ids=None)
    jsonl.write(path / episodes.PLAYED, (about | dict(id=one["id"]) for one in jsonl.read(path / "predictions.jsonl")))
  questions, _ = joined(two)
  places = kept_traces.chosen(questions, two, 10**6)
  assert places == [0, 1, 2, 3, 4]
  ((first, *others),) = kept_traces.blocks(questions, two, places)
  assert len(others) == 4 and first[0]["segments"][1]["runs"] == [["x"]] and first[1]["ended"] == "answer"
  assert first[0]["failure"] == "the judge said maybe" and first[0]["facts"] == ""
  size = [n for n in range(10, 2000, 10) if len(kept_traces.chosen(questions, two, n)) == 4][0]
  assert set(kept_traces.chosen(questions, two, size)) >= {1, 2, 3, 4}  # b, c won, d lost, e is right on one side only
  (two[1] / episodes.PLAYED).unlink()
  assert kept_traces.blocks(questions, two, [0])[0][0][1] is None
  (two[0] / episodes.PLAYED).unlink()
  assert kept_traces.chosen(questions, two, 10**6) == []


def write(workdir, step, *rows):
  jsonl.write_step(workdir / jsonl.EVALUATIONS, step, rows)


def test_questions_are_joined_and_changed_answers_come_first(tmp_path):
  write(tmp_path, 0, row("a", 1.0), row("b", 0.0), row("c", 1.0), row("d", 0.0, prediction=None), row("e", 0.0))
  assert question_rows.gather_changes(tmp_path) is None  # one evaluation has nothing to compare with
  write(tmp_path, 5, row("a", 0.0))  # an evaluation between the first and the last is not read
  failed = row("e", None, ended="failed"), row("new", 1.0)
  write(tmp_path, 12, row("a", 1.0), row("b", 1.0), row("c", 0.0), row("d", 0.0, prediction="Tosk"), *failed)
  found = question_rows.gather_changes(tmp_path)
  assert found["steps"] == (0, 12) and found["left_out"] == 0
  kinds = [(one["id"], one["kind"]) for one in found["rows"]]
  assert kinds == [("b", "gained"), ("c", "lost"), ("d", "wrong"), ("a", "right")]
  assert found["rows"][2]["before"]["said"] is None and found["rows"][2]["after"]["said"] == "Tosk"
  cut = question_rows.gather_changes(tmp_path, max_rows=1)
  assert [one["id"] for one in cut["rows"]] == ["b"] and cut["left_out"] == 3 and cut["counts"]["right"] == 1


def test_answers_after_the_restored_step_belong_to_an_abandoned_attempt(tmp_path):
  for step in (0, 3, 12):
    write(tmp_path, step, row("a", 0.0))
  jsonl.cut_steps(tmp_path / jsonl.EVALUATIONS, 3)
  assert list(jsonl.step_files(tmp_path / jsonl.EVALUATIONS)) == [0, 3]
  jsonl.cut_steps(tmp_path / jsonl.EVALUATIONS, None)  # a new run
  assert not jsonl.step_files(tmp_path / jsonl.EVALUATIONS) and question_rows.gather_changes(tmp_path) is None


def test_the_same_id_in_two_sets_is_two_questions_and_hostile_answers_are_shown_as_text(tmp_path):
  jsonl.write(tmp_path / metrics.FILE, [{"step": 1, "time": 1.0, "reward": 0.5}])
  for step, em in ((0, 0.0), (3, 1.0)):
    write(tmp_path, step, row("1", em, prediction="</script><b>bold" + "x" * 1000), row("1", 0.0, "musique"))
  found = question_rows.gather_changes(tmp_path)["rows"]
  assert [(one["source"], one["kind"]) for one in found] == [("nq", "gained"), ("musique", "wrong")]
  text = page_lib.write_report(tmp_path).read_text(encoding="utf-8")
  assert "<b>bold" not in text and 'id="answers-table"' in text
  said = page_lib.gather(tmp_path)["answers"]["rows"][0]["after"]["said"]
  assert len(said) < 410 and said.endswith(" …")
