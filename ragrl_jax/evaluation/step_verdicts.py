"""Judges' verdicts on the steps of an evaluation's episodes, from files of `ragrl faithfulness`."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragrl_jax.evaluation import played_rows, raters
from ragrl_jax.store import jsonl

# (term, kind of judge) → (file, the judge, data set → its verdicts on the term)
Verdicts = Mapping[tuple[str, str], tuple[str, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]]
Rows = Sequence[Mapping[str, Any]]


def read(files: Iterable[str | pathlib.Path]) -> dict[str, dict[str, Any]]:
  """{path: contents of the file}.

  Raises:
    ValueError: a file is not of `ragrl faithfulness`.
  """
  contents = {}
  for path in map(str, files):
    try:
      contents[path] = jsonl.read_object(pathlib.Path(path))
    except ValueError:
      contents[path] = {}
    if not {"judges", "systems"} <= contents[path].keys():
      raise ValueError(
        f"--runs={path}: this is neither an evaluation's folder nor a file of `ragrl faithfulness --out`."
      )
  return contents


def on(folder: str, contents: Mapping[str, Mapping[str, Any]]) -> Verdicts:
  """The verdicts in files (`read`) on the episodes of an evaluation's folder, which are found by their digest.

  Raises:
    ValueError: two files have verdicts of one kind on a term.
  """
  verdicts: dict[tuple[str, str], Any] = {}
  digest = played_rows.digest(pathlib.Path(folder)) if contents else ""
  for path, file in contents.items():
    for sets in [system["sets"] for system in file["systems"] if digest and digest in system["folders"].values()]:
      for term, judge in file["judges"].items():
        its = {name: of_set.get(term, {}) for name, of_set in sets.items()}
        if (first := verdicts.setdefault((term, judge["kind"]), (path, judge, its))[0]) != path:
          raise ValueError(
            f"--runs={path}: {first} has {judge['kind']} verdicts on {term} of {folder}, too: give one of them."
          )
  return verdicts


def pooled(rows: Rows, verdicts: Verdicts, automatic: Mapping[str, str]) -> list[dict[str, Any]]:
  """The rows with pooled[TERM/KIND] = (sum, number of pairs), and pooled[TERM] if they have none.

  Args:
    rows: rows of predictions.jsonl.
    verdicts: see `on`.
    automatic: term → the kind of judge whose verdicts pooled[TERM] are.
  """
  result = [{**row, "pooled": dict(row.get("pooled") or {})} for row in rows]
  for (term, kind), (_, _, sets) in verdicts.items():
    for row in result:
      numbers = sets.get(row["source"] or "", {}).get("questions", {}).get(row["id"])
      if numbers is not None:
        row["pooled"][f"{term}/{kind}"] = numbers
        if kind == automatic[term]:
          row["pooled"].setdefault(term, numbers)
  return result


def agreements(rows: Rows, verdicts: Verdicts, compared: Mapping[str, Sequence[str]]) -> dict[str, Any]:
  """TERM_agreement and TERM_kappa (Fleiss's) of two judges on an evaluation, with their _interval and _pairs.

  They are over the distinct pairs with both verdicts. A term is left out if it has one judge, or if the verdicts are
  not on these questions alone, or these are of several sets.

  Args:
    rows: rows of predictions.jsonl.
    verdicts: see `on`.
    compared: term → the kinds of its two judges.
  """
  result, sources = {}, {row["source"] or "" for row in rows}
  ids = {row["id"] for row in rows if row["ended"] != "failed"}
  for term, kinds in compared.items():
    judged = [verdicts[term, kind][2].get(min(sources), {}) for kind in kinds if (term, kind) in verdicts]
    if len(judged) < 2 or len(sources) > 1 or any(its.get("questions", {}).keys() != ids for its in judged):
      continue
    labels = [{pair: str(int(v >= 0.5)) for pair, v in its["verdicts"].items() if v is not None} for its in judged]
    if labels[0].keys() & labels[1].keys():
      agreed = raters.agreement(dict(zip(kinds, labels)))
      for name, key in (("agreement", "agreement"), ("kappa", "fleiss_kappa")):
        result |= {f"{term}_{name}": agreed[key], f"{term}_{name}_interval": agreed[f"{key}_interval"]}
        result[f"{term}_{name}_pairs"] = agreed["n"]
  return result
