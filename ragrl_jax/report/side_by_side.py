"""Writes a report of several runs: one self-contained page with shared charts and the runs' differences."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from ragrl_jax.report import page as page_lib, panels, rendering
from ragrl_jax.store import jsonl

FIGURES = (
  ("Steps", "step"),
  ("Reward", "reward"),
  ("Outcome", "outcome"),
  ("Held-out exact match", "evaluation/em"),
  ("Searches", "searches"),
  ("Response tokens", "response_tokens"),
  ("Tokens a second", "tokens_per_second"),
)


def write(workdirs: Sequence[str | os.PathLike], out: str | os.PathLike) -> pathlib.Path:
  """Writes the page of two or more runs to `out`, and returns the path.

  Raises:
    ValueError: one of the folders holds no run or is named twice, or a file in it is damaged.
  """
  page = rendering.runs(gather(workdirs))
  jsonl.write_text(out, page)
  return pathlib.Path(out)


def gather(workdirs: Sequence[str | os.PathLike]) -> dict[str, Any]:
  """The contents of the page as plain data."""
  names = distinct([pathlib.Path(workdir).resolve() for workdir in workdirs])
  runs_data = dict(zip(names, map(page_lib.read, workdirs)))
  searching = any(run_data["searching"] for run_data in runs_data.values())
  return {
    "runs": [run_data["run"] | {"name": name} for name, run_data in runs_data.items()],
    "figures": figures([run_data["rows"] for run_data in runs_data.values()], searching=searching),
    "settings": differing([dict(page_lib.flat(run_data["config"])) for run_data in runs_data.values()]),
    "times": times([panels.breakdown(run_data["rows"]) for run_data in runs_data.values()]),
    "curves": panels.curves({name: run_data["rows"] for name, run_data in runs_data.items()}, searching=searching),
  }


def distinct(folders: Sequence[pathlib.Path]) -> list[str]:
  """Names for the folders: the shortest ends of their paths that differ (seed_0 and seed_1, or a/seed_0 and b/seed_0).

  Raises:
    ValueError: a folder is given twice.
  """
  if len(set(folders)) < len(folders):
    twice = next(folder for folder in folders if folders.count(folder) > 1)
    raise ValueError(f"--workdir={twice} is given twice: name each run once.")
  for length in range(1, max(len(folder.parts) for folder in folders) + 1):
    names = ["/".join(folder.parts[-length:]) for folder in folders]
    if len(set(names)) == len(names):
      return names
  return list(map(str, folders))


def figures(runs: Sequence[panels.Rows], *, searching: bool) -> list[dict[str, Any]]:
  """[{"label", "values"}]: each run's last value of every figure that at least one run has.

  Searches are left out if no run has a retriever.
  """
  last = lambda rows, name: next((row[name] for row in reversed(rows) if row.get(name) is not None), None)
  rows_found = [(name, {"label": label, "values": [last(rows, name) for rows in runs]}) for label, name in FIGURES]
  return [
    line
    for name, line in rows_found
    if any(line["values"] if name == "searches" and not searching else [v is not None for v in line["values"]])
  ]


def differing(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """[{"path", "values"}]: the settings that differ between runs; None for a run without the setting, or with null."""
  paths = dict.fromkeys(path for config in configs for path in config)
  values = lambda path: [None if config.get(path) is None else page_lib.said(config[path]) for config in configs]
  lines = [{"path": path, "values": values(path)} for path in paths]
  return [line for line in lines if len(set(line["values"])) > 1]


def times(breakdowns: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
  """[{"name", "values"}]: median seconds of each part of a step for each run. The last entry is of whole steps."""
  names = dict.fromkeys(part["name"] for found in breakdowns if found for part in found["parts"])
  of = lambda found, name: next((part["median"] for part in found["parts"] if part["name"] == name), 0.0)
  lines = [{"name": name, "values": [of(found, name) if found else None for found in breakdowns]} for name in names]
  lines = [line for line in lines if any(line["values"])]  # few steps have evaluations and checkpoints
  totals = [found["median"] if found else None for found in breakdowns]
  return [*lines, {"name": "a whole step", "values": totals}] if lines else []
