import json

import pytest
from console import ragrl

from ragrl_jax.store import jsonl, metrics

STEPS = [1.0] * 5 + [0.1, 0.1, 1.0, 0.1]  # of entropy


def written(folder, entropies, more=None):
  """The log of a run's entropies, with `more` about its step 7."""
  with metrics.MetricWriter(folder) as writer:
    for step, entropy in enumerate(entropies, 1):
      writer.write(step, {"entropy": entropy} | (more if more and step == 7 else {}))


def test_each_time_that_a_metric_leaves_its_range_is_a_line(tmp_path):
  written(tmp_path, STEPS)
  of = lambda i, nats: {"signs": {"entropy": nats}, "prompt_index": 7, "sample": i, "question": "Who\x1b[2J?"}
  rows = [of(0, 0.3), of(1, 0.1)]
  jsonl.write(tmp_path / "episodes" / "step_000006.jsonl", [*rows, {"prompt_index": 8}])
  done = ragrl("watch", f"--workdir={tmp_path}")
  first, second, now = done.stdout.splitlines()
  assert first.startswith("step 6: entropy went from 1 to 0.1, out of its healthy range since step 6")
  assert "Try a higher config.loss.clip_high" in first and "See prompt 7, sample 1 in" in first
  assert first.endswith(r": Who\x1b[2J?")  # a question cannot clear the screen
  assert second.startswith("step 9: entropy") and "See" not in second
  assert now == "Out of the healthy range at step 9: entropy."


def test_after_a_rollback_what_it_has_undone_does_not_count(tmp_path):
  back = {"rollback/to": 5, "rollback/why": "Returned to the weights of step 5"}
  written(tmp_path, [1.0] * 5 + [0.1, 0.1, 0.1], back)
  said = ragrl("watch", f"--workdir={tmp_path}").stdout.splitlines()
  assert [line.split(":")[0] for line in said] == ["step 6", "step 7", "step 8", "Out of the healthy range at step 8"]
  assert "since step 8" in said[2]


@pytest.mark.parametrize("collapsed", [False, True])
def test_it_goes_on_from_a_runs_first_row_until_its_end(tmp_path, collapsed):
  done = ragrl("watch", f"--workdir={tmp_path}")  # before there is a run
  assert done.returncode == 2 and "name a run's folder" in done.stderr
  written(tmp_path, STEPS[:5])
  row = {"step": 6, "entropy": 1.0, "rollback/why": "Returned."}
  with open(tmp_path / metrics.FILE, "a") as file:
    file.write(json.dumps(row | ({"warning/collapsed": "It stops."} if collapsed else {})) + "\n")
  if not collapsed:
    (tmp_path / "finished.json").write_text('{"step": 6}')
  done = ragrl("watch", f"--workdir={tmp_path}", "--every=60")
  assert done.stdout.splitlines() == ["step 6: Returned.", "Out of the healthy range at step 6: nothing."]
