"""Judges' verdicts on the steps of an evaluation's episodes, from files of `ragrl faithfulness`."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragrl_jax.evaluation import played_rows, raters
from ragrl_jax.store import jsonl

# (term, kind of judge) → (file, the judge, data set → its verdicts on the term)
Verdicts = Mapping[tuple[str, str], tuple[str, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]]
Rows = Sequence[Mapping[str, Any]]


def joined(
  evaluations: Sequence[Any],
  files: Iterable[str | pathlib.Path],
  *,
  automatic: Mapping[str, str],
  compared: Mapping[str, Sequence[str]],
) -> list[Any]:
  """The evaluations, with the verdicts that the files have on their episodes, which are found by their digest.

  Their rows have pooled[TERM/KIND] = (sum, number of pairs), and pooled[TERM] if they had none. Their metrics have
  TERM_agreement and TERM_kappa (Fleiss's) of two judges, with their _interval and _pairs, over the distinct pairs with
  both verdicts. A term is left out there if it has one judge, or if the verdicts are not on these questions alone, or
  these are of several sets.

  Args:
    evaluations: `records.Evaluation`.
    files: of `ragrl faithfulness`.
    automatic: term → the kind of judge whose verdicts pooled[TERM] are.
    compared: term → the kinds of the two judges that are compared.

  Raises:
    ValueError: a file is not of `ragrl faithfulness`, is of no evaluation here, or is the second one of a kind.
  """
  contents = {path: _read(path) for path in map(str, files)}
  paths_used, result = set(), []
  for one in evaluations:
    if verdicts := _on(one.folder, contents):
      paths_used |= {path for path, _, _ in verdicts.values()}
      rows = _pooled(one.rows, verdicts, automatic)
      metrics = {**one.metrics, **_agreements(rows, verdicts, compared)}
      judges = {f"{term} {kind}": judge for (term, kind), (_, judge, _) in verdicts.items()}
      one = dataclasses.replace(one, rows=rows, metrics=metrics, facts={**one.facts, "steps_judged_by": judges})
    result.append(one)
  if unused := contents.keys() - paths_used:
    raise ValueError(f"--runs={min(unused)}: its verdicts are on episodes of no given run: add --runs=FOLDER of them.")
  return result


def _read(path: str) -> dict[str, Any]:
  try:
    content = jsonl.read_object(pathlib.Path(path))
  except ValueError:
    content = {}
  if not {"judges", "systems"} <= content.keys():
    raise ValueError(f"--runs={path}: this is neither an evaluation's folder nor a file of `ragrl faithfulness --out`.")
  return content


def _on(folder: str, contents: Mapping[str, Mapping[str, Any]]) -> Verdicts:
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


def _pooled(rows: Rows, verdicts: Verdicts, automatic: Mapping[str, str]) -> list[dict[str, Any]]:
  result = [{**row, "pooled": dict(row.get("pooled") or {})} for row in rows]
  for (term, kind), (_, _, sets) in verdicts.items():
    for row in result:
      numbers = sets.get(row["source"] or "", {}).get("questions", {}).get(row["id"])
      if numbers is not None:
        row["pooled"][f"{term}/{kind}"] = numbers
        if kind == automatic[term]:
          row["pooled"].setdefault(term, numbers)
  return result


def _agreements(rows: Rows, verdicts: Verdicts, compared: Mapping[str, Sequence[str]]) -> dict[str, Any]:
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
