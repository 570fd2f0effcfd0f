"""Makes an empty folder for a command's results, and removes only files that an earlier call of the command wrote."""

import atexit
import json
import os
import pathlib

MARKER = ".ragrl_made"  # lists the files that the command wrote, once it has ended


def folder(path: pathlib.Path) -> pathlib.Path:
  """Makes the folder; removes the files of an earlier call from it. Returns its path.

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
  written, found = _marked(path), _files(path)
  if foreign := sorted(name for name in found if name != MARKER and found[name] != written.get(name)):
    raise ValueError(
      f"{path}: {foreign[0]} (of {len(foreign)} such files) was not written by this command, or was changed since, "
      "and it needs an empty folder. Nothing was touched: name a new folder."
    )
  for name in found:
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
  made = dict(folder=str(path.resolve()), files=files)
  (path / MARKER).write_text(json.dumps(made, indent=0))


def _marked(path: pathlib.Path) -> dict[str, list[int]]:
  try:
    said = json.loads((path / MARKER).read_text())
    return said["files"] if said["folder"] == str(path.resolve()) else {}
  except (OSError, ValueError, TypeError, KeyError):  # no marker, or not one of ours: no file is known
    return {}


def _files(path: pathlib.Path) -> dict[str, list[int]]:
  """[size in bytes, time of change in ns] of each file and link under the folder, by relative name."""
  found = {}
  for inner, folders, names in os.walk(path):
    for name in [*names, *(one for one in folders if os.path.islink(os.path.join(inner, one)))]:
      one = pathlib.Path(inner, name)
      told = one.lstat()
      found[one.relative_to(path).as_posix()] = [told.st_size, told.st_mtime_ns]
  return found
