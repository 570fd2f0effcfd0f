"""An empty folder for a command that begins with one, without removing what is somebody else's."""

import pathlib
import shutil

MARKER = ".ragrl_emptied"  # in the folders that were made here, and may be emptied again


def folder(path: pathlib.Path) -> pathlib.Path:
  """Makes the folder, without what an earlier call of the same kind left in it.

  Raises:
    ValueError: there is something in it and no marker of an earlier call, so its files are somebody else's; or it is
      no folder.
  """
  if path.exists() and not path.is_dir():
    raise ValueError(f"{path} is no folder: name a new one.")
  if path.is_dir() and any(path.iterdir()):
    if not (path / MARKER).is_file():
      raise ValueError(
        f"{path}: this folder holds files that this command did not make, and it begins with an empty "
        "one. Nothing was touched: name a new folder."
      )
    shutil.rmtree(path)
  path.mkdir(parents=True, exist_ok=True)
  (path / MARKER).write_text("The command that made this folder may remove everything in it.\n")
  return path
