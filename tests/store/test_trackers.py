import itertools
import json
import logging
import shutil
import threading
import time
from unittest import mock

import pytest
from patience import until

from ragrl_jax import config as config_lib, settings
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import metrics, trackers


class Kept:
  """A tracker that keeps what it gets, and obeys `before`."""

  def __init__(self, run, before=lambda step: None):
    self.run, self.before, self.rows, self.closed, self.thread = run, before, [], False, threading.current_thread()

  def write(self, step, seconds, values):
    self.before(step)
    self.rows.append((step, dict(values)))

  def close(self):
    self.closed = True


@pytest.fixture
def kept(monkeypatch):
  """Registers a tracker under a switch's name; its `made` are the trackers that were started."""

  def register(name, before=lambda step: None, start=lambda: None):
    def made(run):
      start()
      made.made.append(Kept(run, before))
      return made.made[-1]

    made.made = []
    monkeypatch.setattr(trackers, "KINDS", {**trackers.KINDS, name: made})
    return made

  return register


def write(workdir, steps, *names, restored=None, settings=None):
  writer = metrics.MetricWriter(workdir, trackers=names, restored=restored, settings=settings)
  for step in steps:
    writer.write(step, {"loss": float(step), "term": {"answer": 1}, "bottleneck": "rollout", "bad": float("nan")})
  return writer


def untracked(workdir):
  return [row.get("untracked") for row in metrics.read_metrics(workdir)]


def test_a_tracker_gets_the_numbers_in_its_own_thread(tmp_path, kept):
  made = kept("wandb")
  write(tmp_path / "project 1" / "run", [1, 2], "wandb", settings={"steps": 2}).close()
  (tracker,) = made.made
  assert tracker.rows == [(step, {"loss": float(step), "term/answer": 1}) for step in (1, 2)] and tracker.closed
  assert tracker.thread is not threading.current_thread() and not tracker.thread.is_alive()
  assert (tracker.run.project, tracker.run.name, tracker.run.settings) == ("project_1", "run", {"steps": 2})


def test_a_resumed_run_keeps_its_id_and_a_new_one_gets_another(tmp_path, kept, caplog):
  made = kept("wandb")
  for restored in (None, 1, None):
    write(tmp_path, [2], "wandb", restored=restored).close()
  first, resumed, new = (tracker.run.id for tracker in made.made)
  assert first == resumed != new and json.loads((tmp_path / trackers.FILE).read_text())["id"] == new
  (tmp_path / trackers.FILE).write_text("{")
  write(tmp_path, [9], "wandb", restored=2).close()
  assert made.made[-1].run.id not in (first, new) and "tracking.json is damaged" in caplog.text
  write(tmp_path / "none", [1]).close()
  assert not (tmp_path / "none" / trackers.FILE).exists()


def test_a_copied_run_gets_an_id_of_its_own_and_a_moved_one_keeps_its_id(tmp_path, kept):
  made, number = kept("wandb"), itertools.count(1)

  def start(name):
    write(tmp_path / name, [next(number)], "wandb", restored=0).close()
    return made.made[-1].run.id

  one = start("a")
  shutil.copytree(tmp_path / "a", tmp_path / "b")
  assert one != (copied := start("b")) and (start("a"), start("b")) == (one, copied)
  (tmp_path / "a").rename(tmp_path / "c")
  shutil.copytree(tmp_path / "b", tmp_path / "a")  # another run where it was
  assert start("c") == one and start("a") not in (one, copied)


def fails(step):
  if step == 2:
    raise ConnectionError("no route\nto the host")


@pytest.mark.parametrize("how", [
  dict(before=fails), dict(start=mock.Mock(side_effect=SystemExit("not logged in"))),
], ids=["in a row", "at the start"])  # fmt: skip
def test_a_tracker_that_raises_is_dropped_counted_and_said_once(tmp_path, kept, caplog, how):
  made, other = kept("wandb", **how), kept("mlflow")
  writer = write(tmp_path, [1, 2], "wandb", "mlflow")
  said = lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
  until(lambda: writer._trackers.lacking and said())  # the thread counts first, and says it then
  for step in (3, 4):
    writer.write(step, {"loss": 0.0})
  writer.close()
  told = said()
  reason = "ConnectionError: no route to the host" if made.made else "SystemExit: not logged in"
  assert len(told) == 1 and told[0].startswith(f"config.log.wandb: this tracker gets no more rows ({reason}). It lacks")
  assert len(metrics.read_metrics(tmp_path)) == 4 and [step for step, _ in other.made[0].rows] == [1, 2, 3, 4]
  lost = 1 if made.made else 2
  assert untracked(tmp_path)[2:] == [lost, lost + 1] and writer._trackers.lacking == lost + 2


def test_a_tracker_that_hangs_neither_slows_the_run_nor_holds_its_end(tmp_path, kept, caplog, monkeypatch):
  monkeypatch.setattr(trackers, "CLOSE_S", 0.2)
  going_on = threading.Event()
  kept("wandb", before=lambda step: going_on.wait(60))
  try:
    began = time.monotonic()
    write(tmp_path, range(1, 6), "wandb").close()
    assert time.monotonic() - began < 30
    (told,) = [record.getMessage() for record in caplog.records]
    assert "it was not done 0.2 s after the last step" in told and "It lacks 5 so far" in told
  finally:
    going_on.set()


def test_a_tracker_for_which_too_many_rows_wait_is_dropped(tmp_path, kept, caplog, monkeypatch):
  monkeypatch.setattr(trackers, "ROWS", 3)
  monkeypatch.setattr(trackers, "CLOSE_S", 1e9)  # the end does not wait for a dropped tracker
  entered, going_on = threading.Event(), threading.Event()
  made = kept("wandb", before=lambda step: (entered.set(), going_on.wait(60)))
  try:
    writer = write(tmp_path, [1], "wandb")
    assert entered.wait(60)
    for step in range(2, 8):  # step 1 is being written, and 2, 3 and 4 wait
      writer.write(step, {"loss": 0.0})
    writer.close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "(3 rows wait for it)" in told and untracked(tmp_path)[-1] == 6 == writer._trackers.lacking - 1
  finally:
    going_on.set()
  until(lambda: not made.made[0].thread.is_alive())  # the thread ends by itself, without the rows that waited
  assert [step for step, _ in made.made[0].rows] == [1]


def test_a_missing_package_is_named_with_its_extra_before_anything_is_loaded(monkeypatch):
  monkeypatch.setitem(trackers.PACKAGES, "wandb", ("wandb_that_nobody_has",))
  config = config_lib.default_config()
  config.log.wandb = True
  assert trackers.chosen(config.log) == ("tensorboard", "wandb")
  config.recipe = "care"
  for purpose in ("rl", "sft"):  # neither a model nor a tokenizer is named
    with pytest.raises(ValueError, match=r"config\.log\.wandb=True, but wandb_that_nobody_has is not installed: pip"):
      prepare(config, purpose=purpose)
  trackers.check(["tensorboard"])


def test_settings_reach_the_trackers_without_credentials(tmp_path, kept):
  made = kept("mlflow")
  config = config_lib.default_config()
  config.log.update(dict(mlflow=True, tensorboard=False))
  config.retrieval.index = "http://me:s3cret@host/"
  config = settings.of(config)
  metrics.MetricWriter.of_run(tmp_path, config, restored=None, silent=False).close()
  assert made.made[0].run.settings["retrieval"]["index"] == "http://host/"
  with metrics.MetricWriter.of_run(tmp_path / "other host", config, restored=None, silent=True) as silent:
    silent.write(1, {"loss": 1.0})
  assert len(made.made) == 1 and not (tmp_path / "other host").exists()
