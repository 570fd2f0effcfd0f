"""Writes the report of a run: one self-contained page with summary, curves, time breakdown and episode browser."""

import datetime
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import config as config_lib
from ragrl_jax.report import excerpt, metric_tables, panels, question_rows, rendering
from ragrl_jax.run import detectors, rollback
from ragrl_jax.settings import stored_paths
from ragrl_jax.store import jsonl, metrics, versions

FIGURES = (("em", "Exact match"), ("searches", "Searches per question"), ("wasted_searches", "Wasted searches"))


def write_report(
  workdir: str | os.PathLike, out: str | os.PathLike | None = None, *, max_bytes: int = excerpt.MAX_BYTES
) -> pathlib.Path:
  """Writes the page of a finished or running run.

  Args:
    workdir: the folder with config.json and metrics.jsonl, and optionally episodes/, evaluations/ and summary.json.
    out: the file to write; `workdir/report.html` if None.
    max_bytes: size of the episodes in the page; see `excerpt.excerpt`.

  Raises:
    ValueError: the folder holds no run, or a file in it is damaged (the message names file and line).
  """
  page = rendering.run(gather(workdir, max_bytes=max_bytes))
  out = pathlib.Path(out) if out is not None else pathlib.Path(workdir) / "report.html"
  jsonl.write_text(out, page)
  return out


def gather(workdir: str | os.PathLike, **limits: int) -> dict[str, Any]:
  """The contents of the page as plain data. `limits` are keyword arguments of `excerpt.excerpt`."""
  run_data = read(workdir)
  rows, summary = run_data["rows"], run_data["summary"]
  held_out = metric_tables.held_out(rows)
  episodes = excerpt.excerpt(workdir, **limits)
  rows_by_step = {row["step"]: row for row in rows}
  for step in episodes["steps"]:  # means over all hosts' episodes, as in the curves; the log has only the first host's
    row = rows_by_step.get(step["step"], {})
    step |= {name: row[name] for name in ("reward", "outcome") if row.get(name) is not None}
  for warning in run_data["run"]["warnings"]:
    if "alarm" in warning:
      warning["episode"] = _showing(warning["alarm"], episodes["steps"])
  measured = None if "after" in summary else [one and one[0] for one in held_out]
  sides = [one and one[1] for one in held_out] if measured is not None else [summary.get("before"), summary["after"]]
  return {
    "run": run_data["run"],
    "headline": headline(*sides),
    "table": metric_tables.comparison(*sides),
    "measured": measured,
    "curves": panels.curves({run_data["run"]["name"]: rows}, searching=run_data["searching"]),
    "time": panels.breakdown(rows),
    "answers": question_rows.gather_changes(workdir),
    "episodes": episodes,
    "settings": settings(run_data["config"]),
  }


def read(workdir: str | os.PathLike) -> dict[str, Any]:
  """Reads a run's files: {"run": the page's header, "config", "summary", "rows", "searching"}.

  Raises:
    ValueError: see `write_report`.
  """
  workdir = pathlib.Path(workdir)
  config = jsonl.read_object(workdir / "config.json")
  rows = metrics.read_metrics(workdir)
  if not rows and not config_lib.is_run(workdir):
    raise ValueError(
      f"{workdir} holds neither a run's config.json nor {metrics.FILE}: name a run's or an evaluation's folder "
      "(--workdir)."
    )
  summary = jsonl.read_object(workdir / "summary.json")
  return {
    "run": _run(workdir, config, rows, summary),
    "config": config,
    "summary": summary,
    "rows": rows,
    "searching": bool((config.get("retrieval") or {"index": True}).get("index")),
  }


def headline(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[dict[str, Any]]:
  """The headline figures, [{"label", "before", "after"}], of the metrics of two evaluations; None: there is none."""
  result = []
  for name, label in FIGURES:
    values = [(side or {}).get(name) for side in (before, after)]
    if any(values) or (name == "em" and values[1] is not None):  # no searches of a recipe that never searches
      result.append({"label": label, "before": values[0], "after": values[1]})
  return result


def settings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Every setting as {"path", "value", "default", "changed"}.

  A setting without a default is a switch of the recipe. It counts as changed unless it is null, which is the preset's.
  """
  defaults = dict(flat(config_lib.default_config().to_dict()))
  return [
    {
      "path": path,
      "value": said(value),
      "changed": defaults.get(path) != value,
      "default": said(defaults[path]) if path in defaults else "",
    }
    for path, value in flat(config)
    if path != config_lib.OBJECTIVE
  ]


def said(value: Any) -> str:
  """A setting's value as JSON text."""
  return json.dumps(value, ensure_ascii=False)


def flat(config: Mapping[str, Any], prefix: str = ""):
  """Yields (dotted path, value) for every setting."""
  for name, value in config.items():
    if isinstance(value, Mapping) and value:
      yield from flat(value, f"{prefix}{name}.")
    else:
      yield prefix + name, list(value) if isinstance(value, tuple) else value


def _run(workdir: pathlib.Path, config, rows, summary) -> dict[str, Any]:
  """The page's header: recipe, progress and duration. The duration is the sum of the steps' seconds.

  Wall-clock times would be wrong for resumed runs, and if the clock was set back.
  """
  times = [row["time"] for row in rows]
  bad = [row for row in rows if row.get("nulls")]
  gaps = sorted({name for row in bad for name, value in row.items() if value is None})
  cost = metrics.cost_of_rows(rows, (config.get("log") or {}).get("price_per_hour") or 0.0)
  return {
    "name": workdir.resolve().name,
    "recipe": config.get("recipe", ""),
    "preset": config.get("preset", ""),
    "fine_tuned": config.get(config_lib.OBJECTIVE) == "sft",  # such a run has no episodes
    "seed": config.get("seed", summary.get("seed")),
    "steps": rows[-1]["step"] if rows else 0,
    "of_steps": config.get("steps"),
    "model": named(model := model_of(config.get("model") or {}), workdir),
    "model_path": model,
    "began": clock(times[0]) if times else "",
    "seconds": summary.get("seconds") or 3600 * cost.get("cost/hours", 0.0) or None,
    "devices": next((row["devices"] for row in reversed(versions.read(workdir)) if row.get("devices")), ""),
    "cost": cost,
    "written": clock(time.time()),
    "nulls": {"rows": len(bad), "first": bad[0]["step"], "names": gaps} if bad else None,
    "warnings": _warnings(rows),
  }


def _warnings(rows) -> list[dict[str, Any]]:
  """The rollbacks, what moved, then the run's other warnings, each once.

  {"text", "first": its first step, "times": number of steps, "over": the last of them if it is over, "episode"}; what
  moved has its last "alarm" too.
  """
  first_at = lambda text, step: {"text": str(text), "first": step, "times": 1, "over": None, "episode": None}
  alarms_of: dict[Any, dict[str, Any]] = {}
  result: dict[str, dict[str, Any]] = {}
  last: list[detectors.Alarm] = []
  for row, last in rollback.replayed(rows):
    for alarm in last:
      entry = alarms_of.setdefault((alarm.metric, alarm.detector), {"first": alarm.since, "times": 0})
      entry |= {"text": alarm.text, "times": entry["times"] + 1, "alarm": alarm}
    for name, text in row.items():
      if name.startswith("warning/") and text:
        result.setdefault(name, first_at(text, row["step"]) | {"times": 0})["times"] += 1
  for moved_one in alarms_of.values():
    result.pop(f"warning/{moved_one['alarm'].metric}", None)
    moved_one["over"] = None if moved_one["alarm"] in last else moved_one["alarm"].step
  rollbacks = [first_at(row[rollback.WHY], row["step"]) for row in rows if rollback.WHY in row]
  return [*rollbacks, *alarms_of.values(), *result.values()]


def _showing(alarm: detectors.Alarm, steps: Sequence[Mapping[str, Any]]) -> str | None:
  """The address on the page of an episode that shows the alarm; None if the page has none of its steps."""
  return alarm.shown(
    (sample["signs"], f"#episode-{step['step']}-{group}-{sample['sample']}")
    for step in steps
    if alarm.since <= step["step"] <= alarm.step
    for group, one in enumerate(step["groups"])
    for sample in one["samples"] or ()
  )


def model_of(model: Mapping[str, Any]) -> str:
  """The model of a run's config: its folder, or a new one's shape; "" if the config says neither."""
  if model.get("path"):
    return str(model["path"])
  shape = model.get("shape") or {}
  return f"{shape['family']}, {shape['num_layers']} layers of {shape['d_model']}" if "d_model" in shape else ""


def named(model: str, workdir: pathlib.Path) -> str:
  """A model of `model_of` in few words: a folder's name; for a run's model, what that run began with and the run."""
  path = pathlib.Path(model)
  if path.name != "model":
    return path.name
  run = pathlib.Path(stored_paths.found(str(path.parent), workdir))
  before = model_of(jsonl.read_object(run / "config.json").get("model") or {})
  return f"{named(before, run)}, trained in {run.name}" if before else "/".join(path.parts[-2:])


def clock(seconds: float) -> str:
  """A point in time in words."""
  when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  return f"{when.day} {when:%B %Y, %H:%M UTC}"
