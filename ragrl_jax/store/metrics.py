"""Writes and reads the metrics of a run: metrics.jsonl, and the trackers (`trackers.py`). Sums up its cost."""

import collections
import contextlib
import json
import os
import pathlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ragrl_jax.settings import Settings
from ragrl_jax.store import changes, jsonl, trackers as trackers_lib

FILE = "metrics.jsonl"


class MetricWriter(contextlib.AbstractContextManager):
  """Appends one JSON object per step to metrics.jsonl, and hands the same numbers to the run's trackers.

  A row is `{"step": n, "time": seconds since 1970, …}`. `step` is the number of training steps done when the row was
  written, so a measurement before training has step 0. A value that is not finite is written as null, and `nulls`
  counts such values. `untracked` counts the rows since this start that dropped trackers lack. Keys of nested mappings
  are joined by "/". Text goes to the JSON file only.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    restored: int | None = None,
    trackers: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    silent: bool = False,
  ):
    """Opens the run's files and removes the rows that a killed run wrote after its last checkpoint.

    Args:
      restored: the step that was restored. Later rows are removed, since the run writes them again. None means a new
        run: all old rows and event files are removed.
      trackers: keys of `trackers.KINDS`.
      silent: touch no file, because another host of the run writes.
    """
    self._last, self._file, self._trackers = None, None, None
    if silent:
      return
    self.path = pathlib.Path(workdir) / FILE
    self.path.parent.mkdir(parents=True, exist_ok=True)
    rows_kept = jsonl.repair(self.path, keep=lambda row: restored is not None and row["step"] <= restored)
    self._last = rows_kept[-1]["step"] if rows_kept else None
    self._file = open(self.path, "ab", buffering=0)
    self._trackers = trackers_lib.Trackers(trackers, self.path.parent, restored=restored, settings=settings or {})

  @classmethod
  def of_run(
    cls, workdir: str | os.PathLike, config: Settings, *, restored: int | None, silent: bool
  ) -> "MetricWriter":
    """The writer with the trackers that config.log turns on; they get the settings without credentials."""
    names = trackers_lib.chosen(config.log)
    return cls(workdir, restored=restored, trackers=names, settings=changes.values(config), silent=silent)

  def write(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a step's row, and returns it as given. All metrics of a step, an evaluation's too, belong in one call.

    Raises:
      ValueError: a step at or before the last one, or a value that is neither a number nor text.
      OSError: the disk is full. The next start removes an unfinished row.
    """
    if self._last is not None and step <= self._last:
      raise ValueError(
        f"metrics of step {step} after those of step {self._last}: a step has one row in {self.path}; "
        "collect its values and write them once."
      )
    if self._file is None or self._trackers is None:
      return dict(step=step, **metrics)
    given = dict(jsonl.flat(metrics, "/"))
    values = {name: _scalar(name, value) for name, value in given.items()}
    row = {"step": int(step), "time": round(time.time(), 3), **values}
    if nulls := sum(value is None and given[name] is not None for name, value in values.items()):
      row["nulls"] = nulls
    if untracked := self._trackers.lacking:
      row["untracked"] = untracked
    jsonl.append(self._file, row)
    self._last = step
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    self._trackers.write(row["step"], row["time"], numbers)
    return dict(step=step, **metrics)

  def close(self) -> None:
    """Closes the files."""
    if self._file is not None:
      self._file.close()
    if self._trackers is not None:
      self._trackers.close()

  def __exit__(self, *_) -> None:
    self.close()


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
  """The rows of a run, oldest first; [] if there is no file. An unfinished last line is skipped."""
  path = pathlib.Path(workdir) / FILE
  return list(jsonl.read(path, torn_end=True)) if path.exists() else []


def rows_after(workdir: str | os.PathLike, start: int) -> tuple[list[dict[str, Any]], int]:
  """(the rows from this byte of a run's file on, where they end). An unfinished last line is skipped."""
  with open(pathlib.Path(workdir) / FILE, "rb") as file:
    file.seek(start)
    lines, end, _ = file.read().rpartition(b"\n")
  return [json.loads(line) for line in lines.split(b"\n") if line], start + len(lines) + len(end)


def _scalar(name: str, value: Any) -> int | float | str | None:
  """A Python scalar from a Python, NumPy or JAX scalar; None if it is not finite."""
  if name in ("step", "time", "nulls", "untracked"):
    raise ValueError(f"metric {name!r}: the writer uses this name itself; give the metric another name.")
  if value is None or isinstance(value, str):
    return value
  array = np.asarray(value)
  if array.ndim or array.dtype.kind not in "buifV":
    raise ValueError(f"metric {name!r} is of type {array.dtype} and shape {array.shape}: give one number, or text.")
  return jsonl.plain(array)


COST = "cost/"
TOKENS = {"tokens": "trained_tokens", "engine/sampled_tokens": "sampled_tokens"}  # column of a row → what is summed


def cost_of_rows(rows: Iterable[Mapping[str, Any]], price_per_hour: float = 0.0) -> dict[str, float]:
  """{"cost/hours", "cost/hours/PHASE", "cost/trained_tokens", "cost/sampled_tokens", "cost/price"}: what is known.

  Hours are those of the steps, evaluations and checkpoints, without starts.
  """
  hours, tokens = collections.Counter(), collections.Counter()
  for row in rows:
    for name, value in row.items():
      if name.startswith("seconds/") and name != "seconds/step" and value:
        hours[name.removeprefix("seconds/")] += value / 3600
      elif name in TOKENS and value:
        tokens[TOKENS[name]] += value
  costs = {f"hours/{phase}": spent for phase, spent in hours.items()} | dict(tokens)
  if hours:
    costs["hours"] = sum(hours.values())
    costs |= {"price": costs["hours"] * price_per_hour} if price_per_hour else {}
  return {COST + name: float(value) for name, value in costs.items()}
