"""Writes the files of an evaluation: predictions.jsonl, episodes.jsonl, settings.json. A kill loses no finished answer.

Rows are appended in the order in which the answers end, each with the `index` of its question. When all rows exist,
both files are sorted into the questions' order.
"""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.store import jsonl

PREDICTIONS, METRICS, SETTINGS = "predictions.jsonl", "metrics.json", "settings.json"
_INDEX = re.compile(rb'\{"index": ?(\d+),')


class AnswerFiles:
  """The answers in a folder, including those of earlier calls.

  Args:
    out: the folder; it is created if needed.
    settings: everything that the answers depend on.
    examples: all questions.

  Attributes:
    rows: index of the question → its row of predictions.jsonl.

  Raises:
    ValueError: the folder has answers with other settings or to other questions, or too few episodes.
  """

  def __init__(self, out: pathlib.Path, settings: Mapping[str, Any], examples: Sequence[structs.Example]):
    self.out = out
    out.mkdir(parents=True, exist_ok=True)
    found = jsonl.repair(out / PREDICTIONS)
    # Rows without an index come from an older version, which wrote them in the questions' order.
    self.rows = {row.get("index", place): row for place, row in enumerate(found)}
    if found:
      _check(out, self.rows, settings, examples)
    else:
      write_json(out / SETTINGS, settings)
    # The episode is written before the row, so only the last episode can lack its row.
    if jsonl.cut(out / episodes_lib.PLAYED, len(found)) < len(found) < len(examples):
      raise ValueError(
        f"{out / episodes_lib.PLAYED} holds fewer episodes than {PREDICTIONS} has rows, as evaluations of older "
        "versions do: choose another --out, or delete the folder."
      )
    self._files = [open(out / name, "ab") for name in (episodes_lib.PLAYED, PREDICTIONS)]

  def add(self, index: int, row: Mapping[str, Any], scored: rewards.Scored) -> None:
    """Appends the answer to question number `index`."""
    episode = {"index": index, **episodes_lib.played(scored.example, scored.episode)}
    numbered = {"index": index, **row}
    for file, line in zip(self._files, (episode, numbered), strict=True):
      file.write(jsonl.line(line).encode())
      file.flush()
    self.rows[index] = numbered

  def close(self) -> None:
    """Closes the files. A later AnswerFiles can continue them."""
    for file in self._files:
      file.close()

  def finish(self) -> list[dict[str, Any]]:
    """Sorts both files into the questions' order; returns the sorted rows."""
    self.close()
    for name in (episodes_lib.PLAYED, PREDICTIONS):
      in_order(self.out / name)
    return [self.rows[index] for index in sorted(self.rows)]


def in_order(path: pathlib.Path) -> None:
  """Sorts the lines of a file by their index, atomically."""
  # An evaluation's episodes may exceed the memory, so only the lines' positions are kept.
  lines, at = [], 0
  with open(path, "rb") as file:
    for place, line in enumerate(file):
      found = _INDEX.match(line)
      lines.append((int(found[1]) if found else place, at, len(line)))
      at += len(line)
  if lines == sorted(lines):
    return
  with jsonl.whole(path) as part, open(path, "rb") as file, open(part, "wb") as out:
    for _, at, size in sorted(lines):
      file.seek(at)
      out.write(file.read(size))


def write_json(path: pathlib.Path, values: Mapping[str, Any]) -> None:
  """Writes an indented JSON file atomically."""
  with jsonl.whole(path) as part:
    part.write_text(json.dumps(jsonl.plain(values), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check(out: pathlib.Path, rows: Mapping[int, Mapping], settings, examples: Sequence[structs.Example]) -> None:
  """Refuses to continue the answers of another evaluation."""
  path = out / SETTINGS
  before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
  settings = jsonl.plain(settings)
  differ = [name for name in sorted({*before, *settings}) if before.get(name) != settings.get(name)]
  if differ:
    raise ValueError(
      f"{out} holds predictions made with other settings ({', '.join(f'{n}: {before.get(n)!r}' for n in differ)}; now "
      f"{', '.join(repr(settings.get(n)) for n in differ)}): choose another --out, or delete the folder."
    )
  for line, (index, row) in enumerate(rows.items(), 1):
    asked = examples[index] if index < len(examples) else None
    if asked is None or (row["id"], row["question"]) != (asked.id, asked.question):
      raise ValueError(
        f"{out / PREDICTIONS}:{line}: this prediction is for another question than the data's row {index + 1}: "
        "choose another --out, or delete the folder."
      )
