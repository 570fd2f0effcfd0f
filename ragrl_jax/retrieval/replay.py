"""Records a retriever's answers and replays them, so that a run can be repeated exactly and without the retriever."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.api import Retriever
from ragrl_jax.store import sums
from ragrl_jax.structs import Passage


class Recorder:
  """Forwards searches to a retriever, and appends each new (query, k) with its passages as a line to FILE.jsonl."""

  def __init__(self, retriever: Retriever, path: str | os.PathLike):
    """An existing file is continued: its answers are kept, and a last line that a kill cut short is dropped."""
    self._retriever, self._path, self._lock = retriever, pathlib.Path(path), threading.Lock()
    self._known: set[tuple[str, int]] = set()
    self._path.parent.mkdir(parents=True, exist_ok=True)
    if self._path.is_file():
      rows, whole = _read(self._path)
      self._known = {(query, k) for query, k, _ in rows}
      os.truncate(self._path, whole)
    else:
      self._append(dict(retriever=dict(retriever.describe())))

  def describe(self) -> dict[str, Any]:
    """The description of the retriever that is recorded."""
    return dict(self._retriever.describe())

  def search(self, queries: Sequence[str], k: int) -> api.Answers:
    """Asks the recorded retriever, and writes down each new query with its answer."""
    answers = self._retriever.search(queries, k)
    with self._lock:
      for query, found in zip(queries, answers, strict=True):
        if (query, k) not in self._known:
          self._known.add((query, k))
          self._append(dict(query=query, k=int(k), passages=[[p.id, p.title, p.text, p.score] for p in found]))
    return answers

  def _append(self, row: dict[str, Any]) -> None:
    with open(self._path, "a", encoding="utf-8") as file:
      file.write(json.dumps(row, ensure_ascii=False) + "\n")


class Replay:
  """A retriever that answers from a recording only."""

  def __init__(self, path: str | os.PathLike):
    """
    Raises:
      ValueError: the file does not exist, or a line is not a record (with file and line).
    """
    self._path = pathlib.Path(path)
    if not self._path.is_file():
      raise ValueError(f"{self._path}: no such recording; make one with replay.Recorder.")
    rows, _ = _read(self._path)
    self._answers: dict[str, dict[int, list[Passage]]] = {}
    for query, k, found in rows:
      self._answers.setdefault(query, {}).setdefault(k, found)

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: number of queries and digest of the recording."""
    return dict(kind="replay", queries=len(self._answers), sha256=sums.digest(self._path))

  def search(self, queries: Sequence[str], k: int) -> api.Answers:
    """See `api.Retriever`. A query recorded with a larger k serves a smaller one.

    Raises:
      ValueError: a query was not recorded with at least this k.
    """
    return api.each(queries, k, lambda texts, k: [self._recorded(text, k) for text in texts])

  def _recorded(self, query: str, k: int) -> list[Passage]:
    recorded = self._answers.get(query, {})
    enough = min((n for n in recorded if n >= k), default=None)
    if enough is None:
      had = f"only with k={max(recorded)}" if recorded else f"not at all, {len(self._answers)} others are"
      raise ValueError(
        f"{self._path}: the query {query!r:.200} with k={k} is not recorded ({had}): record it with "
        "replay.Recorder, or search an index."
      )
    return recorded[enough][:k]


def _read(path: pathlib.Path) -> tuple[list[tuple[str, int, list[Passage]]], int]:
  """The records, and the size in bytes of all complete lines. A kill may have cut the last line."""
  rows, whole = [], 0
  with open(path, "rb") as file:
    for number, raw in enumerate(file, 1):
      if not raw.endswith(b"\n"):
        break
      whole += len(raw)
      try:
        row = json.loads(raw)
        if number > 1 or "retriever" not in row:  # the first line describes the recorded retriever
          found = [Passage(str(name), str(title), str(text), score) for name, title, text, score in row["passages"]]
          rows.append((str(row["query"]), int(row["k"]), found))
      except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
          f'{path}:{number}: no record {{"query", "k", "passages"}} ({type(error).__name__}: {error}). If the file is '
          "a corpus, build an index of it (`ragrl index`) and name its folder."
        ) from None
  return rows, whole
