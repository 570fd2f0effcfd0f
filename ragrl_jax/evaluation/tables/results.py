"""Reads evaluations: their settings and scores. The name of a folder has no meaning."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import config as config_lib
from ragrl_jax.evaluation import answer_verdicts, comparison, corpus_audit, episode_rows, harness, played_rows, raters
from ragrl_jax.evaluation.tables.layout import MODELS, SETS
from ragrl_jax.evaluation.tables.measures import AUTOMATIC, COMPARED
from ragrl_jax.models import hub
from ragrl_jax.store import jsonl

# (model_type, hidden_size, num_hidden_layers and perhaps a variant) of a model → its name in the tables.
_SHAPES = {tuple(of["shape"]): name for name, of in MODELS.items() if "shape" in of}
_ON_HUB = {of["hub"].rpartition("/")[2].lower(): name for name, of in MODELS.items() if "hub" in of}
_BASE_ENDS = 151643  # eos_token_id of Qwen2.5's base models; the instruct models have 151645
_NEEDED = ("id", "question", "golds", "prediction", "terms", "ended", "source")


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """One finished evaluation.

  Attributes:
    folder: its path, for messages.
    facts: its settings in one flat mapping: "recipe", "preset", "switches.…", "noise", "retrieval.top_k" and so on.
      "model" is a name in MODELS or None, and "shape" describes the model in words. "system" is the system of other
      transcripts. "step" is the checkpoint's step, 0 for the end. "trained" says whether the config.json of the
      checkpoint's run exists; its settings are "trained.…", and "trained.sets" are its data sets. "verdicts" is the
      judge of `ragrl judge`. "split" is the part of the data set (`_split`). "reads" are the facts of the evaluation
      that extracted the evidence which it read (`linked`).
    rows: predictions.jsonl without failed questions, with the verdicts of `ragrl judge` if there are any.
    metrics: metrics.json.
    sets: data set → its rows.
    audit: the result of `corpus_audit.beside`; None without an audit.
    asked: data set → `asked` of all its questions, failed ones included.
  """

  folder: str
  facts: Mapping[str, Any]
  rows: Sequence[Mapping[str, Any]]
  metrics: Mapping[str, Any]
  sets: Mapping[str, Sequence[Mapping[str, Any]]]
  audit: Mapping[str, Any] | None = None
  asked: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)


def read(folder: str | pathlib.Path) -> Evaluation:
  """Reads the folder of a finished evaluation.

  Raises:
    FileNotFoundError: metrics.json or predictions.jsonl is missing.
    ValueError: the files are damaged, are not those of an evaluation, or do not match.
  """
  folder = pathlib.Path(folder)
  for name in (harness.METRICS, harness.PREDICTIONS):
    if not (folder / name).is_file():
      raise FileNotFoundError(
        f"--runs={folder}: it has no {name}, so it is not a finished evaluation; run `ragrl evaluate … --out={folder}`."
      )
  metrics = _object(folder / harness.METRICS)
  settings = metrics.get("settings")
  if not isinstance(settings, Mapping) or not {"recipe", "data"} <= settings.keys() or "n" not in metrics:
    raise ValueError(f"{folder / harness.METRICS}: this was not written by `ragrl evaluate` or `ragrl score`.")
  rows = answer_verdicts.beside(folder, list(jsonl.read(folder / harness.PREDICTIONS)))
  for number, row in enumerate(rows, 1):
    if missing := [name for name in _NEEDED if name not in row]:
      raise ValueError(f"{folder / harness.PREDICTIONS}:{number}: no {', '.join(missing)}: this is no prediction.")
  known = [row for row in rows if row["ended"] != "failed"]
  if len(known) != metrics["n"] or len(rows) - len(known) != metrics.get("failed", 0):
    raise ValueError(
      f"{folder}: {harness.METRICS} is of {metrics['n']} questions, {harness.PREDICTIONS} has {len(known)}: they do "
      "not belong together; run the evaluation again."
    )
  every = _by_set(str(settings["data"]), rows)
  sets = {name: some for name, part in every.items() if (some := [row for row in part if row["ended"] != "failed"])}
  of_sets = {name: frozenset(map(asked, part)) for name, part in every.items()}
  audit = corpus_audit.beside(folder, known)
  facts = _facts(folder, settings) | dict(split=_split(rows))
  return Evaluation(str(folder), facts, known, metrics, sets, audit, of_sets)


def asked(row: Mapping[str, Any]) -> str:
  """What identifies a row's question within its set: id, text and golds. Scores of other golds are not paired."""
  return f"{row['id']} {comparison.asked_of(row)}"


def linked(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations; those of evidence with the facts of its extraction, which is found by its contents.

  Raises:
    ValueError: the extraction is not among them, or an evaluation reads evidence of several.
  """
  facts = {
    episode_rows.digest(one.rows, one.metrics["settings"]): one.facts
    for one in evaluations
    if any("evidence" in row for row in one.rows)
  }
  found = []
  for one in evaluations:
    read = {(row.get("extraction") or {}).get("by") for row in one.rows}
    if read <= {None}:
      found.append(one)
      continue
    if len(read) > 1 or not read <= facts.keys():
      raise ValueError(
        f"--runs={one.folder}: it answers from evidence of {len(read)} extractions, and {len(read & facts.keys())} of "
        "them are among the runs: evaluate the evidence of one extraction at a time, and give --runs=FOLDER of both."
      )
    found.append(dataclasses.replace(one, facts={**one.facts, "reads": facts[read.pop()]}))
  return found


def with_verdicts(evaluations: Sequence[Evaluation], files: Sequence[str | pathlib.Path]) -> list[Evaluation]:
  """The evaluations, with the verdicts that files of `ragrl faithfulness` have on their episodes.

  The episodes are found by their digest.

  A row gets pooled[TERM/KIND] = (sum, number of pairs) for each judge, and pooled[TERM] for the automatic one if the
  evaluation has none; metrics get TERM_agreement and TERM_kappa (Fleiss's) of two judges of `COMPARED`, over the
  distinct pairs with both verdicts, with their _interval and _pairs.

  Raises:
    ValueError: a file is not of `ragrl faithfulness`, is of no evaluation here, or is the second one of a kind.
  """
  read = {str(path): _verdicts(path) for path in files}
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
    found.append(_judged(one, {key: (judge, sets) for key, (_, judge, sets) in given.items()}) if given else one)
  if unused:
    raise ValueError(f"--runs={min(unused)}: its verdicts are on episodes of no given run: add --runs=FOLDER of them.")
  return found


def _verdicts(path: str | pathlib.Path) -> Mapping[str, Any]:
  try:
    found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, dict) or not {"judges", "systems"} <= found.keys():
    raise ValueError(f"--runs={path}: this is neither an evaluation's folder nor a file of `ragrl faithfulness --out`.")
  return found


def _judged(one: Evaluation, given) -> Evaluation:
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


def set_of(text: str) -> str | None:
  """The data set that a text names (`SETS`), None if it names none or several."""
  found = [name for name, of in SETS.items() if re.search(of["known"], text.lower())]
  return found[0] if len(found) == 1 else None


def _by_set(data: str, rows) -> dict[str, list]:
  """The rows of each data set. Rows of several sources are told apart by these. A single source's set is named by the
  file of the questions, by the source, or by the whole address; folders above a file may name anything.
  """
  found: dict[str, list] = {}
  for row in rows:
    if name := set_of(row["source"] or ""):
      found.setdefault(name, []).append(row)
  one = len({row["source"] for row in rows}) < 2
  if "," in data or (found and not one):
    return found
  name = set_of(pathlib.PurePath(data).name)
  if name is None and (data.startswith("hf:") or (one and not found)):
    name = set_of(data)
  return found if name is None else {name: list(rows)}


def _facts(folder: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, Any]:
  found = dict(jsonl.flat(settings))
  place, trained = _trained(folder, settings)
  found |= {f"trained.{name}": value for name, value in jsonl.flat(trained)}
  found["trained"] = bool(trained)
  sets = {set_of(part) for part in str((trained.get("data") or {}).get("train", "")).split(",")}
  found["trained.sets"] = ",".join(sorted(name for name in sets if name)) if None not in sets else None
  found["step"] = _step(settings, trained)
  if (folder / answer_verdicts.SUMMARY).is_file():
    found["verdicts"] = _object(folder / answer_verdicts.SUMMARY).get("judge")
  known, found["shape"] = _model(settings, place, trained)
  found["model"] = _served(settings) or settings.get("model") or known
  return found


def _split(rows: Sequence[Mapping[str, Any]]) -> str | None:
  """The part of a data set by FlashRAG's ids, such as "dev_17"; None if they do not agree."""
  found = {str(row["id"]).partition("_")[0] for row in rows}
  return found.pop() if len(found) == 1 and found <= {"train", "dev", "test"} else None


def _trained(folder: pathlib.Path, settings: Mapping[str, Any]) -> tuple[pathlib.Path | None, Mapping[str, Any]]:
  """(folder, settings) of the checkpoint's run; (None, empty) without a run, or if its folder is missing."""
  checkpoint = settings.get("checkpoint")
  places = [folder]  # a copy beside the scores, for evaluations that were moved
  if checkpoint:
    path = pathlib.Path(checkpoint)
    places += [path, path.parent, path.parent.parent]
  for place in places:
    if config_lib.is_run(place):
      return place, _object(place / "config.json")
  return None, {}


def _step(settings: Mapping[str, Any], trained: Mapping[str, Any]) -> int:
  """The step of a checkpoint RUN/checkpoints/STEP; 0 for a run's end."""
  path = pathlib.Path(settings.get("checkpoint") or "")
  step = int(path.name) if path.name.isdigit() and path.parent.name == "checkpoints" else 0
  return 0 if step == trained.get("steps") else step


def _served(settings: Mapping[str, Any]) -> str | None:
  """The tables' name of a model behind a server; None if it is not in the tables."""
  if not settings.get("endpoint"):
    return None
  name = str(settings.get("model")).rpartition("/")[2].lower()
  known = (model for model, of in MODELS.items() if re.fullmatch(of.get("known", "$"), name))
  return _ON_HUB.get(name) or next(known, None)


def _model(
  settings: Mapping[str, Any], run: pathlib.Path | None, trained: Mapping[str, Any]
) -> tuple[str | None, str | None]:
  """(the name of the model by the shape in its config.json, None for another one; the shape in words, None if no
  config.json is here)."""
  folders = [settings.get("checkpoint"), run, (trained.get("model") or {}).get("path")]
  said = None
  for place in [hub.in_cache(folder) for folder in folders if folder]:
    for file in (place / "config.json", place / "model" / "config.json"):
      if not file.is_file():
        continue
      config = _object(file)
      kind, width, layers = (config.get(name) for name in ("model_type", "hidden_size", "num_hidden_layers"))
      if None in (kind, width, layers):  # a run's settings
        continue
      said = said or f"{kind} of {layers} layers, width {width}"
      theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta")
      base = kind == "qwen2" and config.get("eos_token_id") == _BASE_ENDS
      # DeepSeek's distilled model has Qwen2.5's shape with RoPE's θ of Qwen2.5-Math.
      variant = ("distilled",) if theta == 10000 else ("base",) if base else ()
      if (kind, width, layers) in _SHAPES:
        return _SHAPES.get((kind, width, layers, *variant)), said
  return None, said


def _object(path: pathlib.Path) -> dict[str, Any]:
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path}: not JSON ({error}); write it again.") from error
  if not isinstance(found, dict):
    raise ValueError(f"{path}: it must be a JSON object, not a {type(found).__name__}.")
  return found
