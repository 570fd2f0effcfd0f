"""Sends a run's metrics to trackers (TensorBoard, W&B, Trackio, MLflow). Each tracker has its own thread.

metrics.jsonl is the record of a run, so a tracker must not stop or slow a run. A tracker that raises an error, or takes
no more rows, is dropped: one warning gives the reason, and the rows that the tracker lacks are counted.
"""

import importlib.util
import json
import logging
import pathlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ragrl_jax.store import jsonl, tracker_kinds

FILE = "tracking.json"  # has the run's id for its trackers
ROWS = 256  # most rows that wait for a tracker; if there are more, the tracker is dropped
CLOSE_S = 30.0  # most seconds that the end of a run waits for its trackers
PACKAGES = {  # tracker → modules of the extra packages that it needs
  "wandb": ("wandb",),
  "trackio": ("trackio",),
  "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}


def chosen(log: Any) -> tuple[str, ...]:
  """The names of the trackers that config.log switches on."""
  return tuple(name for name in tracker_kinds.KINDS if getattr(log, name))


def check(names: Iterable[str]) -> None:
  """Checks that the trackers' packages are installed, without importing them.

  Raises:
    ValueError: a package is not installed. The message names the extra that installs it.
  """
  for name in names:
    missing = [module for module in PACKAGES.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
      raise ValueError(
        f"config.log.{name}=True, but {', '.join(missing)} is not installed: pip install 'ragrl_jax[{name}]', or set "
        "it to False."
      )


class Trackers:
  """The trackers of a run.

  Args:
    names: keys of `tracker_kinds.KINDS`.
    workdir: the run's folder. Its name is the run's name, and its parent's name is the project's.
    restored: the step that was restored; None for a new run. A resumed run keeps its id.
    settings: the run's settings as JSON values, without credentials; each tracker gets them once.
  """

  def __init__(self, names: Iterable[str], workdir: pathlib.Path, *, restored: int | None, settings: Mapping[str, Any]):
    names = tuple(names)
    remote = any(name in PACKAGES for name in names)
    run = tracker_kinds.Run(workdir.resolve(), _id(workdir, restored) if remote else "", restored, settings)
    self._senders = [Sender(name, lambda kind=tracker_kinds.KINDS[name]: kind(run)) for name in names]

  @property
  def lacking(self) -> int:
    """Number of rows of this start that dropped trackers will never get."""
    return sum(sender.lacking for sender in self._senders)

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """Queues the metrics of a step for every tracker, without waiting.

    Args:
      seconds: the step's time, in seconds since 1970.
    """
    for sender in self._senders:
      sender.write(step, seconds, values)

  def close(self) -> None:
    """Waits until the trackers have taken all rows, at most CLOSE_S seconds for all trackers together."""
    deadline = time.monotonic() + CLOSE_S
    for sender in self._senders:
      sender.end()
    for sender in self._senders:
      sender.join(deadline)


class Sender:
  """One tracker and its thread.

  Args:
    name: the name of the tracker's setting, for messages.
    start: makes the tracker. It runs in the thread, because importing the package takes seconds.
  """

  def __init__(self, name: str, start: Callable[[], tracker_kinds.Tracker]):
    self._name, self._start = name, start
    self._rows: queue.Queue[tuple[int, float, Mapping[str, int | float]] | None] = queue.Queue(ROWS)
    self._given = self._taken = 0
    self._dropped = threading.Event()
    # A daemon thread, because a tracker that hangs must not keep the process alive.
    self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
    self._thread.start()

  @property
  def lacking(self) -> int:
    """Number of rows that the tracker will never get; 0 unless it was dropped."""
    return self._given - self._taken if self._dropped.is_set() else 0

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """Queues a row. A full queue drops the tracker."""
    self._given += 1
    self._put((step, seconds, values))

  def end(self) -> None:
    """Tells the thread to end after the rows that are queued."""
    self._put(None)

  def join(self, deadline: float) -> None:
    """Waits for the thread until the deadline (a time of `time.monotonic`), and then drops the tracker."""
    if not self._dropped.is_set():
      self._thread.join(max(0.0, deadline - time.monotonic()))
      if self._thread.is_alive():
        self._drop(f"it was not done {CLOSE_S:g} s after the last step")

  def _put(self, row: tuple[int, float, Mapping[str, int | float]] | None) -> None:
    if self._dropped.is_set():
      return
    try:
      self._rows.put_nowait(row)
    except queue.Full:
      self._drop(f"{ROWS} rows wait for it")

  def _work(self) -> None:
    try:
      tracker = self._start()
      while (row := self._rows.get()) is not None and not self._dropped.is_set():
        tracker.write(*row)
        self._taken += 1
      tracker.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the run continues after any error of a tracker)
      self._drop(f"{type(error).__name__}: {' '.join(str(error).split())}")

  def _drop(self, why: str) -> None:
    if not self._dropped.is_set():
      self._dropped.set()
      logging.warning(
        "config.log.%s: this tracker gets no more rows (%s). It lacks %d so far. The run continues, and metrics.jsonl "
        "has every row.",
        self._name,
        why,
        self.lacking,
      )


def _id(workdir: pathlib.Path, restored: int | None) -> str:
  """The run's id for its trackers: read from tracking.json by a resumed run, else made and written there."""
  path = workdir / FILE
  if restored is not None and path.exists():
    try:
      return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
      logging.warning("%s is damaged (%s), so the trackers begin a new run.", path, error)
  made = secrets.token_hex(4)
  jsonl.write_text(path, json.dumps(dict(id=made)))
  return made
