"""Makes an empty folder for a command's results, without removing files that the command did not make."""

import pathlib
import shutil

MARKER = ".ragrl_emptied"  # marks a folder that was made here and may be emptied again


def folder(path: pathlib.Path) -> pathlib.Path:
  """Makes the folder, or empties it if an earlier call made it. Returns its path.

  Raises:
    ValueError: the folder has files but no marker of an earlier call; or the path is not a folder.
  """
  if path.exists() and not path.is_dir():
    raise ValueError(f"{path} is not a folder: name a new one.")
  if path.is_dir() and any(path.iterdir()):
    if not (path / MARKER).is_file():
      raise ValueError(
        f"{path}: this folder holds files that this command did not make, and the command needs an empty "
        "one. Nothing was touched: name a new folder."
      )
    shutil.rmtree(path)
  path.mkdir(parents=True, exist_ok=True)
  (path / MARKER).write_text("The command that made this folder may remove everything in it.\n")
  return path
