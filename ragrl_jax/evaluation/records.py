"""Reads evaluations: their settings and scores. The name of a folder has no meaning."""

import dataclasses
import functools
import hashlib
import pathlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import config as config_lib
from ragrl_jax.data import readers
from ragrl_jax.evaluation import answer_files, answer_verdicts, comparison, corpus_audit, episode_rows
from ragrl_jax.models import hub
from ragrl_jax.settings import stored_paths
from ragrl_jax.store import jsonl

Row = Mapping[str, Any]
_FILE = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODELS: Mapping[str, Mapping[str, Any]] = _FILE["models"]
SETS: Mapping[str, Mapping[str, str]] = _FILE["sets"]
_SHAPES = {tuple(of["shape"]): name for name, of in MODELS.items() if "shape" in of}
_BASE_ENDS = 151643  # eos_token_id of Qwen2.5's base models; the instruct models have 151645


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """One finished evaluation.

  Attributes:
    folder: its path, for messages.
    facts: its settings in one flat mapping: "recipe", "preset", "switches.…", "noise", "retrieval.top_k" and so on.
      "model" is a name in MODELS or None, and "shape" describes it in words. "system" is that of transcripts made
      elsewhere. "step" is the checkpoint's, 0 for the end. "trained" says whether the config.json of the checkpoint's
      run exists; its settings are "trained.…", its data sets "trained.sets". "verdicts" is the judge of `ragrl judge`.
      "split" is the part of the data set by FlashRAG's ids ("dev_17"), None if they do not agree. "reads" are the facts
      of the evaluation whose evidence it read (`linked`).
    rows: predictions.jsonl, with the verdicts of `ragrl judge` if there are any.
    audit: the result of `corpus_audit.beside`; None without an audit.
  """

  folder: str
  facts: Mapping[str, Any]
  rows: Sequence[Row]
  metrics: Mapping[str, Any]
  audit: Mapping[str, Any] | None = None

  @functools.cached_property
  def asked(self) -> dict[str, list[Row]]:
    """Data set → its rows. Rows of several sources are told apart by these. A single source's set is named by the file
    of the questions, by the source, or by the whole address; folders above a file may name anything.
    """
    of_sources: dict[str, list[Row]] = {}
    for row in self.rows:
      if name := set_of(row["source"] or ""):
        of_sources.setdefault(name, []).append(row)
    data, single = str(self.facts["data"]), len({row["source"] for row in self.rows}) < 2
    if "," in data or (of_sources and not single):
      return of_sources
    name = set_of(pathlib.PurePath(data).name)
    if name is None and (data.startswith("hf:") or (single and not of_sources)):
      name = set_of(data)
    return of_sources if name is None else {name: list(self.rows)}

  @functools.cached_property
  def sets(self) -> dict[str, list[Row]]:
    """Data set → its rows without failed questions."""
    sets = {name: list(filter(_scored, rows)) for name, rows in self.asked.items()}
    return {name: rows for name, rows in sets.items() if rows}

  @functools.cached_property
  def answers(self) -> str:
    """A hash of its facts, except of the evidence, and of all its answers, which every cell of a table compares."""
    answers = sorted((row["source"] or "", question(row), row["prediction"] or "") for row in self.rows)
    return hashlib.sha256(repr(({**self.facts, "evidence": None}, answers)).encode()).hexdigest()


def read(folder: str | pathlib.Path) -> Evaluation:
  """Reads the folder of a finished evaluation.

  Raises:
    ValueError: files are missing or damaged, are not those of an evaluation, or do not match.
  """
  folder = pathlib.Path(folder)
  metrics = answer_files.finished(folder, answer_files.PREDICTIONS)
  rows = answer_verdicts.beside(folder, answer_files.predictions(folder, metrics))
  splits = {str(row["id"]).partition("_")[0] for row in rows}
  split = splits.pop() if len(splits) == 1 and splits <= {"train", "dev", "test"} else None
  facts = _facts(folder, metrics["settings"]) | dict(split=split)
  return Evaluation(str(folder), facts, rows, metrics, corpus_audit.beside(folder, list(filter(_scored, rows))))


def _scored(row: Row) -> bool:
  return row["ended"] != "failed"


def question(row: Row) -> str:
  """What identifies a row's question within its set: id, text and golds. Scores of other golds are not paired."""
  return f"{row['id']} {comparison.asked_of(row)}"


def linked(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations; those of evidence with the facts of its extraction, which is found by its contents.

  Raises:
    ValueError: the extraction is not among them, or an evaluation reads evidence of several.
  """
  with_evidence = [one for one in evaluations if any("evidence" in row for row in one.rows)]
  extractions = {episode_rows.digest(one.rows, one.metrics["settings"]): one.facts for one in with_evidence}
  result = []
  for one in evaluations:
    by = {row["extraction"].get("by") for row in one.rows if row.get("extraction")}
    if len(by) > 1 or not by <= extractions.keys():
      raise ValueError(
        f"--runs={one.folder}: it answers from evidence of {len(by)} extractions, and {len(by & extractions.keys())} "
        "of them are among the runs: evaluate the evidence of one extraction at a time, and give --runs=FOLDER of both."
      )
    result.append(dataclasses.replace(one, facts={**one.facts, "reads": extractions[by.pop()]}) if by else one)
  return result


def set_of(text: str) -> str | None:
  """The data set that a text names (`SETS`), None if it names none or several."""
  names = [name for name, of in SETS.items() if re.search(of["known"], text.lower())]
  return names[0] if len(names) == 1 else None


# ---- facts -----------------------------------------------------------------------------------------------------------


def _facts(folder: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, Any]:
  checkpoint = stored_paths.found(settings.get("checkpoint") or "", folder)
  # A copy of the run's config.json may be beside the scores, for evaluations that were moved.
  run = folder if config_lib.is_run(folder) else config_lib.run_of(checkpoint) if checkpoint else None
  trained = jsonl.read_object(run / "config.json") if run else {}
  step = config_lib.step_of(checkpoint) or 0
  facts = dict(jsonl.flat(settings)) | {f"trained.{name}": value for name, value in jsonl.flat(trained)}
  facts |= dict(trained=bool(trained), step=0 if step == trained.get("steps") else step)
  sets = {set_of(part) for part in readers.parts(str((trained.get("data") or {}).get("train", ""))) or [""]}
  facts["trained.sets"] = None if None in sets else ",".join(sorted(sets))
  if (folder / answer_verdicts.SUMMARY).is_file():
    facts["verdicts"] = jsonl.read_object(folder / answer_verdicts.SUMMARY).get("judge")
  base = stored_paths.found((trained.get("model") or {}).get("path") or "", run or folder)
  known_model, facts["shape"] = _model((checkpoint, run, base))
  facts["model"] = _served(settings) or settings.get("model") or known_model
  return facts


def _served(settings: Mapping[str, Any]) -> str | None:
  """The tables' name of a model behind a server; None if it is not in the tables."""
  if not settings.get("endpoint"):
    return None
  name = str(settings.get("model")).rpartition("/")[2].lower()
  names = [of.get("known") or re.escape(of["hub"].rpartition("/")[2].lower()) for of in MODELS.values()]
  return next((model for model, pattern in zip(MODELS, names) if re.fullmatch(pattern, name)), None)


def _model(folders: Sequence[str | pathlib.Path | None]) -> tuple[str | None, str | None]:
  """(name by the shape in its config.json, None for another one; the shape in words, None without a config.json)."""
  words = None
  for place in [hub.in_cache(folder) for folder in folders if folder]:
    for file in (place / "config.json", place / "model" / "config.json"):
      config = jsonl.read_object(file)
      config |= text if isinstance(text := config.get("text_config"), dict) else {}  # beside an image encoder
      kind, width, layers = shape = [config.get(name) for name in ("model_type", "hidden_size", "num_hidden_layers")]
      if None in shape:  # a run's settings
        continue
      words = words or f"{kind} of {layers} layers, width {width}"
      theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta")
      base = kind == "qwen2" and config.get("eos_token_id") == _BASE_ENDS
      # DeepSeek's distilled model has Qwen2.5's shape with RoPE's θ of Qwen2.5-Math.
      variant = ("distilled",) if theta == 10000 else ("base",) if base else ()
      if (kind, width, layers) in _SHAPES:
        return _SHAPES.get((kind, width, layers, *variant)), words
  return None, words
