"""The questions of one evaluation, or of two with the same: scores in columns, means of subsets; a run's changes."""

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.core.metrics import stats
from ragrl_jax.store import jsonl

MAX_GOLDS = 5  # golds per question
MAX_SIGNS = 400  # characters of a question or an answer
MEASURES = dict(em="Exact match", f1="F1", cover_em="Gold in the answer", outcome="Correct by the recipe")
COUNTS = dict(num_searches="Searches", response_tokens="Tokens")
Row = Mapping[str, Any]


def joined(paths: Sequence[pathlib.Path]) -> tuple[list[tuple[Row, ...]], int]:
  """(for each question, its rows of all files with their `line`; number of rows without a partner).

  Questions are matched by set, id, text and golds, in the order of the first file.

  Raises:
    ValueError: a damaged file, or two evaluations without a common question.
  """
  result = []
  for path in paths:
    result.append(_by_question(dict(row, line=line) for line, row in enumerate(jsonl.read(path, torn_end=True))))
  common = [tuple(of[key] for of in result) for key in result[0] if all(key in of for of in result[1:])]
  if not common:
    raise ValueError(f"{' and '.join(map(str, paths))}: they have no question in common.")
  return common, sum(map(len, result)) - len(common) * len(result)


def columns(questions: Sequence[tuple[Row, ...]], traces: Sequence[int]) -> dict[str, Any]:
  """The questions as columns, which need a third of the bytes of rows.

  Args:
    questions: see `joined`.
    traces: number of each question's trace in the page; -1 without a trace.

  Returns:
    {"id", "question", "golds", "source", "hops", "trace", "sides": [{"said", measures of MEASURES and COUNTS, "ended",
    "line"}]}. "source" and "ended" are numbers in the lists "sources" and "ends".
  """
  sources, ends = _Names(), _Names()
  first = [rows[0] for rows in questions]
  sides = [
    {
      "said": [cut(row["prediction"]) for row in side],
      **{name: [_round(row.get(name)) for row in side] for name in (*MEASURES, *COUNTS)},
      "ended": [ends(row["ended"]) for row in side],
      "line": [row["line"] for row in side],
    }
    for side in zip(*questions, strict=True)
  ]
  return {
    "id": [row["id"] for row in first],
    "question": [cut(row["question"]) for row in first],
    "golds": [[cut(gold) for gold in row["golds"][:MAX_GOLDS]] for row in first],
    "source": [sources(row.get("source") or "") for row in first],
    "hops": [row.get("hops") for row in first],
    "trace": list(traces),
    "sides": sides,
    "sources": list(sources),
    "ends": list(ends),
  }


def measured(questions: Sequence[tuple[Row, ...]]) -> list[dict[str, Any]]:
  """Means over all questions, and over each set, each number of hops and each ending, if there are several.

  Returns:
    [{"group": "", "Set", "Hops" or "Ended", "name", "n", "sides": [{measure: mean}], "interval"}]. The interval is that
    of exact match. With two sides it is that of the difference, and an entry also has "difference", "won", "lost",
    "right", "wrong" and "p", of the paired permutation test over questions (for scores of 0 and 1: McNemar's test).
    Questions that failed on a side are left out.
  """
  answered = [rows for rows in questions if all(row["ended"] != "failed" for row in rows)]
  parts = [("", "all questions", answered)]
  for group, of in (("Set", _source), ("Hops", _hops), ("Ended", _ended)):
    in_order = (lambda name: (len(name), name)) if group == "Hops" else None
    names = sorted({of(rows[-1]) for rows in answered} - {""}, key=in_order)
    if len(names) > 1:
      parts += [(group, name, [rows for rows in answered if of(rows[-1]) == name]) for name in names]
  return [_part(group, name, rows) for group, name, rows in parts if rows]


def _part(group: str, name: str, questions: Sequence[tuple[Row, ...]]) -> dict[str, Any]:
  sides = list(zip(*questions, strict=True))
  means = lambda side: {name: stats.mean_known(row.get(name) for row in side) for name in (*MEASURES, *COUNTS)}
  result: dict[str, Any] = {"group": group, "name": name, "n": len(questions), "sides": [*map(means, sides)]}
  scores = [np.asarray([row["em"] for row in side], float) for side in sides]
  if len(sides) == 1:
    return result | {"interval": stats.bootstrap_interval(scores[0], seed=0)}
  difference = scores[1] - scores[0]
  right = [score > 0 for score in scores]
  better, worse = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
  return result | {
    "difference": float(difference.mean()),
    "interval": stats.bootstrap_interval(difference, seed=0),
    "won": better,
    "lost": worse,
    "right": int((right[0] & right[1]).sum()),
    "wrong": int((~right[0] & ~right[1]).sum()),
    "p": stats.paired_permutation(*right)[1],
  }


class _Names(dict):
  """Names → numbers, in the order of their first use."""

  def __call__(self, name: str) -> int:
    return self.setdefault(name, len(self))


_source: Callable[[Row], str] = lambda row: row.get("source") or ""
_hops: Callable[[Row], str] = lambda row: "" if row.get("hops") is None else str(row["hops"])
_ended: Callable[[Row], str] = lambda row: row["ended"] or "(nothing)"


def _round(value: float | None) -> float | int | None:
  """The value with four digits. Whole numbers become ints, which are shorter."""
  if value is None:
    return None
  short = float(f"{value:.4g}")
  return int(short) if short.is_integer() else short


def cut(text: str | None) -> str | None:
  """The text, shortened if needed; None (no answer) stays None."""
  return text if text is None or len(text) <= MAX_SIGNS else text[:MAX_SIGNS] + " …"


MAX_ROWS = 2_000  # questions in a page


def gather_changes(workdir: pathlib.Path, *, max_rows: int = MAX_ROWS) -> dict[str, Any] | None:
  """A run's answers at its first and at its last evaluation; None unless it has stored those of two.

  Questions are matched by set, id, text and golds. Questions that failed in either evaluation are left out. Questions
  whose exact match changed come first, so that a shortened table keeps what was learned and what was lost.

  Returns:
    {"steps": (first, last), "counts": {kind: number of questions}, "rows": the questions, "left_out": number of
    questions beyond max_rows}. A row is {"id", "question", "golds", "source", "hops", "kind", "before", "after"}; a
    side is {"said", "searches"}; a kind is "gained", "lost", "right" (both times) or "wrong" (both times).
  """
  files = jsonl.step_files(pathlib.Path(workdir) / jsonl.EVALUATIONS)
  if len(files) < 2:
    return None
  first, last = min(files), max(files)
  rows_of = lambda step: (row for row in jsonl.read(files[step]) if row["ended"] != "failed")
  before, after = (_by_question(rows_of(step)) for step in (first, last))
  rows = [_row(before[key], after[key]) for key in after if key in before]
  order = ("gained", "lost", "wrong", "right")
  counts = {kind: sum(row["kind"] == kind for row in rows) for kind in order}
  rows.sort(key=lambda row: order.index(row["kind"]))  # stable: within a kind, the order of the file
  return {"steps": (first, last), "counts": counts, "rows": rows[:max_rows], "left_out": max(len(rows) - max_rows, 0)}


def _by_question(rows: Iterable[Row]) -> dict[Any, Row]:
  return {(row.get("source") or "", row["id"], row.get("question"), tuple(row.get("golds", ()))): row for row in rows}


def _row(before: Row, after: Row) -> dict[str, Any]:
  kinds = {(0, 1): "gained", (1, 0): "lost", (1, 1): "right", (0, 0): "wrong"}
  return {
    "id": after["id"],
    "question": cut(after["question"]),
    "golds": [cut(gold) for gold in after["golds"][:MAX_GOLDS]],
    "source": after.get("source") or "",
    "hops": after.get("hops"),
    "kind": kinds[int(bool(before["em"])), int(bool(after["em"]))],
    "before": {"said": cut(before["prediction"]), "searches": before["num_searches"]},
    "after": {"said": cut(after["prediction"]), "searches": after["num_searches"]},
  }
