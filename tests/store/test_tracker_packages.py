"""W&B, Trackio and MLflow as published take a run's metrics, without any network (make agents)."""

import json
import sqlite3
import struct
import subprocess
import sys

import pytest

from ragrl_jax.store import metrics, trackers

pytestmark = pytest.mark.agents
SETTINGS = {"recipe": "arena", "steps": 3, "rollout": {"lanes": 4, "index": "x" * 7000}}
NUMBERS = {1: 0.5, 2: 0.25, 3: 0.125}

# Starts a run of two steps, then resumes it from the first: what a kill leaves behind. Every attempt to connect to
# another machine raises an error.
PROGRAM = """
import json, logging, pathlib, socket, sys
connect = socket.socket.connect
def local(self, address):
  assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), f"connects to {address}"
  return connect(self, address)
socket.socket.connect = local
from ragrl_jax.store import metrics, trackers
name, workdir, settings = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
trackers.CLOSE_S = 240.0  # imports and the first migration take long on a busy machine
trackers.check([name])
for restored, steps in ((None, (1, 2)), (1, (2, 3))):
  how = dict(restored=restored, trackers=[name], settings=settings)
  with metrics.MetricWriter(workdir, **how) as writer:
    for step in steps:
      writer.write(step, {"reward": 0.5 ** step, "term": {"answer a": 1}, "bottleneck": "rollout"})
  assert writer._trackers.lacking == 0
"""


@pytest.fixture
def tracked(tmp_path, monkeypatch):
  """Tracker → (the run's folder, its id), after both starts of the run in a process of its own."""
  for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_SPACE_ID"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))

  def run(name):
    pytest.importorskip(name, reason=f"{name} is not installed (make agents installs it)")
    workdir = tmp_path / "project" / "run"
    command = [sys.executable, "-c", PROGRAM, name, str(workdir), json.dumps(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "gets no more rows" not in done.stderr, done.stderr
    assert [row["step"] for row in metrics.read_metrics(workdir)] == [1, 2, 3]
    return workdir, json.loads((workdir / "tracking.json").read_text())["id"]

  return run


def records(path):
  """The records of a .wandb file: a head of 7 bytes, then LevelDB's log, in which a record may have several parts."""
  data, at, record = path.read_bytes(), 7, b""
  while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:  # too little of the block is left for a part's head
      at += 32768 - at % 32768
      continue
    _, length, kind = struct.unpack_from("<IHB", data, at)
    record += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):  # whole, or the last part
      yield record
      record = b""


def test_wandb(tracked):
  workdir, number = tracked("wandb")
  from wandb.proto import wandb_internal_pb2

  rows, configs = [], []
  files = sorted(workdir.glob("wandb/offline-run-*/*.wandb"))
  assert [file.name for file in files] == [f"run-{number}.wandb"] * 2  # one run, two starts
  for file in files:
    for data in records(file):
      record = wandb_internal_pb2.Record.FromString(data)
      if record.HasField("history"):
        named = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        rows.append((named["step"], named["reward"], named["term/answer_a"]))
      if record.HasField("run"):
        assert (record.run.project, record.run.display_name, record.run.run_id) == ("project", "run", number)
        configs += [{item.key: json.loads(item.value_json) for item in record.run.config.update}]
  assert rows == [(step, NUMBERS[step], 1) for step in (1, 2, 2, 3)]
  assert configs[0]["recipe"] == "arena" and configs[0]["rollout"]["lanes"] == 4


def test_trackio(tracked):
  _, number = tracked("trackio")
  code = (
    "import json; from trackio.sqlite_storage import SQLiteStorage as kept; "
    f"name = 'run-{number}'; print(json.dumps([kept.get_logs('project', name), kept.get_run_config('project', name)]))"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  logs, config = json.loads(done.stdout.splitlines()[-1])
  rows = [(row["step"], row["reward"], row["term/answer_a"]) for row in logs]
  assert rows == [(step, NUMBERS[step], 1) for step in (1, 2, 2, 3)]
  assert config["recipe"] == "arena" and config["rollout"]["lanes"] == 4


def test_mlflow(tracked):
  workdir, number = tracked("mlflow")
  with sqlite3.connect(workdir / "mlflow.db") as base:
    ask = lambda text: base.execute(text).fetchall()
    ((run, name, status),) = ask("select run_uuid, name, status from runs")
    assert (name, status) == ("run", "FINISHED")
    assert (trackers.TAG, number) in ask("select key, value from tags")
    params = dict(ask("select key, value from params"))
    assert params["recipe"] == "arena" and params["rollout.lanes"] == "4" and len(params["rollout.index"]) == 6000
    logged = ask("select step, value from metrics where key = 'reward' order by step, timestamp")
    assert sorted(set(logged)) == [(step, value) for step, value in NUMBERS.items()]
    assert {key for (key,) in ask("select distinct key from metrics")} == {"reward", "term/answer_a"}
    assert ("project",) in ask("select name from experiments")
  assert not (workdir / "mlruns").exists() and run
