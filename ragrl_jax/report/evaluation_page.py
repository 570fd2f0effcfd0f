"""Writes the page of one or two evaluations: tables, a browser of the questions, and their episodes."""

import json
import os
import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.report import (
  excerpt,
  kept_traces,
  metric_tables,
  page as page_lib,
  question_rows,
  rendering,
  side_by_side,
)
from ragrl_jax.store import jsonl

PREDICTIONS, METRICS = "predictions.jsonl", "metrics.json"
PROBE, RETRIEVERS = "probe.json", {"empty": "empty", "own": "own/seed_0"}  # of a probe, and its evaluations on the page
# Measures of the run, not of its answers.
ABOUT = {"n", "failed", "unjudged", "seconds", "seconds_cover", "latency", "price"}
FACTS = dict(
  Recipe="recipe", System="system", Model="model", Checkpoint="checkpoint", Questions="data", Decoding="sampling",
  Retrieval="retrieval",
)  # fmt: skip
_ABOVE = re.compile(
  r"(?<![\w:.])/(?:[^/\s,]+/)+(?=(?:[^/\s,]+/){2}[^/\s,]+)"
)  # of a path, all but its last three names
# Measures of `harness.summarise` that metric_tables.LINES leaves out.
MEASURES = {
  "char_f1": "F1 over letters",
  "em_spaced": "Exact match, punctuation as spaces",
  "f1_spaced": "F1, punctuation as spaces",
  "precision": "Precision of the answer's words",
  "recall": "Recall of the gold's words",
  "repeated_searches": "Searches with an earlier query's words",
  "stale_searches": "Searches that found nothing new",
  "found_answer": "A gold in what was found",
  "found_gold": "Gold passages found",
  "given_tokens": "Tokens given: prompt and results",
  "confidence": "Probability of the last turn's tokens",
  "ece": "Calibration error of that probability",
  "brier": "Brier score of that probability",
}


def is_folder(folder: str | os.PathLike) -> bool:
  """Whether a folder holds an evaluation (with one or several seeds) or a probe, and not a training run."""
  folder = pathlib.Path(folder)
  return any((folder / name).is_file() for name in (PREDICTIONS, f"seed_0/{PREDICTIONS}", PROBE))


def write(
  folders: Sequence[str | os.PathLike], out: str | os.PathLike | None = None, *, max_bytes: int = excerpt.MAX_BYTES
) -> pathlib.Path:
  """Writes the page of one finished evaluation or probe, or of two evaluations on the same questions.

  Args:
    folders: one folder, or the earlier (or weaker) and the later one. Of a probe, the page has the verdict and shows
      its evaluations with an empty retriever and with the run's own.
    out: the file to write; FOLDER/report.html if None.
    max_bytes: size of the episodes in the page, see `kept_traces.chosen`.

  Raises:
    ValueError: more than two folders, one without a finished evaluation, one with a damaged file, or two evaluations
      without a common question.
  """
  page = rendering.evaluation(gather(folders, max_bytes=max_bytes))
  out = pathlib.Path(out) if out is not None else pathlib.Path(folders[0]) / "report.html"
  jsonl.write_text(out, page)
  return out


def gather(folders: Sequence[str | os.PathLike], *, max_bytes: int = excerpt.MAX_BYTES) -> dict[str, Any]:
  """The contents of the page as plain data."""
  if len(folders) > 2:
    raise ValueError(f"{len(folders)} evaluations were given: a page has one or two; `ragrl compare` takes more.")
  paths = [pathlib.Path(folder) for folder in folders]
  probe = jsonl.read_object(paths[0] / PROBE)
  if probe:
    paths = [paths[0] / name for name in RETRIEVERS.values()]
  names = list(RETRIEVERS) if probe else side_by_side.distinct([path.resolve() for path in paths])
  metrics = [_metrics(path) for path in paths]
  questions, unpaired = question_rows.joined([path / PREDICTIONS for path in paths])
  places = kept_traces.chosen(questions, paths, max_bytes)
  traces = [-1] * len(questions)
  for number, place in enumerate(places):
    traces[place] = number
  parts = question_rows.measured(questions)
  runs = [_run(name, one) for name, one in zip(names, metrics)]
  common = [fact for fact in runs[0]["facts"] if len(runs) > 1 and fact in runs[1]["facts"]]
  for run in runs:
    run["facts"] = [fact for fact in run["facts"] if fact not in common]
  return {
    "names": names,
    "runs": runs,
    "common": common,
    "probe": probe,
    "written": page_lib.clock(time.time()),
    "table": metric_tables.comparison(*((None, metrics[0]) if len(metrics) == 1 else metrics)),
    "terms": _terms(metrics),
    "parts": parts,
    "measures": {name: label for name, label in question_rows.MEASURES.items() if _known(parts, name)},
    "counts": {name: label for name, label in question_rows.COUNTS.items() if _known(parts, name)},
    "index": question_rows.columns(questions, traces),
    "blocks": kept_traces.blocks(questions, paths, places),
    "total": len(questions),
    "alone": unpaired,
    "kept": len(places),
    "settings": side_by_side.differing([dict(page_lib.flat(one["settings"])) for one in metrics])
    if len(metrics) > 1
    else [{"path": path, "values": [page_lib.said(value)]} for path, value in page_lib.flat(metrics[0]["settings"])],
  }


def _metrics(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / METRICS
  if missing := [name for name in (PREDICTIONS, METRICS) if not (folder / name).is_file()]:
    raise ValueError(
      f"{folder}: no {missing[0]} here, so this is not a finished evaluation. Name a "
      "folder that `ragrl evaluate` has finished (with several seeds, one of its folders seed_0, seed_1, …)."
    )
  try:
    metrics = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is damaged ({error}): delete it and run `ragrl evaluate` again.") from None
  if "em" not in metrics:
    raise ValueError(f"{path}: no exact match, so it is not of answers: a page shows those of `ragrl evaluate`.")
  return metrics | {"settings": metrics.get("settings") or {}}


def _run(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
  """The header of one evaluation."""
  settings = metrics["settings"]
  facts = [(label, metric_tables.in_words(settings[key])) for label, key in FACTS.items() if settings.get(key)]
  facts = [(label, _ABOVE.sub("…/", value), value) for label, value in facts]
  unknown = dict(seconds=None, seconds_cover=None, devices="", price=None, latency=None, failed=0, unjudged=0)
  return {"name": name, "facts": facts} | {key: metrics.get(key, value) for key, value in unknown.items()}


def _terms(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """[{"group", "name", "values"}]: means of terms and measures, and how episodes ended."""
  shown_names = {key for _, key in metric_tables.LINES} | ABOUT
  others = dict.fromkeys(
    name for one in metrics for name, value in one.items() if isinstance(value, int | float) and name not in shown_names
  )
  groups = {"terms": "Reward term", "pooled": "Pooled over pairs", "measure": "Measure", "ended": "Ended by"}
  names = [(key, name) for key in groups for name in dict.fromkeys(n for one in metrics for n in one.get(key) or {})]
  line = lambda group, name, values: {"group": group, "name": name, "values": list(values)}
  terms = [line(groups[key], name, ((one.get(key) or {}).get(name) for one in metrics)) for key, name in names]
  return terms + [line("", MEASURES.get(name, name), (one.get(name) for one in metrics)) for name in others]


def _known(parts: Sequence[Mapping[str, Any]], measure: str) -> bool:
  """Whether a measure has values. Zeros of a recipe that never searches do not count."""
  values = [side[measure] for part in parts for side in part["sides"]]
  return any(values) if measure == "num_searches" else any(value is not None for value in values)
