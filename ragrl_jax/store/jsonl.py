"""JSON lines that stay valid: what metrics.jsonl, episodes/ and predictions.jsonl have in common."""

import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

# Separators that JSON allows in text but str.splitlines takes for line ends, and halves of pairs that UTF-8 lacks.
_UNSAFE = re.compile("[\u2028\u2029\ud800-\udfff]")
_PLAIN = {int, str, bool, type(None)}


def plain(value: Any) -> Any:
  """The value as JSON knows it: arrays and tuples become lists, NaN and infinities None.

  A float32 gets the fewest digits that give the same float32 back (0.1, not 0.10000000149011612).
  """
  if value is None or isinstance(value, str | bool | int):
    return value
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, Mapping):
    return {str(key): plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple | set | frozenset):
    # Token ids by the million: nothing to do for what JSON knows already.
    return list(value) if set(map(type, value)) <= _PLAIN else [plain(item) for item in value]
  array = np.asarray(value)
  if array.dtype == object:
    raise ValueError(f"a {type(value).__name__} cannot be logged: give numbers, text, lists or mappings of them.")
  if array.dtype.kind in "fV" and array.dtype.itemsize <= 4:  # V: bfloat16, to NumPy
    array = array.astype(np.float32)
    shortest = array.astype(str).astype(np.float64)
    return np.where(np.isfinite(array), shortest, None).tolist()
  return plain(array.tolist())


def line(row: Mapping[str, Any]) -> str:
  """One row as one line of strict JSON (no NaN, no raw line separators), newline included."""
  return escaped(row, _UNSAFE) + "\n"


def escaped(value: Any, signs: re.Pattern[str]) -> str:
  """Compact strict JSON in which these signs, which may stand in strings only, are written as \\uXXXX."""
  text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
  return signs.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def read(path: str | os.PathLike, *, torn_end: bool = False) -> Iterator[dict[str, Any]]:
  """Yields the rows of a file.

  Args:
    path: the file.
    torn_end: skip a last line that a kill left unfinished.

  Raises:
    ValueError: a line that is not a JSON object; it names file and line.
  """
  for _, row in _offsets(path, torn_end=torn_end):
    yield row


def _offsets(path: str | os.PathLike, *, torn_end: bool) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields (byte offset of the line, row)."""
  offset = 0
  with open(path, "rb") as file:
    for number, raw in enumerate(file, start=1):
      whole = raw.endswith(b"\n")
      try:
        row = json.loads(raw)
      except ValueError as error:
        if torn_end and not whole:
          return
        raise ValueError(f"{path}:{number}: not a JSON object ({error}); mend or delete the line.") from error
      if not isinstance(row, dict):
        raise ValueError(f"{path}:{number}: a {type(row).__name__}, where a JSON object must be; delete the line.")
      # A line without its newline was still being written, even if what stands there happens to parse.
      if torn_end and not whole:
        return
      yield offset, row
      offset += len(raw)


def repair(path: str | os.PathLike, *, keep=lambda row: True) -> list[dict[str, Any]]:
  """Cuts a torn last line, and everything from the first row that is not to be kept. Returns the rows that stay."""
  path = pathlib.Path(path)
  if not path.exists():
    return []
  rows, end = [], 0
  for offset, row in _offsets(path, torn_end=True):
    end = offset
    if not keep(row):
      break
    rows.append(row)
  else:
    # All kept: cut only what follows the last newline.
    end = path.read_bytes().rfind(b"\n") + 1
  os.truncate(path, end)
  return rows


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
  """Has the system's complaint about what the block writes name the file: of a full disk it says no more than that."""
  try:
    yield
  except OSError as error:
    if error.filename is not None:
      raise
    said = f"{error.strerror}: mend that (make room, say), then start the same command again"
    raise OSError(error.errno, said, str(path)) from None


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Gives a temporary path beside `path`; when the block ends well it becomes `path` in one move, else it is gone."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f".{path.name}.{os.getpid()}.part")
  try:
    with naming(path):
      yield part
    os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)


def write(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes all rows, or, when killed half-way, nothing."""
  with whole(path) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
    file.writelines(line(row) for row in rows)
