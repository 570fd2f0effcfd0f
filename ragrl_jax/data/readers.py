"""Reads questions as Examples, and JSON rows with their locations, from files and from the Hugging Face hub."""

import collections
import glob
import gzip
import itertools
import json
import os
import pathlib
import random
import zlib
from collections.abc import Iterator
from typing import Any

from huggingface_hub import errors

from ragrl_jax.data import layouts
from ragrl_jax.structs import Example

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def read_examples(
  path: str | pathlib.Path, *, max_examples: int = 0, setting: str = "config.data, --data"
) -> Iterator[Example]:
  """Streams the examples of one or more files or Hugging Face data sets.

  Rows may be our own (`layouts.ours`), FlashRAG's, those of HotpotQA, 2WikiMultihopQA, MuSiQue and LongBench as
  published, or those of DROP and MS MARCO on the hub.

  Args:
    path: FILE.jsonl or FILE.json, either with .gz; a glob; a folder of such files; "hf:NAME/SUBSET/SPLIT", with an
      empty subset for the default one ("hf:owner/name//train"), where NAME may be a folder; or several of these with
      commas between them. "hf:NAME/SUBSET/SPLIT~COUNT" draws COUNT rows at random, always the same ones (the first
      rows of a set may be of one kind).
    max_examples: stop after this number; 0 reads all.
    setting: what names the path, for the message on a set that the hub does not give.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a row cannot be read or repeats an id (with file and line); or there are no rows.
  """
  if max_examples < 0:
    raise ValueError(f"max_examples={max_examples}: it must be 0 (all) or more (config.data.max_examples).")
  if not str(path):
    raise ValueError("no file to read questions from: name one (config.data.train, config.data.evaluate).")
  number = 0
  seen: dict[tuple[str, str], str] = {}
  for source, placed in _sources(str(path), setting):
    for example in _examples(source, placed, seen):
      yield example
      number += 1
      if number == max_examples:
        return
  if not number:
    raise ValueError(f"{path}: there are no questions in it (config.data, --data).")


def _examples(
  source: str, placed: Iterator[tuple[str, dict[str, Any]]], seen: dict[tuple[str, str], str]
) -> Iterator[Example]:
  for number, (where, row) in enumerate(placed):
    try:
      example = layouts.example(row, identity=f"{source}-{number}", source=source)
    except ValueError as error:
      raise ValueError(f"{where}: {error}") from error
    key = example.source, example.id
    if key in seen:
      raise ValueError(
        f"{where}: the id {example.id!r} occurs twice, first at {seen[key]}: ids must be unique within a source "
        f"({example.source!r})."
      )
    seen[key] = where
    yield example


def _sources(path: str, setting: str) -> Iterator[tuple[str, Iterator[tuple[str, dict[str, Any]]]]]:
  """Yields (name, rows with their locations) for every source that the path names.

  A file's name without its suffix is that of its source. Files of the same name, such as nq/test.jsonl and
  hotpotqa/test.jsonl, also have their folder's.
  """
  parts = _parts(path)
  found = [[] if part.startswith("hf:") else files(part) for part in parts]
  stems = collections.Counter(_stem(file) for file in dict.fromkeys(itertools.chain(*found)))
  for part, named in zip(parts, found):
    if part.startswith("hf:"):
      yield _from_hub(part, setting)
    for file in named:
      stem = _stem(file)
      yield stem if stems[stem] == 1 else f"{file.parent.name}/{stem}", read_rows(file)


def _stem(file: pathlib.Path) -> str:
  """The name without its suffix. A version stays: musique_ans_v1.0_dev.jsonl and …_train.jsonl are two sources."""
  return file.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")


def files(path: str | pathlib.Path) -> list[pathlib.Path]:
  """The files that a path names, sorted by name: a file, the readable files of a folder, or the matches of a glob.

  Raises:
    FileNotFoundError: the folder has no readable file, or nothing matches the glob.
  """
  found = pathlib.Path(path)
  if found.is_dir():
    matches = [file for file in sorted(found.iterdir()) if file.name.endswith(SUFFIXES)]
    if not matches:
      raise FileNotFoundError(f"{path}: the folder holds none of {', '.join('*' + s for s in SUFFIXES)}.")
    return matches
  if not found.exists() and glob.has_magic(str(path)):
    matches = [pathlib.Path(match) for match in sorted(glob.glob(str(path)))]
    if not matches:
      raise FileNotFoundError(f"{path}: no file matches (config.data, --data).")
    return matches
  return [found]


def _parts(path: str) -> list[str]:
  """The sources that commas separate; a file may have commas in its name."""
  # Path.exists raises an error for a list that is too long to be a name.
  return [path] if os.path.exists(path) else path.split(",")


def named(path: str) -> list[pathlib.Path]:
  """All files that a path names (see `read_examples`); none for data sets on the hub.

  Raises:
    FileNotFoundError: see `files`.
  """
  return [file for part in _parts(path) if not part.startswith("hf:") for file in files(part)]


def check(path: str, setting: str) -> None:
  """Refuses a path that names a file that does not exist. Data sets on the hub are not looked for.

  Raises:
    FileNotFoundError: there is no such file; the message names the setting.
  """
  for file in named(path):
    if not file.exists():
      raise FileNotFoundError(f"{setting}={path}: there is no file {file}.")


def _from_hub(path: str, setting: str) -> tuple[str, Iterator[tuple[str, dict[str, Any]]]]:
  name, _, split = path.removeprefix("hf:").rpartition("/")
  split, drawn, count = split.partition("~")
  name, _, subset = name.rpartition("/")
  if drawn and not count.isdecimal():
    raise ValueError(
      f"{path!r}: after ~ there must be the number of rows to draw, such as {split}~1000 (config.data, --data)."
    )
  if not name or not split:
    raise ValueError(
      f"{path!r}: a Hugging Face dataset is named hf:NAME/SUBSET/SPLIT, with an empty subset for the default one, "
      "e.g. hf:hotpotqa/hotpot_qa/distractor/validation or hf:owner/name//train (config.data, --data)."
    )
  import datasets  # takes a second or two, and files do not need it

  try:
    table = datasets.load_dataset(name, subset or None, split=split)
  except (OSError, errors.HTTPError) as error:
    why = " ".join(str(error).split())
    spare = ", which may be empty" if setting in ("config.data.hard", "config.data.evaluate") else ""
    raise ValueError(
      f"{path!r}: it cannot be loaded from the Hugging Face hub ({why}). Name a file instead ({setting}{spare}), "
      "or let this machine reach the hub."
    ) from error
  numbers = range(len(table))
  if drawn:
    if int(count) > len(table):
      raise ValueError(f"{path!r}: it has {len(table)} rows, so draw at most that many (config.data, --data).")
    numbers = sorted(random.Random(f"sample/{path}").sample(numbers, int(count)))
    table = table.select(numbers)
  # The subsets of a repository may use the same ids, as FlashRAG's do.
  source = pathlib.PurePath(name).name + (f"/{subset}" if subset else "")
  return source, ((f"{path} row {number}", row) for number, row in zip(numbers, table))


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
