"""Reads logged episodes whose steps are to be judged, with Search-R1's tags in their turns, whichever agent played."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.evaluation import answer_files, foreign_transcripts
from ragrl_jax.evaluation.answer_files import METRICS, SETTINGS
from ragrl_jax.recipes.released.agents import AGENTS, Agent
from ragrl_jax.store import changes, episodes as episodes_lib, jsonl, sums
from ragrl_jax.structs import MODEL


def read(folder: str | pathlib.Path) -> Iterator[dict[str, Any]]:
  """The rows of `store.episodes.read_folder`, with the turns of released agents in Search-R1's tags.

  Raises:
    ValueError: the folder's settings name a recipe or an agent without such steps (`Switches.stepped`).
    FileNotFoundError: see `read_folder`.
  """
  settings = _settings(pathlib.Path(folder))
  name, switches = settings.get("recipe"), settings.get("switches") or {}
  rows = episodes_lib.read_folder(folder)
  if name not in recipes.RECIPES:  # transcripts of other systems, and recipes of others
    return rows
  switches_read = recipes.chosen(name, settings.get("preset"), **switches)
  agent = switches_read.get("agent")
  if not switches_read.stepped:
    raise ValueError(_refusal(folder, f"agent {agent!r}" if agent else f"recipe {name!r}"))
  return (_translated(row, AGENTS[agent]) for row in rows) if agent else rows


# The recorded settings of an evaluation that tell systems apart. Its questions, seed and judges do not.
_WHO = (
  *("recipe", "preset", "switches", "system", "model", "endpoint", "weights", "retrieval", "noise", "own_passages"),
  *("cut_middle", "thinking", "max_new_tokens", "context", "reserve", "wordings", "other"),
)


def systems(folders: Sequence[pathlib.Path]) -> list[list[pathlib.Path]]:
  """The folders of each system. Folders without settings, runs, and transcripts of no known model stand alone.

  Raises:
    ValueError: see `read`; an evaluation has not ended; or two folders of one system have the same questions, and the
      same seed of the samples.
  """
  folders_of: dict[str, list[pathlib.Path]] = {}
  for folder in folders:
    answer_files.refuse_unfinished(folder)
    read(folder)  # refuses a folder before a judge is paid
    settings = _settings(folder)
    model = settings.get("weights") or settings.get("model")
    identity = {name: settings[name] for name in _WHO if name in settings} if isinstance(model, str) else str(folder)
    sampling = settings.get("sampling")
    sampling_key = {**sampling, "seed": None} if isinstance(sampling, Mapping) else sampling
    folders_of.setdefault(json.dumps([identity, sampling_key], sort_keys=True), []).append(folder)
  for group in folders_of.values():
    questions_of: dict[Any, pathlib.Path] = {}
    for folder in group if len(group) > 1 else ():
      sampling = _settings(folder).get("sampling")
      seed = sampling.get("seed") if isinstance(sampling, Mapping) else None
      for row in episodes_lib.read_folder(folder):
        if (other := questions_of.setdefault((seed, row["source"], row["id"]), folder)) is not folder:
          raise ValueError(
            f"{other} and {folder} have answers of one system to the same question {row['id']!r}, and both would be "
            "counted: name one of them, or run the command for each (--episodes)."
          )
  return list(folders_of.values())


def digest(folder: pathlib.Path) -> str:
  """SHA-256 of an evaluation's episodes; "" for a run."""
  path = folder / episodes_lib.PLAYED
  return sums.digest(path) if path.is_file() else ""


def _refusal(folder: str | pathlib.Path, whose: str) -> str:
  return (
    f"{folder}: these episodes are of {whose}, which does not write each thought between <think> and </think>, then a "
    "query or an answer, so its steps cannot be judged. Name folders of other recipes or agents, or of `ragrl score` "
    "(--episodes)."
  )


def _settings(folder: pathlib.Path) -> Mapping[str, Any]:
  """The settings of an evaluation, of `ragrl score`, or of a run; empty if there are none."""
  for name in (SETTINGS, METRICS, changes.FILE):
    if values := jsonl.read_object(folder / name):
      return values.get("settings", {}) if name == METRICS else values
  return {}


def _translated(row: Mapping[str, Any], tags: Agent) -> dict[str, Any]:
  prompt, *turns = row["segments"]
  return {**row, "segments": [prompt, *(turn | dict(text=_text(turn, tags)) for turn in turns)]}


def _text(turn: Mapping[str, Any], tags: Agent) -> str:
  text = turn["text"]
  if turn["owner"] == MODEL:
    return foreign_transcripts.said(text, tags)
  if turn.get("found") is None:  # a notice
    return text
  return foreign_transcripts.block(text.strip().removeprefix(tags.results[0]).removesuffix(tags.results[1]))
