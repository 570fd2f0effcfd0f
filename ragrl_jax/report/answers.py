"""The table of held-out questions: a run's answers at its first and at its last evaluation."""

import pathlib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.report.question_rows import MAX_GOLDS, cut
from ragrl_jax.store import jsonl

MAX_ROWS = 2_000  # questions in a page


def gather(workdir: pathlib.Path, *, max_rows: int = MAX_ROWS) -> dict[str, Any] | None:
  """The page's table; None unless the run has stored the answers of two evaluations.

  Questions are matched by set, id, text and golds. Questions that failed in either evaluation are left out. Questions
  whose exact match changed come first, so that a shortened table keeps what was learned and what was lost.

  Returns:
    {"steps": (first, last), "counts": {kind: number of questions}, "rows": the questions, "left_out": number of
    questions beyond max_rows}. A row is {"id", "question", "golds", "source", "hops", "kind", "before", "after"}; a
    side is {"said", "searches"}; a kind is "gained", "lost", "right" (both times) or "wrong" (both times).
  """
  found = jsonl.step_files(pathlib.Path(workdir) / jsonl.EVALUATIONS)
  if len(found) < 2:
    return None
  first, last = min(found), max(found)
  before, after = (_by_question(found[step]) for step in (first, last))
  rows = [_row(before[key], after[key]) for key in after if key in before]
  order = ("gained", "lost", "wrong", "right")
  counts = {kind: sum(row["kind"] == kind for row in rows) for kind in order}
  rows.sort(key=lambda row: order.index(row["kind"]))  # stable: within a kind, the order of the file
  return {"steps": (first, last), "counts": counts, "rows": rows[:max_rows], "left_out": max(len(rows) - max_rows, 0)}


def _by_question(path: pathlib.Path) -> dict[Any, Mapping[str, Any]]:
  rows = (row for row in jsonl.read(path) if row["ended"] != "failed")
  return {(row.get("source") or "", row["id"], row.get("question"), tuple(row.get("golds", ()))): row for row in rows}


def _row(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
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
