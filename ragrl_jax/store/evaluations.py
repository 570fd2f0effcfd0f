"""Answers to held-out questions during a run: `evaluations/step_000012.jsonl`, one line per question."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from ragrl_jax.store import jsonl, step_files

FOLDER = "evaluations"


def write(workdir: pathlib.Path, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes the rows of one evaluation (`evaluation.harness.prediction`); a killed call leaves the file as it was."""
  jsonl.write(step_files.path(pathlib.Path(workdir) / FOLDER, step), rows)


def steps(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  """The evaluated steps of a run, in order, with their files."""
  return step_files.steps(pathlib.Path(workdir) / FOLDER)


def cut(workdir: pathlib.Path, restored: int | None) -> None:
  """Removes the answers of steps after the restored one; all of them if it is None."""
  step_files.cut(pathlib.Path(workdir) / FOLDER, restored)
