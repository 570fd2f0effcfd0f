"""Rollback: a run that collapses returns to its last healthy checkpoint and goes on with other questions.

Steps count on, so nothing that the run has written changes. With config.checkpoint.every=10, config.guard.rollback=3:

    step          100   …   110    111    112    113    114   …
    detector                       holds  holds  holds
    checkpoint    100       110                  113: the weights of 100

The weights of checkpoint 110 sampled step 111, so those of 100 are the last healthy ones. Step 113 ends with them and
its row says so (`rollback/…`). Step 114 asks the questions that come next and has half the learning rate. Checkpoints
between are deleted; rows and episodes stay.

All this follows from the rows of metrics.jsonl. A resumed run, whose rows are cut to its checkpoint, does the same.
"""

import difflib
import logging
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax.parallel import hosts
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.run import detectors
from ragrl_jax.settings import Settings
from ragrl_jax.store import metrics as metrics_lib

TO, WHY = "rollback/to", "rollback/why"  # in a row: the step that the run returns to, and why
STOPPED = "warning/collapsed"  # in a row: why the run stops


class Collapsed(RuntimeError):
  """A detector holds again after all rollbacks."""


def lasting(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """The rows of the steps that made the present weights: without those that a rollback has undone."""
  result: list[Mapping[str, Any]] = []
  for row in rows:
    if TO in row:
      result = [past for past in result if past["step"] <= row[TO]]
    else:
      result.append(row)
  return result


class Past:
  """The past rows of a run that goes on, for `Recipe.next_recipe`. A row is read, and sent to other hosts, once."""

  def __init__(self, workdir: pathlib.Path):
    self._workdir, self._metric = workdir, ""
    self._end, self._rows = 0, []

  def next_recipe(self, recipe: Recipe, step: int) -> Recipe:
    """The recipe of a step, whose `next_recipe` is set. All hosts must call it."""
    if step == 2 and recipe.waits_for and hosts.is_first():
      say_unmeasured(recipe.waits_for, metrics_lib.read_metrics(self._workdir))
    return recipe.next_recipe(self.rows(recipe.waits_for))

  def rows(self, metric: str) -> list[Mapping[str, Any]]:
    """The `lasting` rows so far, with the step and this metric alone; "": with all columns. All hosts must call it."""
    if metric != self._metric:
      self._metric, self._end, self._rows = metric, 0, []
    new = []
    if hosts.is_first():
      new, self._end = metrics_lib.rows_after(self._workdir, self._end)
    if metric:
      new = [{name: row[name] for name in ("step", TO, metric) if name in row} for row in new]
    self._rows += hosts.exchange(new)[0]
    return lasting(self._rows)


def say_unmeasured(metric: str, rows: Sequence[Mapping[str, Any]]) -> None:
  """Warns if no row of a run's first steps has the metric that a stage waits for: its name may be wrong."""
  names = dict.fromkeys(name for row in rows for name in row)
  if metric not in names:
    near = difflib.get_close_matches(metric, names, n=3)
    logging.warning(
      "the next stage waits for the metric %r, which no step has had so far: if its name is wrong, the stage never "
      "begins by it%s",
      metric,
      f"; did you mean {' or '.join(near)}?" if near else ".",
    )


def replayed(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], list[detectors.Alarm]]]:
  """(row, its alarms) of a run's rows, oldest first. After a rollback the steps that it has undone do not count."""
  watch = detectors.Watch()
  for number, row in enumerate(rows, 1):
    yield row, watch.see(row)
    if TO in row:
      watch = detectors.Watch(lasting(rows[:number]))


class Guard:
  """Watches a run's rows, those in its folder first, and decides when it returns to a checkpoint, and to which.

  Attributes:
    to: the checkpoint to return to: the last one whose weights sampled a step before any detector held.
    rate: multiplies the learning rate.
  """

  def __init__(self, config: Settings, workdir: pathlib.Path):
    self._config, self._workdir = config, workdir
    self._begin(self._rows())

  def see(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the detectors add to a step's metrics: their warnings, and `rollback/…` if the run has to return now.

    On several hosts the first one decides for all.
    """
    alarms = self._see(dict(step=step, **metrics))
    warnings = {f"warning/{alarm.metric}": alarm.text for alarm in alarms}
    if not (longest := self._config.guard.rollback):
      return warnings
    ends = lambda alarm: max(alarm.since, self._back + 1) + longest - 1  # what a rollback has undone does not count
    due = [alarm for alarm in alarms if self._counts(alarm.detector) and step >= ends(alarm)]
    decision = hosts.exchange(self._decide(due[0].text) if due else {})[0]
    if TO in decision:
      self._begin([*self._rows(), {"step": step, **decision}])
    return warnings | decision

  def spared(self, step: int) -> tuple[int, ...]:
    """The checkpoints to keep for a rollback after this step: `to`, and the one that it becomes after healthy steps."""
    return (self.to, self._regular(step - self._config.rollout.ahead)) if self._config.guard.rollback else ()

  def stop(self, seen: Mapping[str, Any]) -> None:
    """Raises Collapsed if `seen`, what `see` has added to the row that is now written, says that the run must stop."""
    if STOPPED in seen:
      raise Collapsed(seen[STOPPED])

  def _rows(self) -> list[Mapping[str, Any]]:
    rows = metrics_lib.read_metrics(self._workdir) if hosts.is_first() else []
    if not self._config.guard.rollback:
      return rows
    # The first host decides, and the others only follow it: all columns of a long run would fill their devices.
    rollbacks = hosts.exchange([row for row in rows if TO in row])[0]
    return rows if hosts.is_first() else rollbacks

  def _begin(self, rows: list[Mapping[str, Any]]) -> None:
    """Begins to watch after these rows."""
    rollbacks = [row["step"] for row in rows if TO in row]
    self._number, self._back, self.rate = len(rollbacks), max(rollbacks, default=0), 0.5 ** len(rollbacks)
    self._watch, self.to = detectors.Watch(), self._back
    for row in lasting(rows):
      self._see(row)

  def _see(self, row: Mapping[str, Any]) -> list[detectors.Alarm]:
    alarms = self._watch.see(row)
    if not any(map(self._counts, self._watch.out_of_range)):
      # This step is healthy, and so are the weights that sampled it: those of the step before, or one more before it.
      self.to = self._regular(row["step"] - 1 - self._config.rollout.ahead)
    return alarms

  def _regular(self, step: int) -> int:
    """The last checkpoint until a step: of the last rollback, or by config.checkpoint.every.

    Others, of a run that was stopped in between, do not count: a run that was never stopped has none.
    """
    interval = self._config.checkpoint.every
    return max(self._back, step // interval * interval)

  def _counts(self, detector: detectors.Detector) -> bool:
    return detector.metric not in self._config.guard.ignored

  def _decide(self, reason: str) -> dict[str, Any]:
    guard, number = self._config.guard, self._number + 1
    if number > guard.most_rollbacks:
      return {
        STOPPED: f"{reason} The run has returned config.guard.most_rollbacks={self._number} times, each time with half "
        f"the learning rate, and collapses again, so it stops. Its last healthy weights are {self._workdir}/"
        f"checkpoints/{self.to}. Begin a new run with what is named above or a learning rate below "
        f"{self.rate * self._config.optimizer.learning_rate:g}; or raise most_rollbacks, and resume with "
        "--accept_changes."
      }
    rate = 0.5**number * self._config.optimizer.learning_rate
    message = f"Returned to the weights of step {self.to}, now with the learning rate {rate:g}: {reason}"
    return {TO: self.to, "rollback/number": number, "rollback/learning_rate": rate, WHY: message}
