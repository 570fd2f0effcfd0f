"""Reads public corpora as a stream of passages: JSON lines, Parquet, tab-separated values, folders of these.

{"id", "title", "text"}         this library's own format
{"id", "contents"}              FlashRAG's and Search-R1's wiki-18: the first line is the title
{"doc_id", "title", "text"}     wiki-18 with its missing documents added, by SearchAgentReview (arXiv 2605.27881)
{"id", "text", "title"}         DPR's psgs_w100.tsv
{"docid", "text", "url"}        BrowseComp-Plus (Parquet)
{"_id", "title", "text"}        BEIR: FOLDER/corpus.jsonl; MTEB: {"id" or "_id", …} in FOLDER/corpus/*.parquet
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ragrl_jax.retrieval.corpus import from_contents
from ragrl_jax.retrieval.rows import KINDS, count_rows, is_rows, read_rows
from ragrl_jax.store import sums
from ragrl_jax.structs import Passage

IDS = ("id", "_id", "docid", "doc_id")
COLUMNS = (*IDS, "title", "text", "contents")
WANTED = '{"id", "title", "text"}, {"id", "contents"}, BEIR\'s {"_id", "title", "text"} or {"docid", "text"}'


def files_of(path: str | os.PathLike) -> list[pathlib.Path]:
  """The files of a corpus, in order.

  Args:
    path: a file; a folder with corpus.jsonl[.gz], with files in corpus/ or data/, or with other files of these kinds;
      or several of these, separated by commas.

  Raises:
    FileNotFoundError: there is no such file, or the folder has none.
  """
  given = os.fspath(path)
  if "," in given and not os.path.exists(given):  # Path.exists raises an error for a list that is too long for a name
    return [file for part in given.split(",") for file in files_of(part.strip())]
  place = pathlib.Path(given)
  if place.is_file():
    return [place]
  if place.is_dir():
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
      if (place / name).is_file():
        return [place / name]
    for folder in (place / "corpus", place / "data", place):
      if files := sorted(file for file in folder.glob("*") if is_rows(file)):
        return files
  raise FileNotFoundError(
    f"{given}: no such corpus: it must be a file ({', '.join(KINDS)}), or a folder with corpus.jsonl or such files."
  )


def read_passages(path: str | os.PathLike) -> Iterator[Passage]:
  """Streams the passages of a corpus in the order of its files. See `files_of` and this module's docstring.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a row is not a passage, or a file is truncated or damaged; the message names file and line.
  """
  for file in files_of(path):
    for where, row in read_rows(file, COLUMNS):
      yield _passage(row, where)


def count_passages(path: str | os.PathLike) -> int:
  """The number of passages, without parsing them."""
  return sum(map(count_rows, files_of(path)))


def identity(path: str | os.PathLike) -> dict[str, str]:
  """{"name", "sha256"} of a corpus. With several files, the digest is that of the files' digests."""
  files = files_of(path)
  digests = [sums.digest(file) for file in files]
  together = digests[0] if len(files) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
  return dict(name=files[0].name if len(files) == 1 else pathlib.Path(path).name, sha256=together)


def places(path: str | os.PathLike, rows: Iterable[int]) -> list[str]:
  """The places "file:line" of the passages with these numbers (from 0)."""
  wanted = set(rows)
  all_ = (where for file in files_of(path) for where, _ in read_rows(file, IDS))
  return [where for number, where in enumerate(all_) if number in wanted]


def _passage(row: Any, where: str) -> Passage:
  """The passage of a row. Raises ValueError if the row is not a passage; the message starts with `where`."""
  if not isinstance(row, dict):
    raise ValueError(f"{where}: a row must be a JSON object {WANTED}, this is {type(row).__name__}.")
  given = next((row[name] for name in IDS if name in row), None)
  if isinstance(given, bool) or not isinstance(given, str | int):
    raise ValueError(f'{where}: "id" must be a string or a whole number, this row has {given!r:.80}.')
  if "contents" not in row and "text" not in row:
    raise ValueError(f"{where}: a row must be {WANTED}, this one has {sorted(map(str, row))}.")
  for name in ("title", "text", "contents"):
    value = row.get(name, "")
    if not isinstance(value, str) and not (name == "title" and value is None):
      raise ValueError(f'{where}: "{name}" must be a string, this row has {value!r:.80}.')
  if "contents" in row:
    title, text = from_contents(row["contents"])
  else:
    title, text = row.get("title") or "", row["text"]
  try:
    f"{given}{title}{text}".encode()
  except UnicodeEncodeError as error:
    raise ValueError(f"{where}: the text has half a surrogate pair ({error.reason}): write it as UTF-8.") from None
  return Passage(str(given), title, text)
