"""One class per tracker: TensorBoard, W&B, Trackio and MLflow. `trackers.py` runs them.

By default, they write to this machine only. The user's environment can change this: WANDB_MODE for W&B,
TRACKIO_SPACE_ID or TRACKIO_SERVER_URL for Trackio, MLFLOW_TRACKING_URI for MLflow.
"""

import dataclasses
import logging
import os
import pathlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ragrl_jax.store import jsonl

TAG = "ragrl.id"  # the MLflow tag that has the run's id, because MLflow gives runs its own ids
PARAMETERS = 100  # most parameters per request to MLflow
LONGEST = 6000  # most characters of a parameter in MLflow
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


class Tracker(Protocol):
  """Stores the metrics of a run. All methods are called from one thread."""

  def write(self, step: int, seconds: float, values: Mapping[str, int | float]) -> None:
    """Stores the metrics of a step. `seconds` is the step's time, in seconds since 1970."""
    ...

  def close(self) -> None:
    """Stores what is still buffered, and marks the run as ended."""
    ...


def plain(name: str) -> str:
  """The name with "_" in place of characters that some tracker refuses: all but letters, digits and . _ / -."""
  return _ODD.sub("_", name)


class TensorBoard:
  """TensorBoard: event files in tensorboard/ in the run's folder."""

  def __init__(self, run: Run):
    import tensorboardX  # imported here: it takes a second, and evaluation does not need it

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
  """Weights & Biases: an offline run in wandb/ in the run's folder, for `wandb sync`.

  The x axis is the metric `step` instead of W&B's own step count, because a resumed run writes some steps again: W&B
  ignores rows whose count is not larger than its last one.
  """

  def __init__(self, run: Run):
    given = os.environ.get("WANDB_MODE")
    if not given:
      os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B would send crash reports over the network
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
  """Trackio: a run in Trackio's folder on this machine (TRACKIO_DIR), for `trackio show`.

  Trackio identifies a run by its name, so the name ends with the run's id.
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
  """MLflow: a run in mlflow.db in the run's folder, for `mlflow ui --backend-store-uri`."""

  def __init__(self, run: Run):
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("mlflow", "alembic"):  # they log every table that they create
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
      # MLflow's parameters cannot change, so they are written at the first start only.
      params = [mlflow.entities.Param(plain(name), str(value)[:LONGEST]) for name, value in jsonl.flat(run.settings)]
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
}  # NAME of the setting config.log.NAME → tracker
