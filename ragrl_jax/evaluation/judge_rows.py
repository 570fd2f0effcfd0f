"""A judge's verdicts on labelled pairs, as the folder of an evaluation for `ragrl tables`; and whose the labels are."""

import csv
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.evaluation import raters
from ragrl_jax.evaluation.answer_files import METRICS, PREDICTIONS
from ragrl_jax.store import changes, jsonl
from ragrl_jax.structs import Example, Passage

LABELS = "labels.json"
SOURCE = "pairs of steps"


def write_labels(folder: str | pathlib.Path, labels: Mapping[str, Any]) -> None:
  """Writes who labelled the pairs of a folder, with the SHA-256 of its files."""
  place = pathlib.Path(folder)
  files = {file.name: _sha256(file) for file in sorted(place.glob("*.jsonl.gz"))}
  with jsonl.whole(place / LABELS) as part:
    part.write_text(json.dumps(dict(labels, files=files), indent=1), encoding="utf-8")


def by_hand(path: str | pathlib.Path) -> list[Example]:
  """The pairs that a person has labelled in a sheet (`raters.write_sheet`), as examples of `distil`.

  Raises:
    ValueError: no row has a label; see also `raters.read_sheet`.
  """
  labels = raters.read_sheet(path)
  with open(path, encoding="utf-8-sig", newline="") as file:
    rows = [row for row in csv.DictReader(file) if raters.same(row["premise"], row["claim"]) in labels]
  if not rows:
    raise ValueError(f"{path}: no row has a label: put 1 or 0 into the column label.")
  label = lambda row: labels[raters.same(row["premise"], row["claim"])]
  return [Example(row["id"], row["claim"], (label(row),), (Passage("1", "", row["premise"]),)) for row in rows]


def write(
  out: str | pathlib.Path,
  path: str,
  pairs: Sequence[Example],
  verdicts: Sequence[float | None],
  judge: Mapping[str, Any],
  model: str,
  **trained: str,
) -> None:
  """Writes the judge's verdicts as predictions, and its agreement with the labels as metrics.

  A pair without a verdict is a failed question: it is in no number.

  Args:
    out: the folder.
    path: the file of the labelled pairs.
    pairs, verdicts: the pairs, and a verdict for each, or None.
    judge: the judge's `describe`.
    model: the folder of its model, "" without one.
    **trained: recipe and preset of the training of such a judge.
  """
  rows = [
    dict(id=pair.id, question=pair.question, golds=list(pair.golds), source=SOURCE, terms={},
         prediction=None if verdict is None else str(int(verdict >= 0.5)), ended="failed" if verdict is None else "eos")
    for pair, verdict in zip(pairs, verdicts, strict=True)
  ]  # fmt: skip
  known = {number: row for number, row in enumerate(rows) if row["prediction"] is not None}
  both = dict(
    labels={n: row["golds"][0] for n, row in known.items()}, judge={n: row["prediction"] for n, row in known.items()}
  )
  of = raters.agreement(both)["pairs"]["labels, judge"]
  settings = dict(trained, data=path, judges={"": dict(judge)}, labels=_labels(path, model))
  if judge["kind"] == "llm":
    settings |= dict(model=judge["model"], endpoint=judge["endpoint"] or "OpenAI")
  elif model:
    settings |= dict(checkpoint=model)
  metrics = dict(n=len(known), failed=len(rows) - len(known), consistency=of["agreement"], kappa=of["cohen_kappa"])
  metrics |= dict(kappa_interval=of["cohen_kappa_interval"], settings=settings)
  pathlib.Path(out).mkdir(parents=True, exist_ok=True)
  jsonl.write(pathlib.Path(out) / PREDICTIONS, rows)
  with jsonl.whole(pathlib.Path(out) / METRICS) as part:
    part.write_text(json.dumps(jsonl.plain(metrics), indent=2), encoding="utf-8")


def _labels(path: str, model: str) -> dict[str, Any]:
  """Who labelled the pairs; `by` is "unknown" if no file beside them says so. `trained_on` says whether the judge was
  trained on "these" labels or on "others", if its run's training file is here."""
  if path.endswith(".csv"):
    return dict(by="person")
  beside = pathlib.Path(path).parent / LABELS
  found = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
  files = found.pop("files", {})
  if files.get(pathlib.Path(path).name) != _sha256(pathlib.Path(path)):
    return dict(by="unknown")
  config = pathlib.Path(model).parent / changes.FILE
  run = json.loads(config.read_text(encoding="utf-8")) if model and config.is_file() else {}
  if (trained := pathlib.Path((run.get("data") or {}).get("train") or "")).is_file():
    found["trained_on"] = "these" if _sha256(trained) in files.values() else "others"
  return found


def _sha256(path: pathlib.Path) -> str:
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
