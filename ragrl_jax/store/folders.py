"""Folders of results: a command writes neither into another one's results nor over a user's files."""

import atexit
import json
import os
import pathlib

RUN, EVALUATION, SCORES, INDEX = "a run", "an evaluation", "scores", "an index"

# What a folder holds → the files by which it is recognised. `ragrl score` writes scores; an evaluation's are its own.
MARKS = {
  RUN: ("checkpoints", "metrics.jsonl"),
  EVALUATION: ("settings.json", "seed_0/settings.json"),
  SCORES: ("predictions.jsonl", "metrics.json"),
  INDEX: ("index.json", "build.json"),
}

MARKER = ".ragrl_made"  # lists the files that a command wrote into its empty folder, once it has ended


def refuse_unwritable(folder: str | os.PathLike, flag: str = "--out") -> None:
  """Refuses a folder that cannot be made or written to, before the work whose results it gets.

  Raises:
    ValueError: a part of its path is a file, or this user has no right to write there.
  """
  path = pathlib.Path(folder).absolute()
  nearest = next(one for one in (path, *path.parents) if one.exists())
  if not nearest.is_dir():
    raise ValueError(f"{flag}={folder}: {nearest} is a file, and it must be a folder: name another place ({flag}).")
  if not os.access(nearest, os.W_OK | os.X_OK):
    raise ValueError(f"{flag}={folder}: this user cannot write to {nearest}: allow it, or name another place ({flag}).")


def refuse_others(folder: str | os.PathLike, *own: str, flag: str = "--out") -> None:
  """Refuses to write to a folder that holds results of another kind, or that cannot be written to.

  Args:
    *own: the keys of MARKS that the folder may hold.

  Raises:
    ValueError: the folder holds something else, or see `refuse_unwritable`.
  """
  refuse_unwritable(folder, flag)
  found_of = {kind: [mark for mark in marks if (pathlib.Path(folder) / mark).exists()] for kind, marks in MARKS.items()}
  for kind, found in found_of.items():
    if found and kind not in own and not (kind == SCORES and found_of[EVALUATION]):
      raise ValueError(
        f"{flag}={folder}: this folder holds {kind} ({found[0]}), which this command would overwrite or mix with files "
        f"of its own. Nothing was written: name another folder ({flag})."
      )


def empty(path: pathlib.Path) -> pathlib.Path:
  """Makes an empty folder for a command's results: removes only files that an earlier call wrote. Returns its path.

  The marker names each file with its size and time of change. A file that the marker does not name, or names
  otherwise, is somebody's work: then nothing is removed. A copied folder has other times, and its marker names another
  folder.

  Raises:
    ValueError: the folder is a symbolic link, is no folder, or has a file that no earlier call wrote.
  """
  if path.is_symlink():
    raise ValueError(f"{path} is a symbolic link: name the folder itself, or a new one.")
  if path.exists() and not path.is_dir():
    raise ValueError(f"{path} is not a folder: name a new one.")
  path.mkdir(parents=True, exist_ok=True)
  own_files, files_now = _marked(path), _files(path)
  if foreign := sorted(name for name in files_now if name != MARKER and files_now[name] != own_files.get(name)):
    raise ValueError(
      f"{path}: {foreign[0]} (of {len(foreign)} such files) was not written by this command, or was changed since, "
      "and it needs an empty folder. Nothing was touched: name a new folder, or remove this one if a killed call has "
      "written all of it."
    )
  for name in files_now:
    (path / name).unlink()
  for inner, _, _ in os.walk(path, topdown=False):
    if inner != str(path):
      os.rmdir(inner)
  keep(path)
  atexit.register(keep, path)
  return path


def keep(path: pathlib.Path) -> None:
  """Lists the folder's files as written by the command. It is called when the command ends, also after an error."""
  if not path.is_dir():
    return
  files = {name: mark for name, mark in _files(path).items() if name != MARKER}
  record = dict(folder=str(path.resolve()), files=files)
  (path / MARKER).write_text(json.dumps(record, indent=0))


def _marked(path: pathlib.Path) -> dict[str, list[int]]:
  try:
    stored = json.loads((path / MARKER).read_text())
    return stored["files"] if stored["folder"] == str(path.resolve()) else {}
  except (OSError, ValueError, TypeError, KeyError):  # no marker, or not one of ours: no file is known
    return {}


def _files(path: pathlib.Path) -> dict[str, list[int]]:
  """[size in bytes, time of change in ns] of each file and link under the folder, by relative name."""
  result = {}
  for inner, folders, names in os.walk(path):
    for name in [*names, *(one for one in folders if os.path.islink(os.path.join(inner, one)))]:
      one = pathlib.Path(inner, name)
      status = one.lstat()
      result[one.relative_to(path).as_posix()] = [status.st_size, status.st_mtime_ns]
  return result
