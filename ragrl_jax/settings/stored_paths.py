"""Paths in the files of a folder of results: found again from another folder, and after the folder was moved or copied.

Such a folder keeps in places.json where it was and where relative paths began when its files were written, and its
inode, which a copy or what someone else has made does not have.
"""

import fnmatch
import glob
import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

FILE = "places.json"
SETTINGS = tuple(
  "data.train data.hard data.evaluate data.evidence model.path model.lora.path loss.teacher.path prompting.tokenizer "
  "retrieval.index retrieval.query_encoder judge.path judge.cache judges.*.path judges.*.cache endpoint.cache".split()
)
WITHHELD = "of a copied run: "  # before what `is_own` alone may use; whoever names the setting replaces it
LOCAL = ("data.train", "data.hard", "data.evaluate", "data.evidence", "retrieval.index")  # never a name on the hub


# A database's address (retrieval/databases.py), and the paths in it: of a local file and of an encoder.
_ADDRESS = re.compile(r"(milvus|opensearch|elasticsearch):")
_PATHS = re.compile(r"(?<=^milvus:)(?!https?://)[^?]*?\.db(?=[/?]|$)|(?<=[?&]encoder=)[^&]*")


def note(folder: str | os.PathLike) -> None:
  """Notes the folder's own place, and that of this process, from which relative paths begin."""
  text = json.dumps(dict(folder=os.path.realpath(folder), began=os.getcwd(), inode=os.stat(folder).st_ino), indent=1)
  part = pathlib.Path(folder) / f"{FILE}.part"
  part.write_text(text + "\n", encoding="utf-8")
  part.replace(pathlib.Path(folder) / FILE)


def is_own(folder: str | os.PathLike) -> bool:
  """Whether the folder's files were written in it, also under another name; of a copy False."""
  return _noted(folder).get("inode") == os.stat(folder).st_ino


def found(value: str, folder: str | os.PathLike, *, local: bool = False) -> str:
  """A stored path as it must be named now.

  It is looked for where it was as seen from the folder, then at its old place, then as it is written.

  Args:
    value: a path, a glob, "file:PATH", FILE.py:NAME, or several of these with commas between them. Addresses, and
      folders without places.json, leave it unchanged.
    folder: the folder whose file holds the value.
    local: the value is a path and no name: what is nowhere has its old place, for the message that it is missing.
  """
  then = _noted(folder)
  return _named(value, folder, then, local=local) if then else value


def _noted(folder: str | os.PathLike) -> dict[str, Any]:
  noted = pathlib.Path(folder) / FILE
  return json.loads(noted.read_text(encoding="utf-8")) if noted.is_file() else {}


def _named(value: str, folder: str | os.PathLike, then: Mapping[str, Any], *, local: bool) -> str:
  if not value:
    return value
  path = None if ".py:" in value else _found(value, folder, then)  # a file may have commas in its name
  if path is not None:
    return path
  missing = lambda part: os.path.join(then["began"], part) if local and not part.startswith("hf:") else part
  return ",".join(_found(part, folder, then) or missing(part) for part in value.split(",") if part)


def in_address(value: str, change: Callable[[str], str]) -> str | None:
  """A database's address with other local paths in it; None if it is no such address."""
  return _PATHS.sub(lambda path: change(path[0]), value) if _ADDRESS.match(value) else None


def in_settings(values: dict[str, Any], folder: str | os.PathLike) -> dict[str, Any]:
  """The settings of a folder's config.json, as nested dicts, with all paths as they must be named now."""
  then = _noted(folder)
  return _in_settings(values, folder, then, "") if then else values


def _in_settings(
  values: Mapping[str, Any], folder: str | os.PathLike, then: Mapping[str, Any], within: str
) -> dict[str, Any]:
  result = {}
  for name, value in values.items():
    path = f"{within}{name}"
    if isinstance(value, Mapping):
      value = _in_settings(value, folder, then, f"{path}.")
    elif isinstance(value, str):
      matches = any(fnmatch.fnmatchcase(path, pattern) for pattern in SETTINGS)
      if matches or value.startswith("file:") or (path.startswith("switches.") and ".py:" in value):
        value = _named(value, folder, then, local=path in LOCAL)
    result[name] = value
  return result


def _found(part: str, folder: str | os.PathLike, then: Mapping[str, Any]) -> str | None:
  """None if it is nowhere."""
  if (address := in_address(part, lambda path: _found(path, folder, then) or path)) is not None:
    return address
  if "://" in part:
    return part
  before = "file:" * part.startswith("file:")
  path, python, name = part.lstrip().removeprefix("file:").partition(".py:")
  path += python[:3]
  old = os.path.join(then["began"], os.path.expanduser(path))
  candidate = os.path.normpath(os.path.join(os.path.realpath(folder), os.path.relpath(old, then["folder"])))
  for place in (candidate, old, path):
    if os.path.exists(place) or (glob.has_magic(place) and glob.glob(place)):
      same = os.path.realpath(path) == os.path.realpath(place)
      return before + (path if same else place) + python[3:] + name
  return None
