"""Answers to held-out questions during a run: `evaluations/step_000012.jsonl`, one line per question."""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ragrl_jax.store import jsonl

FOLDER = "evaluations"
_NAME = re.compile(r"step_(\d+)\.jsonl")


def write(workdir: pathlib.Path, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes the rows of one evaluation (`evaluation.harness.prediction`); a kill leaves the whole file or none."""
  jsonl.write(pathlib.Path(workdir) / FOLDER / f"step_{step:06d}.jsonl", rows)


def steps(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  """The evaluated steps of a run, in order, with their files."""
  files = (pathlib.Path(workdir) / FOLDER).glob("step_*.jsonl")
  found = {int(match[1]): file for file in files if (match := _NAME.fullmatch(file.name))}
  return dict(sorted(found.items()))
