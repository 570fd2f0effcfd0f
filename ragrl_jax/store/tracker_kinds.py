"""The trackers: one class each for TensorBoard, W&B, Trackio and MLflow. `trackers.py` runs them.

A tracker sends data to another machine only if the user's environment asks for it. W&B is offline without WANDB_MODE,
Trackio is local without TRACKIO_SPACE_ID or TRACKIO_SERVER_URL, and MLflow writes to the run's folder without
MLFLOW_TRACKING_URI.
"""

import dataclasses
import logging
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

TAG = "ragrl.id"  # MLflow's tag with the run's id, since MLflow gives its runs its own ids
PARAMETERS = 100  # MLflow's largest number of parameters in a request
LONGEST = 6000  # characters of a parameter in MLflow
_ODD = re.compile(r"[^\w./-]")


@dataclasses.dataclass(frozen=True)
class Run:
  """The run that a tracker records.

  Attributes:
    workdir: the run's folder.
    id: the same for all starts of the run.
    restored: the step that was restored; None for a new run.
    settings: the run's settings as JSON values.
  """

  workdir: pathlib.Path
  id: str
  restored: int | None
  settings: Mapping[str, Any]

  @property
  def name(self) -> str:
    """The folder's name."""
    return plain(self.workdir.name)

  @property
  def project(self) -> str:
    """The name of the parent folder."""
    return plain(self.workdir.parent.name) or "ragrl"


class Tracker(Protocol):
  """Records the metrics of a run. All methods are called from one thread."""

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """Records a step's metrics; `seconds` is the time since 1970."""
    ...

  def close(self) -> None:
    """Records what is left, and ends the tracker's run."""
    ...


def plain(name: str) -> str:
  """The name with "_" for every character that some tracker refuses: all but letters, digits and ._/-."""
  return _ODD.sub("_", name)


class TensorBoard:
  """Event files in the run's folder, under tensorboard/."""

  def __init__(self, run: Run):
    import tensorboardX  # takes a second, and evaluation does not need it

    folder = run.workdir / "tensorboard"
    for old in folder.glob("events.out.tfevents.*") if run.restored is None else ():
      old.unlink()
    # TensorBoard names event files by the second; the suffix keeps a second file from replacing the first.
    self._writer = tensorboardX.SummaryWriter(
      str(folder), purge_step=None if run.restored is None else run.restored + 1, filename_suffix=f".{time.time_ns()}"
    )

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """See `Tracker`."""
    for name, value in values.items():
      self._writer.add_scalar(plain(name), value, step, walltime=seconds)

  def close(self) -> None:
    """See `Tracker`."""
    self._writer.close()


class WandB:
  """Weights & Biases: a run under wandb/ in the run's folder, for `wandb sync`.

  The metric `step` is the x axis, not W&B's own count: W&B ignores rows at or before its last count, and a resumed run
  writes some steps again.
  """

  def __init__(self, run: Run):
    given = os.environ.get("WANDB_MODE")
    if not given:
      os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # crash reports would leave the machine
    import wandb

    named = {} if os.environ.get("WANDB_PROJECT") else {"project": run.project}
    self._run = wandb.init(
      **named,
      mode=None if given else "offline",
      dir=str(run.workdir),
      name=run.name,
      id=run.id,
      resume="allow",
      config=dict(run.settings),
      settings=wandb.Settings(console="off", silent=True),
    )
    self._run.define_metric("step")
    self._run.define_metric("*", step_metric="step")

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """See `Tracker`."""
    self._run.log({"step": step, **{plain(name): value for name, value in values.items()}})

  def close(self) -> None:
    """See `Tracker`."""
    self._run.finish()


class Trackio:
  """Trackio: a run in its own folder of this machine (TRACKIO_DIR), for `trackio show`.

  Trackio finds a run by its name, so the name ends with the run's id.
  """

  def __init__(self, run: Run):
    import trackio

    self._run = trackio.init(
      project=run.project,
      name=f"{run.name}-{run.id}",
      config=dict(run.settings),
      resume="never" if run.restored is None else "allow",
      embed=False,
      auto_log_cpu=False,
    )

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """See `Tracker`."""
    self._run.log({plain(name): value for name, value in values.items()}, step=step)

  def close(self) -> None:
    """See `Tracker`."""
    self._run.finish()


class MLflow:
  """MLflow: a run in mlflow.db of the run's folder, for `mlflow ui --backend-store-uri`."""

  def __init__(self, run: Run):
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("mlflow", "alembic"):  # they log every table that they make
      logging.getLogger(name).setLevel(logging.WARNING)
    import mlflow

    self._metric = mlflow.entities.Metric
    address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.workdir / 'mlflow.db'}"
    self._client = mlflow.MlflowClient(tracking_uri=address)
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
    found = self._client.get_experiment_by_name(experiment)
    local = None if os.environ.get("MLFLOW_TRACKING_URI") else (run.workdir / "mlartifacts").as_uri()
    at = found.experiment_id if found else self._client.create_experiment(experiment, artifact_location=local)
    earlier = self._client.search_runs([at], f"tags.`{TAG}` = '{run.id}'")
    if earlier:
      self._id = earlier[0].info.run_id
      self._client.update_run(self._id, status="RUNNING")
    else:
      self._id = self._client.create_run(at, run_name=run.name, tags={TAG: run.id}).info.run_id
      # MLflow's parameters cannot change, so a resumed run keeps those of the first start.
      params = [mlflow.entities.Param(name, text[:LONGEST]) for name, text in _flat(run.settings)]
      for start in range(0, len(params), PARAMETERS):
        self._client.log_batch(self._id, params=params[start : start + PARAMETERS])

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """See `Tracker`."""
    at = int(1000 * seconds)
    self._client.log_batch(
      self._id, metrics=[self._metric(plain(name), value, at, step) for name, value in values.items()]
    )

  def close(self) -> None:
    """See `Tracker`."""
    self._client.set_terminated(self._id)


KINDS: Mapping[str, Callable[[Run], Tracker]] = {
  "tensorboard": TensorBoard,
  "wandb": WandB,
  "trackio": Trackio,
  "mlflow": MLflow,
}  # by the name of the setting, config.log.NAME


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
  """(dotted name, text) of every setting."""
  for name, value in settings.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f"{prefix}{name}.")
    else:
      yield plain(prefix + name), str(value)
