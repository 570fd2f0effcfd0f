"""Rejection sampling: turns the correct episodes of evaluations into transcripts for SFT."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.data.transcripts import Turns
from ragrl_jax.evaluation import answer_files, comparison, harness
from ragrl_jax.run import questions
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.store import jsonl
from ragrl_jax.structs import MODEL, Example

WHOLE = ("length", "budget")  # stops of a turn that was cut off
CHANGED = ("noise", "cut_middle")  # settings that make an evaluation's prompts differ from the data's


def kept(
  folders: Sequence[str | pathlib.Path], examples: Sequence[Example]
) -> tuple[list[tuple[Example, Turns]], collections.Counter]:
  """The distinct correct transcripts of these evaluations, in the questions' order.

  An episode is correct if its outcome is 1 and none of its turns was cut off.

  Args:
    folders: folders of evaluations with the same recipe and switches, such as several seeds.
    examples: the questions of the evaluations.

  Returns:
    ([(example, turns)] with distinct ids, number of episodes by fate). The fates are "kept", "wrong", "failed", "cut
    off", and "again" for a repeated transcript.

  Raises:
    ValueError: a folder is not a finished evaluation, the recipes differ, the recipe's episodes or the evaluation's
      prompts cannot be trained on, or a question is not among the examples, or lacks its passages there.

  Source: rejection sampling as in Search-R1 (arXiv 2503.09516) sec. 5.1: five samples a question, the right ones kept.
  """
  known = {(example.source, example.id): example for example in examples}
  if len(known) < len(examples):
    raise ValueError("--data: two of its questions have the same source and id, so that transcripts cannot be matched.")
  found: dict[tuple[str, str], list[Turns]] = {}
  fates: collections.Counter = collections.Counter()
  settings = _agreed([(str(folder), answer_files.finished(folder)["settings"]) for folder in folders])
  if settings.get("own_passages") is False:
    known = {place: questions.without_passages(example) for place, example in known.items()}
  _check_passages(settings, list(known.values()))
  for folder in map(pathlib.Path, folders):
    rows = list(jsonl.read(folder / harness.PREDICTIONS))
    played = list(episodes_lib.read_folder(folder))
    if len(rows) != len(played):
      raise ValueError(f"{folder}: {len(rows)} predictions and {len(played)} episodes: run the evaluation to its end.")
    for row, logged in zip(rows, played):
      place = (row["source"] or "", row["id"])
      if place not in known:
        raise ValueError(f"{folder}: question {row['id']!r} is not in --data: give it the evaluation's questions.")
      if comparison.asked_of(row) != (known[place].question, known[place].golds):
        raise ValueError(
          f"{folder}: question {row['id']!r} has another text or other golds there than in --data, so it is not known "
          "which answers are right: give the evaluation's questions, or run the evaluation again (it scores again)."
        )
      turns = [(segment["owner"], segment["text"]) for segment in logged["segments"][1:]]
      fate = _fate(row, logged, turns, found.get(place, []))
      fates[fate] += 1
      if fate == "kept":
        found.setdefault(place, []).append(turns)
  pairs = [(example, turns) for place, example in known.items() for turns in found.get(place, [])]
  return list(zip(_named([example for example, _ in pairs]), [turns for _, turns in pairs])), fates


def _named(examples: Sequence[Example]) -> list[Example]:
  """The examples with distinct ids, which a file requires: "q7", then "q7.2"."""
  seen: collections.Counter = collections.Counter()
  result, taken = [], {example.id for example in examples}
  for example in examples:
    seen[example.id] += 1
    number, name = seen[example.id], example.id
    while number > 1 and (name := f"{example.id}.{number}") in taken:
      number += 1
    seen[example.id] = number
    taken.add(name)
    result.append(dataclasses.replace(example, id=name))
  return result


def _fate(row: Mapping[str, Any], logged: Mapping[str, Any], turns: Turns, before: Sequence[Turns]) -> str:
  if row["ended"] == "failed":
    return "failed"
  if row["outcome"] != 1.0:
    return "wrong"
  if any(segment.get("stop") in WHOLE for segment in logged["segments"] if segment["owner"] == MODEL):
    return "cut off"
  return "again" if turns in before else "kept"


def _agreed(evaluations: Sequence[tuple[str, Mapping[str, Any]]]) -> Mapping[str, Any]:
  """The settings that the evaluations share. Refuses evaluations whose transcripts cannot form one training set."""
  first, settings = evaluations[0]
  for folder, other in evaluations[1:]:
    for name in ("recipe", "switches", "own_passages"):
      if settings.get(name) != other.get(name):
        raise ValueError(f"{first} and {folder} differ in {name}: transcripts of a training set must share it.")
  if any(settings.get(name) for _, settings in evaluations for name in CHANGED):
    raise ValueError(f"{first}: its prompts were changed ({', '.join(CHANGED)}): SFT would train on other prompts.")
  recipe = settings["recipe"]
  if recipe not in recipes.RECIPES:
    raise ValueError(f"{first}: its recipe {recipe!r} is not one of this package: {', '.join(recipes.RECIPES)}.")
  made = recipes.get(recipe, settings["preset"], **settings["switches"])
  if not made.trainable:
    raise ValueError(f"{first}: {recipe} joins several conversations in an episode: no policy can be trained on it.")
  if recipe == "agent" or made.tool_tokens is not None:
    raise ValueError(
      f"{first}: the prompts of {recipe} hold tools or a program's own messages, which transcripts do not have: SFT "
      "would train on other prompts."
    )
  return settings


def _check_passages(settings: Mapping[str, Any], examples: Sequence[Example]) -> None:
  recipe = recipes.get(settings["recipe"], settings["preset"], **settings["switches"])
  bare = sum(not example.passages for example in examples)
  if recipe.needs_passages and bare:
    raise ValueError(
      f"--data: {bare} of its {len(examples)} questions have no passages, but {recipe.name}'s prompt shows passages, "
      "which the evaluation retrieved. Evaluate questions with passages: `ragrl retrieve` attaches an index's."
    )
