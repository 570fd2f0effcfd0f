"""Queries, and the judgements and runs of TREC, BEIR and MTEB.

run     QUERY Q0 PASSAGE RANK SCORE NAME       TREC
qrels   QUERY 0 PASSAGE GRADE                  TREC
        query-id <tab> corpus-id <tab> score   BEIR, with this header line; also as .jsonl or .parquet (MTEB)
queries {"_id", "id", "query_id" or "qid", "text" or "query"} as .jsonl or .parquet; QUERY <tab> TEXT (.tsv),
        perhaps with a header line, such as qid <tab> query
"""

import dataclasses
import gzip
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax.store import jsonl, row_files
from ragrl_jax.structs import Passage, document_of

QUERY_IDS, HEADS = ("_id", "id", "query_id", "qid"), ("query-id", "query_id")


def read_queries(path: str | os.PathLike) -> dict[str, str]:
  """{query id: text}, in the file's order. Raises ValueError: an invalid row, with file and line, or a duplicate id."""
  result: dict[str, str] = {}
  if _kind(path) == "text":
    pairs = ((where, line.rstrip("\r\n").split("\t")) for where, line in _lines(path))
    pairs = (pair for number, pair in enumerate(pairs) if number or pair[1][0] not in (*QUERY_IDS, *HEADS))
  else:
    pairs = (
      (where, [_first(row, *QUERY_IDS), _first(row, "text", "query")]) for where, row in row_files.read_rows(path)
    )
  for where, columns in pairs:
    if type(columns[0]) is int:  # MTEB's ids may be numbers, in the qrels too
      columns[0] = str(columns[0])
    if len(columns) != 2 or not all(isinstance(value, str) and value.strip() for value in columns):
      raise ValueError(f'{where}: a query must be {{"_id", "text"}}, or an id, a tab and the text.')
    if columns[0] in result:
      raise ValueError(f"{where}: the query {columns[0]!r} occurs twice.")
    result[columns[0]] = columns[1]
  return result


def read_qrels(path: str | os.PathLike) -> dict[str, dict[str, int]]:
  """{query id: {passage id: grade}}, in the file's order.

  Raises:
    ValueError: an invalid row, with file and line, or two grades for one pair.
  """
  result: dict[str, dict[str, int]] = {}
  for where, query, passage, grade in _judged(path):
    if passage in (grades := result.setdefault(query, {})):
      raise ValueError(f"{where}: {passage!r} is judged twice for the query {query!r}.")
    grades[passage] = _grade(grade, where)
  return result


def read_run(path: str | os.PathLike) -> dict[str, dict[str, float]]:
  """{query id: {passage id: score}}. Ranks are ignored, because scores determine the order (`core.metrics.retrieval`).

  Raises:
    ValueError: an invalid row, with file and line, or a duplicate passage of a query.
  """
  result: dict[str, dict[str, float]] = {}
  for where, line in _lines(path):
    columns = line.split()
    if len(columns) != 6:
      raise ValueError(f"{where}: a line of a run is QUERY Q0 PASSAGE RANK SCORE NAME, this has {len(columns)} words.")
    query, _, passage, _, score, _ = columns
    if passage in (scores := result.setdefault(query, {})):
      raise ValueError(f"{where}: {passage!r} occurs twice for the query {query!r}.")
    scores[passage] = _score(score, where)
  return result


def write_run(path: str | os.PathLike, answers: Mapping[str, Sequence[Passage]], *, name: str = "ragrl") -> None:
  """Writes a retriever's results as a run, best first, with scores.

  Programs like trec_eval ignore the ranks, and sort equal scores by id.

  Raises:
    ValueError: an id contains white space, or a passage has no score.
  """

  def lines() -> Iterator[str]:
    for query, passages in answers.items():
      for rank, passage in enumerate(passages, 1):
        if passage.score is None:
          raise ValueError(f"the passage {passage.id!r} has no score: a run needs the scores of its retriever.")
        yield f"{word(query)} Q0 {word(passage.id)} {rank} {passage.score!r} {word(name)}\n"

  path = pathlib.Path(path)
  with jsonl.whole(path) as part:
    with gzip.open(part, "wt", encoding="utf-8") if path.suffix == ".gz" else open(part, "w", encoding="utf-8") as file:
      file.writelines(lines())


def of_documents(passages: Sequence[Passage]) -> list[Passage]:
  """The documents that the passages were cut from, each at the place of its first passage, which it is shown by."""
  first: dict[str, Passage] = {}
  for passage in passages:
    first.setdefault(document_of(passage.id)[0], passage)
  return [dataclasses.replace(passage, id=name) for name, passage in first.items()]


def _judged(path: str | os.PathLike) -> Iterator[tuple[str, str, str, object]]:
  """(place, query, passage, grade) of each row."""
  if _kind(path) == "rows":
    for where, row in row_files.read_rows(path):
      query, passage = _first(row, *HEADS), _first(row, "corpus-id", "corpus_id")
      if not isinstance(query, str | int) or not isinstance(passage, str | int):
        raise ValueError(f'{where}: a row of qrels must be {{"query-id", "corpus-id", "score"}}.')
      yield where, str(query), str(passage), row.get("score")
    return
  for number, (where, line) in enumerate(_lines(path)):
    columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    if number == 0 and columns[0] in HEADS:
      continue
    if len(columns) not in (3, 4):
      raise ValueError(f"{where}: a line of qrels must be QUERY 0 PASSAGE GRADE, or BEIR's three columns with tabs.")
    yield where, columns[0], columns[-2], columns[-1]


def _first(row: Any, *names: str) -> Any:
  """The row's value under the first of these names that it has; None if it has none or is not an object."""
  return next((row[name] for name in names if name in row), None) if isinstance(row, dict) else None


def _kind(path: str | os.PathLike) -> str:
  name = os.fspath(path).removesuffix(".gz")
  return "rows" if name.endswith((".jsonl", ".parquet")) else "text"


def _lines(path: str | os.PathLike) -> Iterator[tuple[str, str]]:
  """("file:line", line) of each line that is not blank."""
  for number, line in row_files.read_lines(pathlib.Path(path)):
    if line.strip():
      yield f"{path}:{number}", line


def _grade(value: object, where: str) -> int:
  number = _score(str(value), where)
  if not number.is_integer():
    raise ValueError(f"{where}: a grade must be a whole number, not {value!r}.")
  return int(number)


def _score(text: str, where: str) -> float:
  try:
    number = float(text)
  except ValueError:
    number = math.nan
  if not math.isfinite(number):
    raise ValueError(f"{where}: {text!r:.40} is not a finite number.")
  return number


def word(name: str) -> str:
  """An id as it stands in a file. Raises ValueError: it is empty, or contains white space."""
  if not name or name.split() != [name]:
    raise ValueError(f"the id {name!r:.80} contains white space, which separates the columns of a TREC file.")
  return name
