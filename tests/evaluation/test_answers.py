"""Held-out questions one by one: compares the first and the last evaluation of a run."""

from ragrl_jax.report import page as page_lib
from ragrl_jax.report import question_rows
from ragrl_jax.store import jsonl, metrics


def row(name, em, said="Velmar", **more):
  golds = ["Velmar"]
  fields = {"id": name, "question": f"{name}?", "golds": golds, "prediction": said, "em": em, "num_searches": 1}
  return fields | {"ended": "answer", "source": "", "hops": 1} | more


def write(workdir, step, rows):
  jsonl.write_step(workdir / jsonl.EVALUATIONS, step, rows)


def test_questions_are_joined_and_changed_answers_come_first(tmp_path):
  write(tmp_path, 0, [row("a", 1.0), row("b", 0.0), row("c", 1.0), row("d", 0.0, None), row("e", 0.0)])
  assert question_rows.gather_changes(tmp_path) is None  # one evaluation has nothing to compare with
  write(tmp_path, 5, [row("a", 0.0)])  # an evaluation between the first and the last is not read
  failed = row("e", None, ended="failed")
  later = [row("a", 1.0), row("b", 1.0), row("c", 0.0), row("d", 0.0, "Tosk"), failed, row("new", 1.0)]
  write(tmp_path, 12, later)
  found = question_rows.gather_changes(tmp_path)
  assert found["steps"] == (0, 12) and found["left_out"] == 0
  assert [(one["id"], one["kind"]) for one in found["rows"]] == [
    ("b", "gained"),
    ("c", "lost"),
    ("d", "wrong"),
    ("a", "right"),
  ]
  assert found["rows"][2]["before"]["said"] is None and found["rows"][2]["after"]["said"] == "Tosk"
  cut = question_rows.gather_changes(tmp_path, max_rows=1)
  assert [one["id"] for one in cut["rows"]] == ["b"] and cut["left_out"] == 3 and cut["counts"]["right"] == 1


def test_answers_after_the_restored_step_belong_to_an_abandoned_attempt(tmp_path):
  for step in (0, 3, 12):
    write(tmp_path, step, [row("a", 0.0)])
  jsonl.cut_steps(tmp_path / jsonl.EVALUATIONS, 3)
  assert list(jsonl.step_files(tmp_path / jsonl.EVALUATIONS)) == [0, 3]
  jsonl.cut_steps(tmp_path / jsonl.EVALUATIONS, None)  # a new run
  assert not jsonl.step_files(tmp_path / jsonl.EVALUATIONS) and question_rows.gather_changes(tmp_path) is None


def test_the_same_id_in_two_sets_is_two_questions(tmp_path):
  for step, em in ((0, 0.0), (3, 1.0)):
    write(tmp_path, step, [row("1", em, source="nq"), row("1", 0.0, source="musique")])
  assert [(one["source"], one["kind"]) for one in question_rows.gather_changes(tmp_path)["rows"]] == [
    ("nq", "gained"),
    ("musique", "wrong"),
  ]


def test_hostile_answers_are_shown_as_text(tmp_path):
  with metrics.MetricWriter(tmp_path, tensorboard=False) as writer:
    writer.write(1, {"reward": 0.5})
  for step in (0, 1):
    write(tmp_path, step, [row("a", 0.0, "</script><b>bold" + "x" * 1000)])
  text = page_lib.write_report(tmp_path).read_text(encoding="utf-8")
  assert "<b>bold" not in text and 'id="answers-table"' in text
  said = page_lib.gather(tmp_path)["answers"]["rows"][0]["after"]["said"]
  assert len(said) < 410 and said.endswith(" …")
