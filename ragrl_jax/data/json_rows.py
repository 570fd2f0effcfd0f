"""Reads the JSON rows of a file, each with its location: .jsonl, or .json (lines or one array), plain or .gz."""

import collections
import gzip
import json
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def read_rows(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ("file:line", row) for every row of the file. A byte-order mark and empty lines are skipped.

  Raises:
    FileNotFoundError: the file does not exist.
    ValueError: the file is of another kind, damaged, not UTF-8 or not JSON, or a row is not an object.
  """
  if not path.name.endswith(SUFFIXES):
    raise ValueError(f"{path}: rows are read from {', '.join(SUFFIXES)}; convert the file or rename it.")
  if not path.is_file():
    raise FileNotFoundError(f"{path}: there is no such file (config.data, --data).")
  if path.name.endswith((".json", ".json.gz")):
    found = _of_array(path, _whole(path))
  else:
    found = _of_lines(path, _lines(path))
  for where, row in found:
    if not isinstance(row, dict):
      raise ValueError(f"{where}: a row must be a JSON object, this is {_kind(row)}.")
    yield where, row


def _lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  number = 0
  try:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
      for number, line in enumerate(file, 1):
        yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start} of the line).") from error
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise ValueError(f"{path}:{number + 1}: the compressed file is broken or cut off ({error}).") from error


def _whole(path: pathlib.Path) -> str:
  return "".join(line for _, line in _lines(path))


def _of_lines(path: pathlib.Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
  for number, line in lines:
    if line.strip():
      yield f"{path}:{number}", _parsed(f"{path}:{number}", line)


def _of_array(path: pathlib.Path, text: str) -> Iterator[tuple[str, Any]]:
  """The members of a JSON array; or the lines, if a file named .json holds lines."""
  start = _skip(text, 0)
  if text[start : start + 1] != "[":
    yield from _of_lines(path, enumerate(text.split("\n"), 1))  # not splitlines, because a string may contain U+2028
    return
  decoder, at, line, counted = json.JSONDecoder(object_pairs_hook=_unique), _skip(text, start + 1), 1, 0
  number = 0
  while text[at : at + 1] != "]":
    number += 1
    line, counted = line + text.count("\n", counted, at), at
    where = f"{path}:{line} (row {number})"
    try:
      row, at = decoder.raw_decode(text, at)
    except (ValueError, RecursionError) as error:  # a ValueError also for numbers of thousands of digits
      raise ValueError(f"{where}: not JSON: {error}.") from error
    yield where, row
    at = _skip(text, at)
    if text[at : at + 1] == ",":
      at = _skip(text, at + 1)
    elif text[at : at + 1] != "]":
      raise ValueError(f"{where}: after a row there must be ',' or ']', not {text[at : at + 20]!r}.")
  if rest := text[_skip(text, at + 1) :]:
    raise ValueError(
      f"{path}: after the array's ']' there must be nothing, not {rest[:20]!r}: are these two files in one?"
    )


def _skip(text: str, at: int) -> int:
  while at < len(text) and text[at] in " \t\r\n":
    at += 1
  return at


def _parsed(where: str, line: str) -> Any:
  try:
    return json.loads(line, object_pairs_hook=_unique)
  except (ValueError, RecursionError) as error:  # as above
    raise ValueError(f"{where}: not JSON: {error}.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """The object; JSON allows a name to occur twice, and then readers differ in which value they take."""
  made = dict(pairs)
  if len(made) < len(pairs):
    twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
    raise ValueError(f"the name {twice!r:.80} occurs twice in one object")
  return made


def _kind(value: Any) -> str:
  return {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")
