"""Says what a folder already holds, so that no command writes into the results of another one."""

import os
import pathlib

RUN, EVALUATION, SCORES, INDEX = "a run", "an evaluation", "scores", "an index"

# What a folder holds → the files by which it is recognised. `ragrl score` writes scores; an evaluation has them, too.
MARKS = {
  RUN: ("checkpoints", "metrics.jsonl"),
  EVALUATION: ("settings.json", "seed_0/settings.json"),
  SCORES: ("predictions.jsonl", "metrics.json"),
  INDEX: ("index.json", "build.json"),
}


def refuse_others(folder: str | os.PathLike, *own: str, flag: str = "--out") -> None:
  """Refuses to write to a folder that holds results of another kind.

  Args:
    folder: the folder; it need not exist.
    *own: the keys of MARKS that the folder may hold.
    flag: the flag that names the folder.

  Raises:
    ValueError: the folder holds something else.
  """
  for kind, marks in MARKS.items():
    found = [mark for mark in marks if (pathlib.Path(folder) / mark).exists()]
    if found and kind not in own:
      raise ValueError(
        f"{flag}={folder}: this folder holds {kind} ({found[0]}), which this command would overwrite or mix with files "
        f"of its own. Nothing was written: name another folder ({flag})."
      )
