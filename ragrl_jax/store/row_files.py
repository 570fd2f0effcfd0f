"""Rows of files, streamed as dictionaries: JSON, CSV, tab-separated values, Parquet, and what `datasets` saved."""

import collections
import csv
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

KINDS = (*(f".{kind}{z}" for kind in "jsonl json csv tsv".split() for z in ("", ".gz", ".zst")), ".parquet", ".arrow")
SAID = ".jsonl, .json, .csv or .tsv (each also with .gz or .zst), .parquet, or a folder that `datasets` saved"
PACKED = (".bz2", ".xz", ".zip", ".lz4")  # ways to pack a file that are not read
MOST = 1 << 30  # characters that are held in memory for one row, or for one JSON array
_SPACE = re.compile(r"[ \t\r\n]*")
_VALUE = re.compile(r'\t(?:"((?:[^"]|"")*)"(?=\t|$)|([^\t]*))')


def kind(path: str | os.PathLike) -> str:
  """The one of KINDS with which the file's name ends, in any case; "" if it has none."""
  name = os.fspath(path).lower()
  return next((kind for kind in KINDS if name.endswith(kind)), "")


def left_out(file: pathlib.Path) -> bool:
  """Whether a folder's file has rows that are packed as none is read, and does not lie beside it unpacked."""
  return file.suffix.lower() in PACKED and bool(kind(file.stem)) and not file.with_suffix("").exists()


def saved(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files of a folder that `datasets` saved (`save_to_disk`), in order; [] if it is another folder.

  Raises:
    ValueError: it is saved, but holds several splits, or its record is damaged.
  """
  state, splits = folder / "state.json", folder / "dataset_dict.json"
  record = splits if splits.is_file() else state
  if not (splits.is_file() or (state.is_file() and (folder / "dataset_info.json").is_file())):
    return []
  try:
    found = json.loads(record.read_text(encoding="utf-8"))
    names = found["splits"] if record is splits else [file["filename"] for file in found["_data_files"]]
    plain = [pathlib.PurePath(name).name for name in names]  # a record cannot name files elsewhere
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{record}: it is not as `datasets` writes it ({error!r:.80}): save the data set again.") from None
  if record is splits:
    raise ValueError(
      f"{folder}: it holds the splits {', '.join(plain)}: name one of them, such as {folder / plain[0]}."
    )
  return [folder / name for name in plain]


def read_rows(path: str | os.PathLike, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ("file:line", row) for each row; ("file: row n", row) for Parquet and saved data sets.

  A byte-order mark and empty lines are skipped. The values of .csv and .tsv are text.

  Args:
    path: a file of one of KINDS, or a folder that `datasets` saved.
    columns: columns to read of Parquet and saved data sets, if they have them; None for all.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, cut, not UTF-8 or of another kind, or a row is no object; the message names file
      and line.
  """
  path = pathlib.Path(path)
  if path.is_dir() and (files := saved(path)):
    for file in files:
      yield from read_rows(file, columns)
    return
  ending = kind(path)
  if not ending:
    raise ValueError(f"{path}: rows are read from {SAID}; convert the file or rename it.")
  if ending in (".parquet", ".arrow"):
    yield from _of_batches(path, columns)
  elif ending.startswith((".csv", ".tsv")):
    yield from _of_table(path, (_csv if ending.startswith(".csv") else _tsv)(path))
  else:
    for where, row in _json(path, ending):
      if not isinstance(row, dict):
        names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
        raise ValueError(f"{where}: a row must be a JSON object, this is {names.get(type(row), 'a number')}.")
      yield where, row


def read_lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  """Yields (number, line) of a text in UTF-8; ".gz" and ".zst" are unpacked.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is not UTF-8, or the compressed file is damaged; the message names file and line.
  """
  _check_exists(path)
  number = 0
  try:
    with _opened(path) as file:
      for number, line in enumerate(iter(lambda: file.readline(MOST), b""), 1):
        if len(line) == MOST:
          raise ValueError(f"{path}:{number}: a line of {MOST} bytes or more: is this a file of rows?")
        yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
  except UnicodeDecodeError as error:
    why = f"{error.reason} at byte {error.start} of the line"
    raise ValueError(f"{path}:{number}: not UTF-8 ({why}): save it as UTF-8.") from None
  except (EOFError, zlib.error, OSError) as error:
    if isinstance(error, OSError) and error.errno:  # of the system
      raise
    raise ValueError(
      f"{path}:{number + 1}: the compressed file is broken or cut off ({error}): fetch it again."
    ) from None


def _opened(path: pathlib.Path) -> Any:
  if path.suffix.lower() == ".zst":
    import pyarrow  # as in `_batches`

    return io.BufferedReader(pyarrow.input_stream(os.fspath(path), compression="zstd"))
  return (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb")


def _check_exists(path: pathlib.Path) -> None:
  if not path.is_file():
    raise FileNotFoundError(f"{path}: there is no such file.")


def _json(path: pathlib.Path, ending: str) -> Iterator[tuple[str, Any]]:
  """The rows, one a line; or those of an array, if the name ends in .json."""
  lines = read_lines(path)
  if not ending.startswith(".jsonl"):
    start = []  # up to the first line that is not empty
    for number, line in lines:
      start.append((number, line))
      if line.strip():
        break
    lines = itertools.chain(start, lines)
    if start and start[-1][1].lstrip().startswith("["):
      yield from _of_array(path, _whole(path, lines))
      return
  for number, line in lines:
    if line.strip():
      yield f"{path}:{number}", _parsed(f"{path}:{number}", line)


def _whole(path: pathlib.Path, lines: Iterable[tuple[int, str]]) -> str:
  parts, size = [], 0
  for number, line in lines:
    parts.append(line)
    if (size := size + len(line)) > MOST:
      raise ValueError(f"{path}:{number}: an array of more than {MOST} characters: write a row a line (.jsonl).")
  return "".join(parts)


def _of_array(path: pathlib.Path, text: str) -> Iterator[tuple[str, Any]]:
  """The members of a JSON array."""
  decoder, at, line, counted_to = _STRICT, _skip(text, _skip(text, 0) + 1), 1, 0
  number = 0
  while text[at : at + 1] != "]":
    number += 1
    line, counted_to = line + text.count("\n", counted_to, at), at
    where = f"{path}:{line} (row {number})"
    try:
      row, at = decoder.raw_decode(text, at)
    except (ValueError, RecursionError) as error:  # a ValueError also for numbers of thousands of digits
      raise ValueError(f"{where}: not JSON: {error}.") from error
    yield where, row
    at = _skip(text, at)
    if text[at : at + 1] == ",":
      at = _skip(text, at + 1)
      if text[at : at + 1] == "]":
        raise ValueError(f"{where}: not JSON: after ',' there must be another row, not ']'.")
    elif text[at : at + 1] != "]":
      raise ValueError(f"{where}: after a row there must be ',' or ']', not {text[at : at + 20]!r}.")
  if rest := text[_skip(text, at + 1) :]:
    raise ValueError(
      f"{path}: after the array's ']' there must be nothing, not {rest[:20]!r}: are these two files in one?"
    )


def _skip(text: str, at: int) -> int:
  return _SPACE.match(text, at).end()


def _parsed(where: str, line: str) -> Any:
  try:
    return _STRICT.decode(line)
  except (ValueError, RecursionError) as error:  # as above
    rows = " An object over several lines is no row: write rows as an array, or one a line." * (line.strip() == "{")
    raise ValueError(f"{where}: not JSON: {error}.{rows}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """The object; JSON allows a name to occur twice, and then readers differ in which value they take."""
  result = dict(pairs)
  if len(result) < len(pairs):
    twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
    raise ValueError(f"the name {twice!r:.80} occurs twice in one object")
  return result


_STRICT = json.JSONDecoder(object_pairs_hook=_unique)


def _of_table(path: pathlib.Path, lines: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[str, dict[str, str]]]:
  """Rows with the names of the first one; a column without a name, as pandas writes for its index, is left out."""
  names: list[str] = []
  for number, values in lines:
    if not names:
      names = [name.strip() for name in values]
      if twice := [name for name, count in collections.Counter(filter(None, names)).items() if count > 1]:
        raise ValueError(f"{path}:{number}: two columns are named {twice[0]!r:.80}.")
    elif len(values) != len(names):
      raise ValueError(f"{path}:{number}: {len(values)} columns, but the first line names {len(names)}.")
    else:
      yield f"{path}:{number}", {name: value for name, value in zip(names, values) if name}


def _csv(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
  """(first line, values) of each row. The first line decides whether commas, semicolons or tabs separate them."""
  first, lines = next(read_lines(path), (0, ""))[1], (line for _, line in read_lines(path))
  csv.field_size_limit(MOST)
  reader, number = csv.reader(lines, delimiter=max(",;\t", key=first.count), strict=True), 0
  try:
    for values in reader:
      if values:
        yield number + 1, values
      number = reader.line_num
  except csv.Error as error:
    raise ValueError(f"{path}:{number + 1}: no row of comma-separated values: {error}.") from None


def _tsv(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
  """(line, values) of each row, which is one line.

  A value may be in double quotes, with two for each inside; other double quotes are those of the text.
  """
  for number, line in read_lines(path):
    if line.strip():
      values = _VALUE.findall("\t" + line.rstrip("\r\n"))
      yield number, [quoted.replace('""', '"') if quoted else plain for quoted, plain in values]


def _of_batches(path: pathlib.Path, columns: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
  number = 0
  for batch in _batches(path, columns):
    for start in range(0, len(batch), 1024):
      for row in batch.slice(start, 1024).to_pylist():
        number += 1
        yield f"{path}: row {number}", row


def _batches(path: pathlib.Path, columns: Sequence[str] | None) -> Iterator[Any]:
  import pyarrow
  import pyarrow.parquet  # comes with the datasets library; slow to import

  _check_exists(path)
  # All columns where none of these exists: a message can name them then.
  names_of = lambda schema: [name for name in schema.names if name in (columns or ())] or schema.names
  try:
    if kind(path) == ".parquet":
      with pyarrow.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(1024, columns=names_of(file.schema_arrow))
    else:
      with pyarrow.memory_map(os.fspath(path)) as raw, pyarrow.ipc.open_stream(raw) as file:
        yield from (batch.select(names_of(file.schema)) for batch in file)
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(f"{path}: no {kind(path)[1:]} file that can be read ({error!s:.200}): fetch it again.") from None
