"""Sends a run's metrics to trackers (TensorBoard, W&B, Trackio, MLflow). Each tracker has its own thread.

metrics.jsonl is the record of a run, so a tracker must not stop or slow a run. A tracker that raises an error, or takes
no more rows, is dropped: one warning gives the reason, and the rows that the tracker lacks are counted.

By default, they write to this machine only. The user's environment can change this: WANDB_MODE for W&B,
TRACKIO_SPACE_ID or TRACKIO_SERVER_URL for Trackio, MLFLOW_TRACKING_URI for MLflow.
"""

import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ragrl_jax.store import jsonl

TAG = "ragrl.id"  # the MLflow tag that has the run's id, because MLflow gives runs its own ids
PARAMETERS = 100  # most parameters per request to MLflow
LONGEST = 6000  # most characters of a parameter in MLflow
Values = Mapping[str, int | float]
_ODD = re.compile(r"[^\w./-]")


@dataclasses.dataclass(frozen=True)
class Run:
  """The data of a run that a tracker gets at the start.

  Attributes:
    id: the run's id, which stays the same when the run resumes.
    restored: the step that was restored; None for a new run.
  """

  workdir: pathlib.Path
  id: str
  restored: int | None
  settings: Mapping[str, Any]

  @property
  def name(self) -> str:
    """The run's name: that of its folder."""
    return plain(self.workdir.name)

  @property
  def project(self) -> str:
    """The project's name: that of the folder that contains the run's folder."""
    return plain(self.workdir.parent.name) or "ragrl"


class Tracker(NamedTuple):
  """What a run calls, all from one thread.

  Attributes:
    write: (step, seconds, values) stores the metrics of a step, by `plain` names. `seconds` is the step's time, in
      seconds since 1970.
    close: stores what is still buffered, and marks the run as ended.
  """

  write: Callable[[int, float, Values], None]
  close: Callable[[], None]


def plain(name: str) -> str:
  """The name with "_" in place of characters that some tracker refuses: all but letters, digits and . _ / -."""
  return _ODD.sub("_", name)


def tensorboard(run: Run) -> Tracker:
  """TensorBoard: event files in tensorboard/ in the run's folder."""
  import tensorboardX  # imported here: it takes a second, and evaluation does not need it

  folder = run.workdir / "tensorboard"
  for old in folder.glob("events.out.tfevents.*") if run.restored is None else ():
    old.unlink()
  # TensorBoard names event files by the second; the suffix keeps a second file from replacing the first.
  writer = tensorboardX.SummaryWriter(
    str(folder), purge_step=None if run.restored is None else run.restored + 1, filename_suffix=f".{time.time_ns()}"
  )

  def write(step, seconds, values):
    for name, value in values.items():
      writer.add_scalar(name, value, step, walltime=seconds)

  return Tracker(write, writer.close)


def wandb(run: Run) -> Tracker:
  """Weights & Biases: an offline run in wandb/ in the run's folder, for `wandb sync`.

  The x axis is the metric `step` instead of W&B's own step count, because a resumed run writes some steps again: W&B
  ignores rows whose count is not larger than its last one.
  """
  mode = os.environ.get("WANDB_MODE")
  if not mode:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B would send crash reports over the network
  import wandb

  options = {} if os.environ.get("WANDB_PROJECT") else {"project": run.project}
  options |= dict(name=run.name, id=run.id, dir=str(run.workdir), resume="allow", config=dict(run.settings))
  quiet = wandb.Settings(console="off", silent=True)
  wandb_run = wandb.init(**options, mode=None if mode else "offline", settings=quiet)
  wandb_run.define_metric("step")
  wandb_run.define_metric("*", step_metric="step")
  return Tracker(lambda step, seconds, values: wandb_run.log({"step": step, **values}), wandb_run.finish)


def trackio(run: Run) -> Tracker:
  """Trackio: a run in Trackio's folder on this machine (TRACKIO_DIR), for `trackio show`.

  Trackio identifies a run by its name, so the name ends with the run's id.
  """
  import trackio

  how = dict(resume="never" if run.restored is None else "allow", embed=False, auto_log_cpu=False)
  trackio_run = trackio.init(project=run.project, name=f"{run.name}-{run.id}", config=dict(run.settings), **how)
  return Tracker(lambda step, seconds, values: trackio_run.log(dict(values), step=step), trackio_run.finish)


def mlflow(run: Run) -> Tracker:
  """MLflow: a run in mlflow.db in the run's folder, for `mlflow ui --backend-store-uri`."""
  os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
  for name in ("mlflow", "alembic"):  # they log every table that they create
    logging.getLogger(name).setLevel(logging.WARNING)
  import mlflow

  address = os.environ.get("MLFLOW_TRACKING_URI")
  client = mlflow.MlflowClient(tracking_uri=address or f"sqlite:///{run.workdir / 'mlflow.db'}")
  experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
  found = client.get_experiment_by_name(experiment)
  local = None if address else (run.workdir / "mlartifacts").as_uri()
  at = found.experiment_id if found else client.create_experiment(experiment, artifact_location=local)
  if earlier := client.search_runs([at], f"tags.`{TAG}` = '{run.id}'"):
    run_id = earlier[0].info.run_id
    client.update_run(run_id, status="RUNNING")
  else:
    run_id = client.create_run(at, run_name=run.name, tags={TAG: run.id}).info.run_id
    # MLflow's parameters cannot change, so they are written at the first start only.
    params = [mlflow.entities.Param(plain(name), str(value)[:LONGEST]) for name, value in jsonl.flat(run.settings)]
    for start in range(0, len(params), PARAMETERS):
      client.log_batch(run_id, params=params[start : start + PARAMETERS])

  def write(step, seconds, values):
    when = int(1000 * seconds)
    metrics = [mlflow.entities.Metric(name, value, when, step) for name, value in values.items()]
    client.log_batch(run_id, metrics=metrics)

  return Tracker(write, lambda: client.set_terminated(run_id))


# NAME of the setting config.log.NAME → tracker, and → modules of the extra packages that it needs
KINDS: Mapping[str, Callable[[Run], Tracker]] = dict(
  tensorboard=tensorboard, wandb=wandb, trackio=trackio, mlflow=mlflow
)
PACKAGES = dict(wandb=("wandb",), trackio=("trackio",), mlflow=("mlflow", "sqlalchemy", "alembic"))
FILE = "tracking.json"  # has the run's id for its trackers
ROWS = 256  # most rows that wait for a tracker; if there are more, the tracker is dropped
CLOSE_S = 30.0  # most seconds that the end of a run waits for its trackers


def chosen(log: Any) -> tuple[str, ...]:
  """The names of the trackers that config.log switches on."""
  return tuple(name for name in KINDS if getattr(log, name))


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
    names: keys of KINDS.
    workdir, restored: see `Run`.
    settings: the run's settings as JSON values, without credentials; each tracker gets them once.
  """

  def __init__(self, names: Iterable[str], workdir: pathlib.Path, *, restored: int | None, settings: Mapping[str, Any]):
    names = tuple(names)
    remote = any(name in PACKAGES for name in names)
    run = Run(workdir.resolve(), _id(workdir, restored) if remote else "", restored, settings)
    self._senders = [_Sender(name, lambda kind=KINDS[name]: kind(run)) for name in names]

  @property
  def lacking(self) -> int:
    """Number of rows of this start that dropped trackers will never get."""
    return sum(sender.lacking for sender in self._senders)

  def write(self, step: int, seconds: float, values: Values) -> None:
    """Queues the metrics of a step for every tracker, without waiting. `seconds`: its time since 1970."""
    row = step, seconds, {plain(name): value for name, value in values.items()}
    for sender in self._senders:
      sender.put(row)

  def close(self) -> None:
    """Waits until the trackers have taken all rows, at most CLOSE_S seconds for all trackers together."""
    deadline = time.monotonic() + CLOSE_S
    for sender in self._senders:
      sender.put(None)
    for sender in self._senders:
      sender.join(deadline)


class _Sender:
  """One tracker and its thread. `start` makes it, in the thread, because importing the package takes seconds."""

  def __init__(self, name: str, start: Callable[[], Tracker]):
    self._name, self._start = name, start
    self._rows: queue.Queue[tuple[int, float, Values] | None] = queue.Queue(ROWS)
    self._given = self._taken = 0
    self._dropped = threading.Event()
    # A daemon thread, because a tracker that hangs must not keep the process alive.
    self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
    self._thread.start()

  @property
  def lacking(self) -> int:
    """Number of rows that the tracker will never get; 0 unless it was dropped."""
    return self._given - self._taken if self._dropped.is_set() else 0

  def put(self, row: tuple[int, float, Values] | None) -> None:
    """Queues a row; None ends the thread after the rows that are queued. A full queue drops the tracker."""
    self._given += row is not None
    if self._dropped.is_set():
      return
    try:
      self._rows.put_nowait(row)
    except queue.Full:
      self._drop(f"{ROWS} rows wait for it")

  def join(self, deadline: float) -> None:
    """Waits for the thread until the deadline (a time of `time.monotonic`), and then drops the tracker."""
    if not self._dropped.is_set():
      self._thread.join(max(0.0, deadline - time.monotonic()))
      if self._thread.is_alive():
        self._drop(f"it was not done {CLOSE_S:g} s after the last step")

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
        f"config.log.{self._name}: this tracker gets no more rows ({why}). It lacks {self.lacking} so far. The run "
        "continues, and metrics.jsonl has every row."
      )


def _id(workdir: pathlib.Path, restored: int | None) -> str:
  """The run's id for its trackers: read from tracking.json by a resumed run, else made; and written there.

  A copy beside its original gets its own id, since trackers would mix the rows of two runs with one id.
  """
  path, result = workdir / FILE, ""
  if restored is not None and path.exists():
    try:
      stored = json.loads(path.read_text(encoding="utf-8"))
      original = pathlib.Path(stored.get("folder", workdir)) / FILE  # where the run was at its last start
      if not original.exists() or original.samefile(path) or jsonl.read_object(original).get("id") != stored["id"]:
        result = str(stored["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      logging.warning("%s is damaged (%s), so the trackers begin a new run.", path, error)
  result = result or secrets.token_hex(4)
  jsonl.write_text(path, json.dumps(dict(id=result, folder=str(workdir.resolve()))))
  return result
