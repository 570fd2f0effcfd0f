"""Files of a run, one per step: FOLDER/step_000012.jsonl."""

import pathlib
import re

_NAME = re.compile(r"step_(\d+)\.jsonl")


def path(folder: pathlib.Path, step: int) -> pathlib.Path:
  """The file of a step."""
  return folder / f"step_{step:06d}.jsonl"


def steps(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """The steps that have a file, in order, with their files."""
  found = {int(match[1]): file for file in folder.glob("step_*.jsonl") if (match := _NAME.fullmatch(file.name))}
  return dict(sorted(found.items()))


def cut(folder: pathlib.Path, restored: int | None) -> None:
  """Removes the files of steps after the restored one (all, if None): the resumed run writes them again."""
  for step, file in steps(folder).items():
    if restored is None or step > restored:
      file.unlink()
