"""JSON lines that are always valid: for metrics.jsonl, predictions.jsonl, and the files of steps in episodes/."""

import contextlib
import errno
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

# Separators that JSON allows in strings but str.splitlines treats as line ends, and lone surrogates, which UTF-8 lacks.
_UNSAFE = re.compile("[\u2028\u2029\ud800-\udfff]")
_PLAIN = {int, str, bool, type(None)}


def plain(value: Any) -> Any:
  """The value as JSON values: arrays and tuples become lists, NaN and infinities None.

  A float32 is written with the fewest digits that identify it (0.1, not 0.10000000149011612).

  Raises:
    ValueError: a value that is not a number, text, list or mapping.
  """
  if value is None or isinstance(value, str | bool | int):
    return value
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, Mapping):
    return {str(key): plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple | set | frozenset):
    # A fast path: there are millions of token ids, and JSON has integers.
    return list(value) if set(map(type, value)) <= _PLAIN else [plain(item) for item in value]
  array = np.asarray(value)
  if array.dtype == object:
    raise ValueError(f"a {type(value).__name__} cannot be logged: give numbers, text, lists or mappings of them.")
  if array.dtype.kind in "fV" and array.dtype.itemsize <= 4:  # NumPy's kind of bfloat16 is V
    array = array.astype(np.float32)
    shortest = array.astype(str).astype(np.float64)
    return np.where(np.isfinite(array), shortest, None).tolist()
  return plain(array.tolist())


def flat(values: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields (name, value) of nested mappings; their keys are joined by the separator."""
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from flat(value, separator, f"{prefix}{name}{separator}")
    else:
      yield f"{prefix}{name}", value


def line(row: Mapping[str, Any]) -> str:
  """One row as one line of strict JSON (no NaN, no raw line separators), newline included."""
  return escaped(row, _UNSAFE) + "\n"


def escaped(value: Any, signs: re.Pattern[str]) -> str:
  """Compact strict JSON with these characters escaped as \\uXXXX; they may occur in strings only."""
  text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
  return signs.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def read(path: str | os.PathLike, *, torn_end: bool = False) -> Iterator[dict[str, Any]]:
  """Yields the rows of a file. `torn_end`: skip an unfinished last line, which a killed process may leave.

  Raises:
    ValueError: a line is not a JSON object; the message names file and line.
  """
  for _, row in _ends(path, torn_end=torn_end):
    yield row


def _ends(path: str | os.PathLike, *, torn_end: bool) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields (number of bytes up to the end of the line, row)."""
  end = 0
  with open(path, "rb") as file:
    for number, raw in enumerate(file, start=1):
      has_end = raw.endswith(b"\n")
      try:
        row = json.loads(raw)
      except (ValueError, RecursionError) as error:
        if torn_end and not has_end:
          return
        raise ValueError(f"{path}:{number}: not a JSON object ({error}); correct or delete the line.") from error
      if not isinstance(row, dict):
        raise ValueError(f"{path}:{number}: a {type(row).__name__}, but it must be a JSON object; delete the line.")
      # A last line without a newline is unfinished, even if it happens to be valid JSON.
      if torn_end and not has_end:
        return
      end += len(raw)
      yield end, row


def repair(path: str | os.PathLike, *, keep=lambda row: True) -> list[dict[str, Any]]:
  """Truncates the file before an unfinished last line and the first row that `keep` rejects; returns the rows left."""
  path = pathlib.Path(path)
  if not path.exists():
    return []
  rows, kept = [], 0
  for end, row in _ends(path, torn_end=True):
    if not keep(row):
      break
    rows.append(row)
    kept = end
  os.truncate(path, kept)
  return rows


def cut(path: str | os.PathLike, rows: int) -> int:
  """Truncates the file after its first `rows` whole lines. Returns the number of lines left; 0 if there is no file."""
  path = pathlib.Path(path)
  if not path.exists():
    return 0
  count = end = 0
  with open(path, "rb") as file:
    while count < rows and (raw := file.readline()).endswith(b"\n"):
      count, end = count + 1, end + len(raw)
  os.truncate(path, end)
  return count


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a file; empty if there is no file. Raises ValueError: the file holds something else."""
  if not path.exists():
    return {}
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path}: not JSON ({error}). Restore the file, or delete it.") from error
  if not isinstance(value, dict):
    raise ValueError(f"{path}: a {type(value).__name__}, but it must be a JSON object.")
  return value


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
  """Adds the file's name to an OSError of the block: the system's error about a full disk, for example, has none."""
  try:
    yield
  except OSError as error:
    if error.filename is not None or error.errno is None:  # the file is named, or the error is not the system's
      raise
    message = f"{error.strerror}: correct this (make room, for example), then start the same command again"
    raise OSError(error.errno, message, str(path)) from None


def is_stream(path: pathlib.Path) -> bool:
  """Whether this is a pipe or a device, such as /dev/stdout: it is written to, and no file may take its place."""
  return path.exists() and not path.is_file() or path.absolute().parent == pathlib.Path("/dev")


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Gives a temporary path beside `path`. After the block it is renamed to `path`, or removed if the block failed.

  A stream (`is_stream`) is given itself.
  """
  path = pathlib.Path(path)
  if is_stream(path):
    with naming(path):
      yield path
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f".{path.name}.{os.getpid()}.part")
  try:
    with naming(path):
      yield part
    os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)


def append(file: Any, row: Mapping[str, Any]) -> None:
  """Writes a row to the end of a file that was opened without a buffer, which could write a refused rest later.

  Raises:
    OSError: the disk is full; the last line is unfinished then. The message names the file.
  """
  raw = line(row).encode()
  with naming(file.name):
    if file.write(raw) < len(raw):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_text(path: str | os.PathLike, text: str) -> None:
  """Writes a text; a killed call leaves the file as it was."""
  with whole(path) as part:
    part.write_text(text, encoding="utf-8")


def write(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes all rows; a killed call leaves the file as it was."""
  with whole(path) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
    file.writelines(line(row) for row in rows)


EVALUATIONS = "evaluations"  # folder of the answers to held-out questions (`evaluation.harness.prediction`)
_NAME = re.compile(r"step_(\d+)\.jsonl")


def write_step(folder: pathlib.Path, step: int, rows: Iterable[Mapping[str, Any]]) -> pathlib.Path:
  """Writes a step's rows, whole or not at all. Returns the file's path."""
  path = folder / f"step_{step:06d}.jsonl"
  write(path, rows)
  return path


def step_files(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """The steps that have a file, in order, with their files."""
  files = {int(match[1]): file for file in folder.glob("step_*.jsonl") if (match := _NAME.fullmatch(file.name))}
  return dict(sorted(files.items()))


def cut_steps(folder: pathlib.Path, restored: int | None) -> None:
  """Removes the files of steps after the restored one (all, if None), and unfinished ones: they are written again."""
  for part in folder.glob(".step_*.part"):
    part.unlink()
  for step, file in step_files(folder).items():
    if restored is None or step > restored:
      file.unlink()
