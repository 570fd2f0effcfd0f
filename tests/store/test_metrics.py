import json
import os
import resource
import struct

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from ragrl_jax.store import jsonl, metrics


def steps_of(workdir):
  return [row["step"] for row in metrics.read_metrics(workdir)]


def run(workdir, steps, **settings):
  with metrics.MetricWriter(workdir, **settings) as writer:
    for step in steps:
      writer.write(step, {"loss": float(step)})


def test_a_row_holds_step_time_and_plain_numbers(tmp_path):
  with metrics.MetricWriter(tmp_path) as writer:
    numbers = {"reward": jnp.float32(0.1), "bf": jnp.asarray(0.5, jnp.bfloat16), "n": np.int64(7), "on": True}
    writer.write(1, numbers | {"term": {"answer": 1.0, "format": {"deep": 2}}, "bottleneck": "rollout", "gone": None})
    assert steps_of(tmp_path) == [1]  # rows can be read during the run
  (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
  row = json.loads(line)
  assert row.pop("time") > 1.7e9
  terms = {"term/answer": 1.0, "term/format/deep": 2}
  assert row == dict(step=1, reward=0.1, bf=0.5, n=7, on=1, bottleneck="rollout", gone=None) | terms
  assert '"reward":0.1,' in line  # the shortest form of a float32, not 0.10000000149011612


def test_values_that_are_not_finite_become_null_and_are_counted(tmp_path):
  with metrics.MetricWriter(tmp_path) as writer:
    writer.write(1, {"a": float("nan"), "b": np.float32("inf"), "c": jnp.float32("-inf"), "d": 1.0, "e": None})
    writer.write(2, {"a": 0.0})
  first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()
  row = json.loads(first, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
  assert row.items() >= dict(a=None, b=None, c=None, d=1.0, e=None, nulls=3).items()
  assert "nulls" not in json.loads(second)


def test_resume_removes_rows_after_the_checkpoint_and_a_new_run_all(tmp_path):
  run(tmp_path, range(6))
  run(tmp_path, [4, 5, 6], restored=3)
  assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
  run(tmp_path, [0, 1])
  assert steps_of(tmp_path) == [0, 1]


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_a_line_cut_short_by_a_kill_is_repaired(tmp_path, cut):
  run(tmp_path, [1, 2, 3])
  path = tmp_path / "metrics.jsonl"
  whole = path.read_bytes()
  # cut=1 removes only the newline. The last number may then be incomplete, so the row is removed too.
  path.write_bytes(whole[:-cut])
  assert steps_of(tmp_path) == [1, 2]
  run(tmp_path, [3, 4], restored=3)
  assert steps_of(tmp_path) == [1, 2, 3, 4]
  assert path.read_bytes().endswith(b"\n")


def test_a_file_without_a_complete_line_is_accepted(tmp_path):
  for content in (b"", b"{", b'{"step":1'):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    run(tmp_path, [1], restored=5)
    assert steps_of(tmp_path) == [1]


def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path):
  run(tmp_path, [1, 2, 3])
  path = tmp_path / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  for rest, says in (
    ("{oops}\n" + lines[2], "not a JSON object"), ("[1, 2]\n" + lines[2], "a list"),
    ("[" * 100_000 + "\n" + lines[2], "not a JSON object"),
    ("[1, 2]", "a list"),  # whole JSON, though without a line's end: this is no torn row
  ):  # fmt: skip
    path.write_text(lines[0] + rest)
    for read in (lambda: metrics.read_metrics(tmp_path), lambda: run(tmp_path, [4], restored=3)):
      refused(rf"metrics\.jsonl:2: {says}", read)
  assert path.read_text() == lines[0] + "[1, 2]"


def test_a_step_has_one_row(tmp_path):
  with metrics.MetricWriter(tmp_path) as writer:
    writer.write(3, {"loss": 1.0})
    for step in (3, 2):
      refused("one row", writer.write, step, {"loss": 1.0})
  with metrics.MetricWriter(tmp_path, restored=3) as writer, pytest.raises(ValueError, match="3"):
    writer.write(3, {"loss": 1.0})


@pytest.mark.parametrize("value", [np.ones(2), [1.0], object(), 1j])
def test_a_value_that_is_not_a_number_is_refused_by_name(tmp_path, value):
  with metrics.MetricWriter(tmp_path) as writer:
    refused("'odd'", writer.write, 1, {"odd": value})
    refused("'step'", writer.write, 1, {"step": 2})
    writer.write(1, {"fine": 1})
  assert steps_of(tmp_path) == [1]


def scalars(folder):
  """{(tag, step): value} of event files, which consist of records [length u64, crc u32, Event, crc u32]."""
  from tensorboardX.proto import event_pb2  # imports torch, where there is one

  found = {}
  for path in sorted(folder.iterdir()):
    data, at = path.read_bytes(), 0
    while at < len(data):
      (length,) = struct.unpack_from("<Q", data, at)
      event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
      found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
      at += 16 + length
  return found


def test_tensorboard_gets_the_same_scalars(tmp_path):
  with metrics.MetricWriter(tmp_path, trackers=["tensorboard"]) as writer:
    writer.write(1, {"reward": 0.25, "term": {"answer": 1}, "bottleneck": "rollout", "bad": float("nan")})
    writer.write(2, {"reward": 0.5})
  assert scalars(tmp_path / "tensorboard") == {("reward", 1): 0.25, ("term/answer", 1): 1.0, ("reward", 2): 0.5}


def test_tensorboard_of_a_new_run_and_of_a_resumed_one(tmp_path):
  for restored, steps in ((None, (1, 2, 3)), (None, (1, 2)), (1, (2, 3))):
    with metrics.MetricWriter(tmp_path, restored=restored, trackers=["tensorboard"]) as writer:
      for step in steps:
        writer.write(step, {f"after {restored}": step})
  # The first run's events are gone. A purge mark hides the steps that the resumed run writes again.
  want = {("after_None", 1), ("after_None", 2), ("after_1", 2), ("after_1", 3)}
  assert scalars(tmp_path / "tensorboard").keys() == want


def test_a_failed_write_leaves_the_old_file_and_a_pipe_stays_one(tmp_path):
  path = tmp_path / "rows.jsonl"
  jsonl.write(path, [{"a": 1}])

  def rows():
    yield {"a": 2}
    raise RuntimeError("killed")

  with pytest.raises(RuntimeError):
    jsonl.write(path, rows())
  assert list(jsonl.read(path)) == [{"a": 1}]
  assert os.listdir(tmp_path) == ["rows.jsonl"]
  os.mkfifo(pipe := tmp_path / "pipe")
  reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
  jsonl.write(pipe, rows=[{"a": 3}])
  assert pipe.is_fifo() and os.read(reader, 99) == b'{"a":3}\n'
  os.close(reader)


def test_a_line_stays_one_line_and_plain_keeps_float32_exactly():
  row = {"a": "x\ny\u2028z\u2029é🙂", "half a pair": "\ud800"}
  text = jsonl.line(row)
  assert len(text.splitlines()) == 1 and text.endswith("\n") and "é🙂" in text
  assert json.loads(text.encode()) == row
  values = np.float32([0.1, 1 / 3, 1e-30, 3e38, -0.0])
  back = json.loads(json.dumps(jsonl.plain(values)))
  np.testing.assert_array_equal(np.float32(back), values)
  assert jsonl.plain({"a": (np.float32(0.1), {1: [np.float64("nan")]})}) == {"a": [0.1, {"1": [None]}]}


def test_a_full_disk_is_one_error_that_names_the_file_and_loses_no_row(tmp_path):
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  writer = metrics.MetricWriter(tmp_path)
  writer.write(1, {"loss": 1.0})
  resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 9, hard))  # largest file, in bytes
  try:
    with pytest.raises(OSError, match=r"make room, for example.*metrics\.jsonl") as error:
      writer.write(2, {"loss": 2.0})
    with pytest.raises(OSError, match=r"make room, for example.*whole\.jsonl"):
      jsonl.write(tmp_path / "whole.jsonl", [{"text": "x" * 999}])
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  writer.close()
  assert "\n" not in str(error.value) and not (tmp_path / "whole.jsonl").exists()
  assert writer.path.read_bytes()[-1:] != b"\n" and steps_of(tmp_path) == [1]
  run(tmp_path, [2], restored=1)
  assert steps_of(tmp_path) == [1, 2]


def test_a_cost_is_what_was_timed_and_counted():
  rows = [
    {"step": 1, "seconds/rollout": 1800.0, "seconds/update": 900.0, "seconds/step": 2700.0, "tokens": 5},
    {"step": 2, "seconds/rollout": 1800.0, "seconds/evaluate": 900.0, "tokens": None, "engine/sampled_tokens": 7},
  ]
  known = {"cost/hours": 1.5, "cost/hours/rollout": 1.0, "cost/hours/update": 0.25, "cost/hours/evaluate": 0.25}
  known |= {"cost/trained_tokens": 5.0, "cost/sampled_tokens": 7.0}
  assert metrics.cost_of_rows(rows) == known and metrics.cost_of_rows(rows, 2.0) == known | {"cost/price": 3.0}
  assert metrics.cost_of_rows([{"step": 1}], 2.0) == {}
