"""Writes the files of an evaluation: predictions.jsonl, episodes.jsonl, settings.json. A kill loses no finished answer.

Rows are appended in the order in which the answers end, each with the `index` of its question. When all rows exist,
both files are sorted into the questions' order. An evaluation is known by the digests of its contents (weights,
questions, index), not by their paths.
"""

import glob
import json
import logging
import os
import pathlib
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import stats
from ragrl_jax.data import digests
from ragrl_jax.retrieval import api
from ragrl_jax.run import rewards
from ragrl_jax.settings import fields
from ragrl_jax.store import episodes as episodes_lib, folders as folders_lib, jsonl

PREDICTIONS, METRICS, SETTINGS = "predictions.jsonl", "metrics.json", "settings.json"
CONTENTS = "contents"  # the setting with the digests of the questions
# Setting that names a place → the one that identifies what is there.
PLACES = {"checkpoint": "weights", "data": CONTENTS}
_NEEDED = ("id", "question", "golds", "prediction", "terms", "ended", "source")  # columns of predictions.jsonl
LIBRARY = ("ragrl_jax", "commit")  # settings that tell the version
DIGEST = " (its contents)"  # after the name of a setting in `other`: the digest of the folder that it names
AGAIN = "choose another --out, or delete the folder"
_INDEX = re.compile(rb'\{"index": ?(\d+),')


def finished(folder: str | pathlib.Path, *more: str) -> dict[str, Any]:
  """metrics.json of a finished evaluation. `more`: names of other files that it must have.

  Raises:
    ValueError: the folder is not that of a finished evaluation, or a file is missing.
  """
  folder = pathlib.Path(folder)
  for name in (METRICS, *more):
    if not (folder / name).is_file():
      raise ValueError(
        f"{folder}: it has no {name}, so it is not a finished evaluation: name the --out of `ragrl evaluate` or `ragrl "
        "score` that has ended; of several seeds, one of its folders seed_0, seed_1, …."
      )
  metrics = jsonl.read_object(folder / METRICS)
  settings = metrics.get("settings")
  if not isinstance(settings, Mapping) or not {"recipe", "data"} <= settings.keys() or "n" not in metrics:
    raise ValueError(f"{folder / METRICS}: this was not written by `ragrl evaluate` or `ragrl score`.")
  return metrics


def named(pattern: str) -> list[pathlib.Path]:
  """The folder or file of this name, or else those that match it as a glob, in order."""
  return [*map(pathlib.Path, [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern)))]


def refuse_unfinished(folder: pathlib.Path) -> None:
  """Raises a ValueError if an evaluation has not ended: its rows are of the questions that were answered first."""
  if (folder / SETTINGS).is_file() and not (folder / METRICS).is_file():
    raise ValueError(f"{folder}: this evaluation has not ended: run its `ragrl evaluate` again, which continues it.")


def rows(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of predictions.jsonl. Raises ValueError: see `refuse_unfinished`."""
  refuse_unfinished(folder)
  return list(jsonl.read(folder / PREDICTIONS))


def predictions(folder: pathlib.Path, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
  """The rows of predictions.jsonl of a finished evaluation with these metrics.

  Raises:
    ValueError: a row is no prediction, or the rows are not those of the metrics.
  """
  rows = list(jsonl.read(folder / PREDICTIONS))
  for number, row in enumerate(rows, 1):
    if missing := [name for name in _NEEDED if name not in row]:
      raise ValueError(f"{folder / PREDICTIONS}:{number}: no {', '.join(missing)}: this is no prediction.")
  failed = sum(row["ended"] == "failed" for row in rows)
  if (len(rows) - failed, failed) != (metrics["n"], metrics.get("failed", 0)):
    raise ValueError(
      f"{folder}: {METRICS} is of {metrics['n']} questions, {PREDICTIONS} has {len(rows) - failed}: they do not belong "
      "together; run the evaluation again."
    )
  return rows


class AnswerFiles:
  """The answers in a folder, including those of earlier calls.

  Args:
    out: the folder; it is created if needed.
    settings: everything that the answers depend on, with the digests of the questions as CONTENTS.
    again: (question, its kept episode, its row) → its row with new scores. It is called for all kept answers if only
      fields differ that scores read (`digests.SCORED`).

  Attributes:
    rows: index of the question → its row of predictions.jsonl.

  Raises:
    ValueError: the folder has answers with other settings or to other questions, or too few episodes.
  """

  def __init__(
    self,
    out: pathlib.Path,
    settings: Mapping[str, Any],
    examples: Sequence[structs.Example],
    again: Callable[[structs.Example, structs.Episode, Mapping[str, Any]], dict[str, Any]],
  ):
    self.out = out
    settings = jsonl.plain(settings)
    out.mkdir(parents=True, exist_ok=True)
    rows_kept = jsonl.repair(out / PREDICTIONS)
    self.rows = {row["index"]: row for row in rows_kept}
    stale = _stale(out, settings) if rows_kept else ()
    if not rows_kept:
      write_json(out / SETTINGS, settings)
    # The episode is written before the row, so after a kill only the last episode can lack its row.
    path = out / episodes_lib.PLAYED
    if (played := jsonl.cut(path, len(rows_kept))) < len(rows_kept):
      if played:  # a loss of power: a system writes files to the disk in any order
        logging.warning("%s has %d of %d episodes: the others are played again.", path, played, len(rows_kept))
        jsonl.cut(out / PREDICTIONS, played)
        self.rows = {row["index"]: row for row in rows_kept[:played]}
      elif len(rows_kept) < len(examples):
        raise ValueError(f"{path} holds fewer episodes than {PREDICTIONS} has rows: {AGAIN}.")
    if len(self.rows) < len(examples):  # some are lost: a kill must not leave the metrics of all
      (out / METRICS).unlink(missing_ok=True)
    if stale:
      self._score_again(stale, examples, again)
      write_json(out / SETTINGS, settings)
    self._files = [open(out / name, "ab", buffering=0) for name in (episodes_lib.PLAYED, PREDICTIONS)]

  def add(self, index: int, row: Mapping[str, Any], scored: rewards.Scored) -> None:
    """Appends the answer to question number `index`."""
    episode = {"index": index, **episodes_lib.played(scored.example, scored.episode)}
    numbered = {"index": index, **row}
    try:
      for file, line in zip(self._files, (episode, numbered), strict=True):
        jsonl.append(file, line)
    except OSError:
      self.close()  # later answers must not be written: an episode would stand beside another one's row
      raise
    self.rows[index] = numbered

  def _score_again(self, stale: Sequence[str], examples: Sequence[structs.Example], again) -> None:
    """Replaces questions and scores in both files. A killed call leaves the old ones, or is repeated by the next."""
    logging.warning(
      "%s: the questions differ in their %s from those that were scored: its %d kept answers are scored again, without "
      "playing.", self.out, ", ".join(stale), len(self.rows),
    )  # fmt: skip
    played, told = self.out / episodes_lib.PLAYED, self.out / PREDICTIONS
    rows = {}
    with jsonl.whole(told) as part_told, jsonl.whole(played) as part_played:
      with open(part_played, "wb") as file:
        for logged in jsonl.read(played):
          index = logged["index"]
          example, episode = examples[index], episodes_lib.episode_of(logged)
          rows[index] = {"index": index, **again(example, episode, self.rows[index])}
          file.write(jsonl.line({"index": index, **episodes_lib.played(example, episode)}).encode())
      if missing := self.rows.keys() - rows.keys():
        raise ValueError(f"{played}: the episode of question {min(missing) + 1} is missing: {AGAIN}.")
      part_told.write_bytes("".join(jsonl.line(row) for row in rows.values()).encode())
      (self.out / METRICS).unlink(missing_ok=True)  # of the old scores: a kill must not leave it
    self.rows = rows

  def close(self) -> None:
    """Closes the files. A later AnswerFiles can continue them."""
    for file in self._files:
      file.close()

  def finish(self) -> list[dict[str, Any]]:
    """Sorts both files into the questions' order; returns the sorted rows."""
    self.close()
    for name in (episodes_lib.PLAYED, PREDICTIONS):
      in_order(self.out / name)
    return [self.rows[index] for index in sorted(self.rows)]


def in_order(path: pathlib.Path) -> None:
  """Sorts the lines of a file by their index, atomically."""
  # An evaluation's episodes may exceed the memory, so only the lines' positions are kept.
  lines, at = [], 0
  with open(path, "rb") as file:
    for place, line in enumerate(file):
      match = _INDEX.match(line)
      lines.append((int(match[1]) if match else place, at, len(line)))
      at += len(line)
  if lines == sorted(lines):
    return
  with jsonl.whole(path) as part, open(path, "rb") as file, open(part, "wb") as out:
    for _, at, size in sorted(lines):
      file.seek(at)
      out.write(file.read(size))


def write_json(path: pathlib.Path, values: Mapping[str, Any]) -> None:
  """Writes an indented JSON file atomically."""
  jsonl.write_text(path, json.dumps(jsonl.plain(values), indent=2, ensure_ascii=False) + "\n")


def _stale(out: pathlib.Path, settings: Mapping[str, Any]) -> list[str]:
  """The fields of the questions that only scores read and that differ from the kept ones."""
  path = out / SETTINGS
  before = jsonl.read_object(path)
  was, now = compared(before), compared(settings)
  names = [name for name in sorted({*was, *now} - {CONTENTS}) if was.get(name) != now.get(name)]
  if names:
    raise ValueError(
      f"{out} holds predictions made with other settings ({', '.join(f'{n}: {before.get(n)!r}' for n in names)}; now "
      f"{', '.join(repr(settings.get(n)) for n in names)}): {AGAIN}."
    )
  by, now_by = (" ".join(str(of.get(name)) for name in LIBRARY) for of in (before, settings))
  if by != now_by:
    logging.warning("%s: its answers stay as another version scored them (%s, this is %s).", out, by, now_by)
  old, new = before.get(CONTENTS) or {}, settings[CONTENTS]
  differ = [name for name in new if old.get(name) != new[name]]
  if others := [name for name in differ if name not in digests.SCORED]:
    raise ValueError(
      f"{out} holds predictions for other questions than the data's: their {', '.join(others)} differ, on which the "
      f"answers or their judge's verdicts depend: {AGAIN}."
    )
  return differ


def compared(settings: Mapping[str, Any]) -> dict[str, Any]:
  """The settings by which an evaluation is known: without the version, and places whose contents have digests there."""
  result = {name: value for name, value in settings.items() if PLACES.get(name) not in settings and name not in LIBRARY}
  if "wordings" in result:  # digests of the texts of all "file:PATH"
    result = json.loads(json.dumps(result), object_hook=_without_paths)
  if isinstance(other := result.get("other"), Mapping):
    result["other"] = {name: value for name, value in other.items() if f"{name}{DIGEST}" not in other}
  if isinstance(retrieval := result.get("retrieval"), Mapping):
    result["retrieval"] = api.placeless(retrieval)
  return result


def _without_paths(values: dict[str, Any]) -> dict[str, Any]:
  is_file = lambda value: isinstance(value, str) and value.startswith(fields.FILE)
  return {name: fields.FILE if is_file(value) else value for name, value in values.items()}


def folders(out: pathlib.Path, seeds: int) -> list[pathlib.Path]:
  """`out` itself for one seed; for several `out`/seed_0, `out`/seed_1 and so on.

  Raises:
    ValueError: `out` holds an evaluation of the other kind, or something else than one.
  """
  if seeds == 1 and (out / "seed_0").exists():
    raise ValueError(f"{out} holds an evaluation with several seeds: give --seeds, or choose another --out.")
  if seeds > 1 and (out / PREDICTIONS).exists():
    raise ValueError(f"{out} holds an evaluation with one seed: choose another --out for --seeds={seeds}.")
  result = [out] if seeds == 1 else [out / f"seed_{seed}" for seed in range(seeds)]
  for folder in (out, *result):
    folders_lib.refuse_others(folder, folders_lib.EVALUATION)
  return result


def parts(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of predictions of an evaluation: those of its seeds, in order, or the folder itself."""
  found = [one for one in folder.glob("seed_*") if one.name.removeprefix("seed_").isdigit()]
  return sorted(found, key=lambda one: int(one.name.removeprefix("seed_"))) or [folder]


def over_seeds(
  found: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[Mapping[str, Any]]], with_interval: Sequence[str]
) -> dict[str, Any]:
  """Joins the metrics of several seeds.

  Args:
    rows: the rows of each seed, with the same questions in the same order.
    with_interval: measures that get a 95 % bootstrap interval over questions. A question's value is its mean over the
      seeds in which it is known.

  Returns:
    The mean of every number over the seeds, counts included, in the form of `harness.summarise`. Also `seeds`, their
    number, and `deviation`, the sample standard deviation of every number in the same form. Both omit numbers that a
    seed lacks, but an ending that a seed lacks counts 0 there.
  """
  ends = dict.fromkeys((why for one in found for why in one["ended"]), 0)
  found = [{**one, "ended": ends | one["ended"]} for one in found]
  metrics = {"seeds": len(found), **_each(found, statistics.fmean)}
  for name in with_interval:
    scored = [[value for row in same if (value := row[name]) is not None] for same in zip(*rows, strict=True)]
    means = [statistics.fmean(values) for values in scored if values]
    metrics[f"{name}_interval"] = list(stats.bootstrap_interval(means, seed=0)) if means else None
  return metrics | {"deviation": _each(found, statistics.stdev)}


def _each(metrics: Sequence[Mapping[str, Any]], of) -> dict[str, Any]:
  """Applies `of` to the seeds' values of every number that all seeds have."""
  merged: dict[str, Any] = {}
  for name, first in metrics[0].items():
    values = [one.get(name) for one in metrics]
    if isinstance(first, Mapping):
      merged[name] = _each([value or {} for value in values], of)
    elif all(isinstance(value, int | float) for value in values):
      merged[name] = of(values)
  return merged
