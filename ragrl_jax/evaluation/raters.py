"""The agreement of raters (judges or people) on (premise, claim) pairs, sheets for people to label, and a judge's
verdicts as the folder of an evaluation for `ragrl tables`."""

import csv
import functools
import itertools
import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation.answer_files import METRICS, PREDICTIONS, write_json
from ragrl_jax.settings import stored_paths
from ragrl_jax.store import changes, jsonl, row_files, sums
from ragrl_jax.structs import Example, Passage

COLUMNS = ("id", "premise", "claim", "label")
LABELS = ("0", "1")
LABELLED_BY = "labels.json"  # beside labelled pairs: who labelled them
SOURCE = "pairs of steps"
_RESAMPLES = 2_000
_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # how a formula begins, or one that is a text

Pair = tuple[str, str]
Measure = Callable[[np.ndarray], np.ndarray]  # number of items with each pattern of labels [R, P] → values [R]


def agreement(raters: Mapping[str, Mapping[Any, str]], *, seed: int = 0) -> dict[str, Any]:
  """The agreement of raters on the items that all of them have labelled.

  Returns:
    n: items labelled by all raters; left_out: items labelled by some of them.
    agreement: share of pairs of raters with the same label, mean over the items; fleiss_kappa.
    pairs: {"A, B": agreement and cohen_kappa of the two raters}.
    shares: {rater: {label: its share of the rater's labels}}. If a share is near 0 or 1, κ is not informative.
    Every agreement and κ also has an `_interval`: 95 %, percentiles of a bootstrap over the items.

  Raises:
    ValueError: fewer than two raters, or no item that all have labelled.

  Source: the coefficients of `core.metrics.stats`; Efron's bootstrap.
  """
  names = list(raters)
  shared = set.intersection(*(set(rater) for rater in raters.values())) if raters else set()
  if len(names) < 2 or not shared:
    raise ValueError(
      f"{len(names)} judges have labelled {len(shared)} items in common: at least two judges and one item are needed."
    )
  labels = Counter(sorted(tuple(rater[item] for rater in raters.values()) for item in shared))
  pairs = {}
  for i, j in itertools.combinations(range(len(names)), 2):
    of_two = _part(labels, (i, j))
    a, b = zip(*of_two)
    measures = dict(agreement=_agreement(of_two), cohen_kappa=functools.partial(stats.cohen_kappas, a, b))
    pairs[f"{names[i]}, {names[j]}"] = _measured(of_two, measures, seed)
  said_by = {name: [rater[item] for item in shared] for name, rater in raters.items()}
  shares = lambda said: {label: said.count(label) / len(said) for label in sorted(set(said))}
  fleiss = functools.partial(stats.fleiss_kappas, stats.label_counts(list(labels)))
  return dict(
    n=len(shared),
    left_out=len(set().union(*raters.values())) - len(shared),
    **_measured(labels, dict(agreement=_agreement(labels), fleiss_kappa=fleiss), seed),
    pairs=pairs,
    shares={name: shares(said) for name, said in said_by.items()},
  )


def _part(said: Counter, places: Sequence[int]) -> Counter:
  result = Counter()
  for labels, count in said.items():
    result[tuple(labels[place] for place in places)] += count
  return result


def _agreement(labels: Counter) -> Measure:
  return functools.partial(stats.agreement, stats.label_counts(list(labels)))


def _measured(labels: Counter, measures: Mapping[str, Measure], seed: int) -> dict[str, Any]:
  """Each measure, and its interval over resampled items.

  Items with the same labels are equivalent, so the resampling draws numbers of items per pattern, and not the items.
  """
  counts, n = np.asarray([*labels.values()], np.float64), labels.total()
  resamples = np.random.default_rng(seed).multinomial(n, counts / n, size=_RESAMPLES)
  result: dict[str, Any] = {}
  for name, measure in measures.items():
    result[name] = float(measure(counts[None])[0])
    edges = np.percentile(measure(resamples), (2.5, 97.5))
    result[f"{name}_interval"] = [float(edge) for edge in edges]
  return result


def write_sheet(path: str | os.PathLike, pairs: Iterable[tuple[str, Pair]]) -> None:
  """Writes a CSV of (id, (premise, claim)) with an empty column "label", for a person to put 1 or 0 into."""
  with jsonl.whole(path) as part, open(part, "w", encoding="utf-8-sig", newline="") as file:  # Excel wants the mark
    rows = csv.writer(file)
    rows.writerow(COLUMNS)
    rows.writerows((*map(_cell, (name, premise, claim)), "") for name, (premise, claim) in pairs)


def read_sheet(path: str | os.PathLike) -> dict[Pair, str]:
  """{(premise, claim): label} of the rows that a person has labelled; `same` makes the pairs comparable.

  Raises:
    ValueError: the file is not as `row_files.read_rows` takes it, columns are missing, a label is neither 1, 0 nor
      empty, or a pair has two labels; with file and line.
  """
  result: dict[Pair, str] = {}
  for where, row in _rows(path):
    label = row["label"].strip()
    if label and label not in LABELS:
      raise ValueError(f"{where}: the label {label!r} must be 1, 0 or empty.")
    if label and result.setdefault(same(row["premise"], row["claim"]), label) != label:
      raise ValueError(f"{where}: the label is {label!r}, but an earlier row has the other one for the same pair.")
  return result


def _rows(path: str | os.PathLike) -> Iterator[tuple[str, dict[str, str]]]:
  """(place, row) of a sheet, with the texts that `write_sheet` was given."""
  for where, row in row_files.read_rows(path):
    if missing := [name for name in COLUMNS if name not in row]:
      raise ValueError(f"{where}: there is no column {missing[0]!r}; a sheet has {', '.join(COLUMNS)}.")
    yield where, {name: text[text.startswith("'") and bool(_FORMULA.match(text)) :] for name, text in row.items()}


def _cell(text: str) -> str:
  """The text as a cell that spreadsheets show. One that begins like a formula, as the items of a list do, they would
  evaluate, and save its result or error in place of the text."""
  return f"'{text}" if _FORMULA.match(text) else text


def same(premise: str, claim: str) -> Pair:
  """The pair with single spaces: editors of sheets change white space."""
  return " ".join(premise.split()), " ".join(claim.split())


# ---- labelled pairs --------------------------------------------------------------------------------------------------


def write_labels(folder: str | pathlib.Path, labels: Mapping[str, Any]) -> None:
  """Writes who labelled the pairs of a folder, with the SHA-256 of its files."""
  place = pathlib.Path(folder)
  files = {file.name: sums.digest(file) for file in sorted(place.glob("*.jsonl.gz"))}
  write_json(place / LABELLED_BY, dict(labels, files=files))


def labelled_by_hand(path: str | pathlib.Path) -> list[Example]:
  """The pairs that a person has labelled in a sheet (`write_sheet`), as examples of `distil`.

  Raises:
    ValueError: no row has a label; see also `read_sheet`.
  """
  labels = read_sheet(path)
  rows = [row for _, row in _rows(path) if same(row["premise"], row["claim"]) in labels]
  if not rows:
    raise ValueError(f"{path}: no row has a label: put 1 or 0 into the column label.")
  label = lambda row: labels[same(row["premise"], row["claim"])]
  return [Example(row["id"], row["claim"], (label(row),), (Passage("1", "", row["premise"]),)) for row in rows]


def write_verdicts(
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
    model: the folder of its model, "" without one.
    **trained: recipe and preset of the training of such a judge.
  """
  rows = [
    dict(id=pair.id, question=pair.question, golds=list(pair.golds), source=SOURCE, terms={},
         prediction=None if verdict is None else str(int(verdict >= 0.5)), ended="failed" if verdict is None else "eos")
    for pair, verdict in zip(pairs, verdicts, strict=True)
  ]  # fmt: skip
  judged = {number: row for number, row in enumerate(rows) if row["prediction"] is not None}
  pair_counts = dict(
    labels={n: row["golds"][0] for n, row in judged.items()}, judge={n: row["prediction"] for n, row in judged.items()}
  )
  of = agreement(pair_counts)["pairs"]["labels, judge"]
  settings = dict(trained, data=path, judges={"": dict(judge)}, labels=_labels(path, model))
  if judge["kind"] == "llm":
    settings |= dict(model=judge["model"], endpoint=judge["endpoint"] or "OpenAI")
  elif model:
    settings |= dict(checkpoint=model)
  metrics = dict(n=len(judged), failed=len(rows) - len(judged), consistency=of["agreement"], kappa=of["cohen_kappa"])
  metrics |= dict(kappa_interval=of["cohen_kappa_interval"], settings=settings)
  jsonl.write(pathlib.Path(out) / PREDICTIONS, rows)
  write_json(pathlib.Path(out) / METRICS, metrics)


def labelled_by(path: str | pathlib.Path) -> dict[str, Any]:
  """What the file of `write_labels` says of these labelled pairs; {} if it is not there, or is of other pairs."""
  beside = pathlib.Path(path).parent / LABELLED_BY
  result = jsonl.read_object(beside)
  is_known = result and result.get("files", {}).get(pathlib.Path(path).name) == sums.digest(pathlib.Path(path))
  return result if is_known else {}


def _labels(path: str, model: str) -> dict[str, Any]:
  """Who labelled the pairs; `by` is "unknown" if no file beside them says so. `trained_on` says whether the judge was
  trained on "these" labels or on "others", if its run's training file is here."""
  if path.endswith(".csv"):
    return dict(by="person")
  if not (result := labelled_by(path)):
    return dict(by="unknown")
  files = result.pop("files")
  config = pathlib.Path(model).parent / changes.FILE
  run = jsonl.read_object(config) if model else {}
  if (trained := pathlib.Path(stored_paths.found((run.get("data") or {}).get("train") or "", config.parent))).is_file():
    result["trained_on"] = "these" if sums.digest(trained) in files.values() else "others"
  return result
