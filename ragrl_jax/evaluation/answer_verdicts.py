"""A judge's verdicts on the answers of an evaluation with any recipe, stored in the evaluation's folder."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa, stats
from ragrl_jax.core.text import aligned
from ragrl_jax.evaluation import answer_files, comparison
from ragrl_jax.evaluation.answer_files import PREDICTIONS
from ragrl_jax.judging import judge_api
from ragrl_jax.store import jsonl

FILE, SUMMARY = "judged.jsonl", "judged.json"
_SHARES = ("accuracy", "em", "agreement")

Rows = Sequence[Mapping[str, Any]]
Ask = Callable[[list[tuple[str, str]]], list[float | None]]  # (right answers, given answer) → verdicts


def predictions(folders: str) -> list[dict[str, Any]]:
  """The prediction rows of one system, with the verdicts beside them.

  Args:
    folders: a folder of an evaluation, or a glob of such folders.

  Raises:
    FileNotFoundError: no folder has predictions.
    ValueError: an evaluation has not ended, or see `beside`.
  """
  folders_of_seeds = [part for folder in answer_files.named(folders) for part in answer_files.parts(folder)]
  paths = [folder / PREDICTIONS for folder in folders_of_seeds]
  if not (paths := [path for path in paths if path.exists()]):
    raise FileNotFoundError(f"--results={folders}: no {PREDICTIONS} there.")
  return [row for path in paths for row in beside(path.parent, answer_files.rows(path.parent))]


def judged(rows: Rows, ask: Ask) -> list[dict[str, Any]]:
  """One row per prediction: source, id, golds, prediction and verdict.

  A question without an answer gets 0; the judge is not asked. A failed question has no row. Equal pairs are asked once.

  Args:
    ask: asks the judge; gives None if its verdict cannot be read.
  """
  answered = [row for row in rows if row["ended"] != "failed"]
  pairs = [(judge_api.references(row["golds"]), row["prediction"] or "") for row in answered]
  about = lambda row: {name: row[name] for name in ("source", "id", "golds", "prediction")}
  return [about(row) | dict(verdict=verdict) for row, verdict in zip(answered, judge_api.each(pairs, ask))]


def beside(folder: pathlib.Path, rows: Rows) -> list[Mapping[str, Any]]:
  """The predictions of a folder, with a column `judged` if it has verdicts (None: not judged, or failed).

  Raises:
    ValueError: a verdict is missing, or was given on another answer than the prediction, or with other golds.
  """
  if not (folder / FILE).is_file():
    return list(rows)
  verdicts = {(row["source"], row["id"]): row for row in jsonl.read(folder / FILE)}
  result: list[Mapping[str, Any]] = []
  for row in rows:
    its = verdicts.get((row["source"], row["id"]))
    if its is None and row["ended"] != "failed":
      raise ValueError(
        f"{folder / FILE}: no verdict on question {row['id']!r}: run `ragrl judge` again, or delete the file."
      )
    if its is not None and (its["prediction"], its.get("golds")) != (row["prediction"], list(row["golds"])):
      raise ValueError(
        f"{folder / FILE}: the verdict on question {row['id']!r} was given on another answer than the prediction, or "
        "with other golds: run `ragrl judge` again, or delete the file."
      )
    result.append({**row, "judged": None if its is None else its["verdict"]})
  return result


def totals(rows: Rows, verdicts: Rows) -> dict[str, dict[str, Any]]:
  """{set: {"n" judged, "unjudged", "accuracy", its 95 % "interval", "em" of the same answers, "agreement"}}.

  The agreement is that of verdict (right from 0.5 on) and exact match. With several sets, "" has the macro average.
  """
  answered = [row for row in rows if row["ended"] != "failed"]
  of_set: dict[str, list[tuple[float | None, float]]] = {}
  for row, verdict in zip(answered, verdicts, strict=True):
    exact = 0.0 if row["prediction"] is None else qa.exact_match(row["prediction"], row["golds"])
    of_set.setdefault(row["source"] or "", []).append((verdict["verdict"], exact))
  result = {name: _total(pairs) for name, pairs in sorted(of_set.items())}
  if len(result) > 1 and all(of["n"] for of in result.values()):
    total = {key: sum(of[key] for of in result.values()) for key in ("n", "unjudged", *_SHARES)}
    total |= {key: total[key] / len(result) for key in _SHARES}
    result = comparison.named(result) | {"": total}
  return result


def _total(pairs: Sequence[tuple[float | None, float]]) -> dict[str, Any]:
  known = [(verdict, exact) for verdict, exact in pairs if verdict is not None]
  result: dict[str, Any] = dict(n=len(known), unjudged=len(pairs) - len(known))
  if not known:
    return result
  verdicts, matches = zip(*known)
  agreed = [(verdict >= 0.5) == (exact == 1.0) for verdict, exact in known]
  mean, interval = stats.mean_known, list(stats.bootstrap_interval(verdicts, seed=0))
  return result | dict(accuracy=mean(verdicts), interval=interval, em=mean(matches), agreement=mean(agreed))


def text(sets: Mapping[str, Mapping[str, Any]]) -> str:
  """The result of `totals` as a plain table."""
  lines = [("set", "judge", "95 %", "em", "agreement", "n", "unjudged")]
  for name, of in sets.items():
    shares = [f"{of[key]:.3f}" if key in of else "–" for key in _SHARES]
    between = "{:.3f} to {:.3f}".format(*of["interval"]) if "interval" in of else "–"
    what = name or ("macro average" if len(sets) > 1 and name == list(sets)[-1] else comparison.NAMELESS)
    lines.append((what, shares[0], between, *shares[1:], str(of["n"]), str(of["unjudged"])))
  return aligned.columns(lines)
