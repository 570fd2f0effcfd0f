"""Writes examples and passages as JSON lines that our readers accept. Files are written atomically."""

import contextlib
import gzip
import io
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from ragrl_jax.store import folders, jsonl, row_files
from ragrl_jax.store.episodes import GOLDS
from ragrl_jax.structs import Example, Passage


def write_examples(
  path: str | pathlib.Path, examples: Iterable[Example], *, turns: Sequence[Sequence[tuple[str, str]]] | None = None
) -> None:
  """Writes examples as JSON lines, compressed if the name ends in .gz.

  Args:
    path: FILE.jsonl or FILE.jsonl.gz; its folder is created.
    turns: a transcript for each example, [("model" | "environment", text), …]. Readers put this column into
      `example.meta["turns"]`.

  Raises:
    ValueError: the number of transcripts is not that of the examples.
  """
  examples = list(examples)
  if turns is not None and len(turns) != len(examples):
    raise ValueError(f"{len(turns)} transcripts for {len(examples)} examples: there must be one for each.")
  said = ({} for _ in examples) if turns is None else (dict(turns=list(map(list, one))) for one in turns)
  _write(path, (to_row(example) | more for example, more in zip(examples, said)))


def write_passages(path: str | pathlib.Path, passages: Iterable[Passage]) -> None:
  """Writes a corpus as JSON lines {"id", "title", "text"}, compressed if the name ends in .gz."""
  _write(path, map(_passage, passages))


def refuse_inputs(
  outs: Iterable[str | pathlib.Path], inputs: Iterable[str | pathlib.Path], *, flag: str = "--out"
) -> None:
  """Refuses to write a file that is also read, or is named twice; that is a folder, or in one that cannot be written
  to; or JSON lines as .csv or .parquet.

  Args:
    inputs: the files that are read, such as `readers.named(path)`.

  Raises:
    ValueError: writing would overwrite one of these files or fail, or no reader would take the result.
  """
  taken = dict.fromkeys((pathlib.Path(path).resolve() for path in inputs), "is read, too")
  for out in outs:
    place = pathlib.Path(out).resolve()
    if place.is_dir():
      raise ValueError(f"{flag}={out}: this is a folder: name a file in it.")
    if not jsonl.is_stream(pathlib.Path(out)):
      folders.refuse_unwritable(pathlib.Path(out).parent, flag)
    if flag == "--out" and row_files.kind(place).startswith((".csv", ".tsv", ".parquet", ".arrow")):
      raise ValueError(f"{flag}={out}: JSON lines are written, which are not read under this name: name it *.jsonl.")
    if place in taken:
      raise ValueError(f"{flag}={out}: this file {taken[place]}, so it would be overwritten: name another one.")
    taken[place] = "is named twice"


def to_row(example: Example) -> dict[str, Any]:
  """The example in our own layout. Evidence is written with its passages only, as it names their positions."""
  meta = dict(example.meta)
  if GOLDS in meta:
    meta[GOLDS] = list(map(_passage, meta[GOLDS]))
  if example.evidence and example.passages:
    meta["evidence"] = [list(pair) for pair in example.evidence]
  return dict(
    id=example.id,
    question=example.question,
    answers=list(example.golds),
    passages=list(map(_passage, example.passages)),
    supporting=list(example.supporting),
    hops=example.hops,
    source=example.source,
    meta=meta,
  )


def _passage(passage: Passage) -> dict[str, Any]:
  return dict(id=passage.id, title=passage.title, text=passage.text)


def _write(path: str | pathlib.Path, rows: Iterable[dict[str, Any]]) -> None:
  with jsonl.whole(path) as part, contextlib.ExitStack() as files:
    file: BinaryIO = files.enter_context(open(part, "wb"))
    if pathlib.Path(path).suffix == ".gz":
      # No file name and no time in gzip's header, so that the same rows give the same file.
      file = files.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
    # Half a surrogate pair, which UTF-8 lacks, is written as JSON's own escape of it: \ud800.
    lines = files.enter_context(io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="\n"))
    # JSON lacks dates, decimals and bytes, which columns of Parquet may have.
    lines.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
