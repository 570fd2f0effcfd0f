"""Verdicts on the steps of episodes, from the files of `ragrl faithfulness`, as measures of evaluations."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.evaluation import played_rows, raters
from ragrl_jax.evaluation.tables.measures import AUTOMATIC, COMPARED
from ragrl_jax.evaluation.tables.results import Evaluation


def joined(evaluations: Sequence[Evaluation], files: Sequence[str | pathlib.Path]) -> list[Evaluation]:
  """The evaluations, with the verdicts that the files have on their episodes, found by the digest of these.

  A row gets pooled[TERM/KIND] = (sum, number of pairs) for each judge, and pooled[TERM] for the automatic one if the
  evaluation has none; metrics get TERM_agreement and TERM_kappa (Fleiss's) of two judges of `COMPARED`, over the
  distinct pairs with both verdicts, with their _interval and _pairs.

  Raises:
    ValueError: a file is not of `ragrl faithfulness`, is of no evaluation here, or is the second one of a kind.
  """
  read = {str(path): _read(path) for path in files}
  unused, found = set(read), []
  for one in evaluations:
    digest, given = played_rows.digest(pathlib.Path(one.folder)) if read else "", {}
    for path, file in read.items():
      for system in file["systems"] if digest else ():
        if digest in system["folders"].values():
          unused.discard(path)
          for term, judge in file["judges"].items():
            if given.setdefault((term, judge["kind"]), (path, judge, system["sets"]))[0] != path:
              raise ValueError(
                f"--runs={path}: {given[term, judge['kind']][0]} has {judge['kind']} verdicts on {term} of "
                f"{one.folder}, too: give one of them."
              )
    found.append(_with(one, {key: (judge, sets) for key, (_, judge, sets) in given.items()}) if given else one)
  if unused:
    raise ValueError(f"--runs={min(unused)}: its verdicts are on episodes of no given run: add --runs=FOLDER of them.")
  return found


def _read(path: str | pathlib.Path) -> Mapping[str, Any]:
  try:
    found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, dict) or not {"judges", "systems"} <= found.keys():
    raise ValueError(f"--runs={path}: this is neither an evaluation's folder nor a file of `ragrl faithfulness --out`.")
  return found


def _with(one: Evaluation, given) -> Evaluation:
  rows = [dict(row, pooled=dict(row.get("pooled") or {})) for row in one.rows]
  for (term, kind), (_, sets) in given.items():
    for row in rows:
      numbers = sets.get(row["source"] or "", {}).get(term, {}).get("questions", {}).get(row["id"])
      if numbers is not None:
        row["pooled"][f"{term}/{kind}"] = numbers
        if kind == AUTOMATIC[term]:
          row["pooled"].setdefault(term, numbers)
  metrics, (source, *others) = dict(one.metrics), {row["source"] or "" for row in rows} or {""}
  for term, kinds in COMPARED.items():
    of = [given[term, kind][1].get(source, {}).get(term, {}) for kind in kinds if (term, kind) in given]
    said = [{pair: str(int(v >= 0.5)) for pair, v in its.get("verdicts", {}).items() if v is not None} for its in of]
    alone = all({row["id"] for row in rows} == its.get("questions", {}).keys() for its in of)  # no other folder's pairs
    if len(said) == 2 and alone and not others and said[0].keys() & said[1].keys():
      agreed = raters.agreement(dict(zip(kinds, said)))
      for name, key in (("agreement", "agreement"), ("kappa", "fleiss_kappa")):
        metrics |= {f"{term}_{name}": agreed[key], f"{term}_{name}_interval": agreed[f"{key}_interval"]}
        metrics[f"{term}_{name}_pairs"] = agreed["n"]
  by_id = {(row["source"], row["id"]): row for row in rows}
  sets = {name: [by_id[row["source"], row["id"]] for row in part] for name, part in one.sets.items()}
  judges = {f"{term} {kind}": judge for (term, kind), (judge, _) in given.items()}
  return dataclasses.replace(one, rows=rows, sets=sets, metrics=metrics, facts={**one.facts, "steps_judged_by": judges})
