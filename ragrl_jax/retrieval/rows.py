"""Rows of files, streamed as dictionaries: JSON lines, Parquet, tab-separated values with a header line."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

_VALUE = re.compile(r'\t(?:"((?:[^"]|"")*)"(?=\t|$)|([^\t]*))')
KINDS = (".jsonl", ".jsonl.gz", ".parquet", ".tsv", ".tsv.gz")


def is_rows(path: str | os.PathLike) -> bool:
  """Whether `read_rows` reads a file of this name."""
  return os.fspath(path).endswith(KINDS)


def read_rows(path: str | os.PathLike, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Any]]:
  """("file:line", row) for each row; for Parquet "file: row n".

  Args:
    path: a file of one of KINDS. A file with another suffix is read as JSON lines.
    columns: columns to read from a Parquet file, if it has them; None for all.

  Raises:
    FileNotFoundError: no such file.
    ValueError: the file is damaged, cut or of another kind; the message names file and line.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f"{path}: no such file.")
  if path.suffix == ".parquet":
    yield from _parquet(path, columns)
    return
  with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
    yield from (_tsv if path.name.removesuffix(".gz").endswith(".tsv") else _json)(path, _whole(path, file))


def count_rows(path: str | os.PathLike) -> int:
  """The number of rows. Lines are counted, not read."""
  path = pathlib.Path(path)
  if path.suffix == ".parquet":
    return _opened(path).metadata.num_rows
  with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
    lines = sum(1 for _ in _whole(path, file))
  return lines - path.name.removesuffix(".gz").endswith(".tsv")  # its header


def _whole(path: pathlib.Path, file) -> Iterator[tuple[int, bytes]]:
  """(number, line) of each line that is not blank."""
  number = 0
  try:
    for number, raw in enumerate(file, 1):
      if raw.strip():
        yield number, raw
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise ValueError(f"{path}:{number + 1}: the compressed file is cut or broken ({error}): fetch it again.") from None


def _json(path: pathlib.Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[str, Any]]:
  for number, raw in lines:
    try:
      row = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:
      raise ValueError(f"{path}:{number}: not a line of JSON in UTF-8: {error}.") from None
    yield f"{path}:{number}", row


def _tsv(path: pathlib.Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[str, dict[str, str]]]:
  """Rows with the header's columns. A row is always one line.

  A value may be in double quotes, with two for each inside; other double quotes are those of the text.
  """
  header: list[str] = []
  for number, raw in lines:
    try:
      line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
      raise ValueError(f"{path}:{number}: not a line of tab-separated UTF-8: {error}.") from None
    found = [quoted.replace('""', '"') if quoted else plain for quoted, plain in _VALUE.findall(f"\t{line}")]
    if not header:
      header = found
    elif len(found) != len(header):
      raise ValueError(f"{path}:{number}: {len(found)} columns, but the first line names {len(header)}.")
    else:
      yield f"{path}:{number}", dict(zip(header, found))


def _opened(path: pathlib.Path):
  import pyarrow
  import pyarrow.parquet  # comes with the datasets library; slow to import

  try:
    return pyarrow.parquet.ParquetFile(path)
  except (pyarrow.ArrowInvalid, OSError) as error:
    raise ValueError(f"{path}: no Parquet file that can be read ({error!s:.200}): fetch it again.") from None


def _parquet(path: pathlib.Path, columns: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
  file, number = _opened(path), 0
  chosen = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
  for batch in file.iter_batches(batch_size=1024, columns=chosen):
    for row in batch.to_pylist():
      number += 1
      yield f"{path}: row {number}", row
