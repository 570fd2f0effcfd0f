"""Files of a run, one per step: FOLDER/step_000012.jsonl, of `episodes/` and `evaluations/`."""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ragrl_jax.store import jsonl

EVALUATIONS = "evaluations"  # folder of the answers to held-out questions (`evaluation.harness.prediction`)
_NAME = re.compile(r"step_(\d+)\.jsonl")


def write(folder: pathlib.Path, step: int, rows: Iterable[Mapping[str, Any]]) -> pathlib.Path:
  """Writes a step's rows, whole or not at all. Returns the file's path."""
  path = folder / f"step_{step:06d}.jsonl"
  jsonl.write(path, rows)
  return path


def steps(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """The steps that have a file, in order, with their files."""
  found = {int(match[1]): file for file in folder.glob("step_*.jsonl") if (match := _NAME.fullmatch(file.name))}
  return dict(sorted(found.items()))


def cut(folder: pathlib.Path, restored: int | None) -> None:
  """Removes the files of steps after the restored one (all, if None), and unfinished ones: they are written again."""
  for part in folder.glob(".step_*.part"):
    part.unlink()
  for step, file in steps(folder).items():
    if restored is None or step > restored:
      file.unlink()
