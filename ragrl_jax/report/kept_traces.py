"""Chooses the episodes for an evaluation's page: as many as fit, evenly over the questions, in blocks."""

import itertools
import json
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import searches
from ragrl_jax.report import marks
from ragrl_jax.store import episodes

BLOCK = 32  # questions per block. The page loads a block on demand, and its passages are compressed together
TRIED = 64  # episodes from which the size of all is estimated
MAX_FACTS = 4_000  # characters
_STRIDE = 0.6180339887498949  # golden ratio − 1: its multiples modulo 1 are spread evenly


def chosen(
  questions: Sequence[tuple[Mapping[str, Any], ...]], folders: Sequence[pathlib.Path], max_bytes: int
) -> list[int]:
  """Indices of the questions whose episodes are kept, in order. Questions whose exact match changed come first.

  Args:
    questions: see `question_rows.joined`.
    max_bytes: most bytes of the episodes in the page. Their size is estimated from a few of them.
  """
  order = sorted(range(len(questions)), key=lambda place: place * _STRIDE % 1)
  changed = lambda rows: len({bool(row["em"]) for row in rows}) > 1
  order.sort(key=lambda place: not changed(questions[place]))  # stable
  tried = order[:TRIED]
  # A block is compressed as a whole, since its episodes may have passages in common.
  made = blocks(questions, folders, sorted(tried))
  spent = sum(len(zlib.compress(json.dumps(block).encode())) for block in made)
  held = any(trace is not None for block in made for sides in block for trace in sides)
  each = max(1.0, spent * 4 / 3 / max(1, len(tried)))  # base64 turns three bytes into four
  return sorted(order[: int(max_bytes / each)]) if held else []


def blocks(
  questions: Sequence[tuple[Mapping[str, Any], ...]], folders: Sequence[pathlib.Path], places: Sequence[int]
) -> list[list[list[dict[str, Any] | None]]]:
  """Traces of the questions with these indices, as nested lists: blocks, questions, sides. A missing trace is None."""
  found = [read(folder, {questions[place][side]["line"] for place in places}) for side, folder in enumerate(folders)]

  def trace(side: int, row: Mapping[str, Any]) -> dict[str, Any] | None:
    packed = found[side].get(row["line"])
    return None if packed is None else json.loads(zlib.decompress(packed))

  traces = [[trace(side, row) for side, row in enumerate(questions[place])] for place in places]
  return [traces[at : at + BLOCK] for at in range(0, len(traces), BLOCK)]


def read(folder: pathlib.Path, lines: set[int]) -> dict[int, bytes]:
  """Reads episodes by their line numbers in episodes.jsonl. `lines`: line numbers, from 0.

  Returns:
    Line number → compressed trace; {} if the file does not exist.

  Raises:
    ValueError: a line is not a JSON object.
  """
  path = folder / episodes.PLAYED
  if not path.exists() or not lines:
    return {}
  found, last = {}, max(lines)
  with open(path, "rb") as file:  # most lines need not be parsed
    for number, line in enumerate(itertools.islice(file, last + 1)):
      if number in lines and line.endswith(b"\n"):
        try:
          row = json.loads(line)
        except ValueError as error:
          raise ValueError(f"{path}:{number + 1}: not a JSON object ({error}); correct or delete the line.") from error
        found[number] = zlib.compress(json.dumps(compact(row)).encode())
  return found


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
  """An episode for the page: texts in runs (`marks`), gold and cited passages, judged steps, other facts."""
  golds, verdicts = set(row.get("gold_ids") or ()), iter(searches.verdicts(*searches.in_row(row)))
  segments = []
  for segment, more in zip(row["segments"], marks.marked(row), strict=True):
    item: dict[str, Any] = {"owner": segment["owner"]}
    if segment["owner"] == structs.MODEL:
      item |= {"stop": segment.get("stop", ""), **more}
    elif segment.get("found") is None:
      item |= more
    else:
      item |= {"query": segment.get("query"), "verdict": next(verdicts)}
      item["found"] = [
        {"title": one["title"] or one["id"], "score": one["score"], "gold": one["id"] in golds, **its}
        for one, its in zip(segment["found"], more["found"], strict=True)
      ]
    segments.append(item)
  judged = marks.judged(row)
  shown = {structs.NO_VERDICT, *(one["term"] for one in judged)}
  others = {name: value for name, value in row["facts"].items() if name not in shown}
  facts = json.dumps(others, ensure_ascii=False, indent=1) if others else ""
  return {
    "ended": row["ended"],
    "failure": row["failure"] or row["facts"].get(structs.NO_VERDICT, ""),
    "segments": segments,
    "judged": judged,
    "facts": facts if len(facts) <= MAX_FACTS else facts[:MAX_FACTS] + " …",
  }
