"""Transcripts for SFT: a recipe played by its own script, with the searches of training and evaluation, and rejection
sampling, which keeps the correct episodes of evaluations."""

import collections
import dataclasses
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import recipes, retrieval, structs
from ragrl_jax.core.rewards import queries
from ragrl_jax.data import digests, transcripts
from ragrl_jax.evaluation import answer_files, comparison
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.run import environment_tools, prepared, questions
from ragrl_jax.settings import Settings, fields
from ragrl_jax.store import episodes as episodes_lib, jsonl
from ragrl_jax.structs import MODEL, TRUNCATED, Example
from ragrl_jax.testing.scripted import ScriptedPolicy

KEPT = "kept"
BYTES = 4  # bytes that count as a token if the config names no tokenizer
AT_ONCE = 64  # questions of a batch


class Tools(RetrievalTools):
  """The searches of config.retrieval. There is no judge, and no encoder: queries are compared by their letters."""

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """No verdicts; a demonstration is right only by exact match."""
    return (None,) * len(pairs)

  async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, queries.ngram_vectors(texts).astype(float).tolist()))


class Maker:
  """Makes demonstrations in the format of a config's recipe.

  Args:
    config: all settings. Without a tokenizer (config.prompting.tokenizer, config.model.path), BYTES bytes are a token.

  Raises:
    ValueError: the recipe has no script, or searches and config.retrieval.index is empty.
  """

  def __init__(self, config: Settings):
    recipe = prepared.recipe(config)
    if recipe.script is None:
      others = ", ".join(name for name in recipes.RECIPES if recipes.get(name).script is not None)
      raise ValueError(
        f"the recipe {recipe.name} with these switches has no demonstrations; there are some for {others} (--config)."
      )
    if recipe.searches and not recipe.needs_passages and not config.retrieval.index:
      raise ValueError(
        f"config.retrieval.index is empty, and {recipe.name} searches: name an index's folder or an address."
      )
    has_tokenizer = bool(config.prompting.tokenizer or config.model.path)
    size = 1 if has_tokenizer else BYTES
    if not has_tokenizer and recipe.switches.get("max_passage_tokens"):
      most = BYTES * recipe.switches["max_passage_tokens"]
      recipe = prepared.recipe(fields.replaced(config, {"switches.max_passage_tokens": most}))
    self.tokenizer = prepared.tokenizer(config, recipe) if has_tokenizer else ByteTokenizer()
    self.recipe: Recipe = recipe
    self.seed = config.seed
    self.room, self.longest = size * config.rollout.context, size * config.rollout.max_new_tokens
    where, how = config.retrieval.index, environment_tools.remote(config.retrieval)
    index = retrieval.load_index(where, **how) if self.recipe.searches and where else None
    self.tools = Tools(index, top_k=config.retrieval.top_k, timeout_s=600.0)

  async def many(
    self, examples: Sequence[Example], most: int, progress: Callable[[int], None] = lambda kept: None
  ) -> tuple[list[tuple[Example, transcripts.Turns]], collections.Counter]:
    """Up to `most` demonstrations (0: all), of examples drawn by config.seed; and the number of examples by status."""
    order, kept, counts = list(examples), [], collections.Counter()
    random.Random(self.seed).shuffle(order)
    while order and (not most or len(kept) < most):
      batch = order[: min(AT_ONCE, most - len(kept)) if most else AT_ONCE]
      del order[: len(batch)]
      batch_kept, statuses = await transcripts.make(batch, self.one)
      kept, counts = kept + batch_kept, counts + statuses
      progress(len(kept))
    return kept, counts

  async def one(self, example: Example) -> tuple[str, transcripts.Turns | None]:
    """(KEPT, the turns), or (why the example is left out, None)."""
    rng = random.Random(f"{self.seed}/{example.source}/{example.id}")
    script = self.recipe.script
    assert script is not None
    try:
      scripts.facts(example)
      written = lambda segments: script(example, segments, rng)
      # The chat template may have opened the thought that the script begins with.
      text_of = lambda segments: written(segments).removeprefix(structs.THINK * structs.opened(segments))
      policy: Any = ScriptedPolicy(text_of, room=self.room, tokenizer=self.tokenizer)
      episode = await self.recipe.play(example, policy, self.tools)
    except scripts.NotShown as why:
      return f"left out: {why}", None
    if (why := self.fault(example, episode)) is not None:
      return f"left out: {why}", None
    return KEPT, [(segment.owner, segment.text) for segment in episode.segments[1:]]

  def fault(self, example: Example, episode: structs.Episode) -> str | None:
    """Why the episode is no demonstration: too long, not right, out of shape, or with a trick; None if it is one."""
    turns = [segment for segment in episode.turns if segment.owner == MODEL]
    lengths = [len(segment.ids) + (segment.stop == "eos") for segment in turns]  # the model would sample EOS, too
    if episode.ended == "budget" or not lengths:
      return "longer than config.rollout.context"
    if max(lengths) > self.longest:
      return "a turn longer than config.rollout.max_new_tokens"
    if episode.ended == "searches":
      return "more searches than config.switches.max_searches"
    terms = self.recipe.score(example, episode)
    paid = [self.recipe.outcome(example, episode), terms.get("format", 1.0), terms.get("accuracy", 1.0)]
    if paid != [1.0, 1.0, 1.0]:
      return "the recipe does not give it the full reward for format and answer"
    tricks = self.recipe.unearned(example, episode) if self.recipe.unearned is not None else {}
    trick_used = next((trick for trick, used in tricks.items() if used), None)
    return trick_used and f"the recipe's guard finds the trick {trick_used!r}"


CHANGED = ("noise", "cut_middle")  # settings that make an evaluation's prompts differ from the data's


def keep_right(
  folders: Sequence[str | pathlib.Path], examples: Sequence[Example]
) -> tuple[list[tuple[Example, transcripts.Turns]], collections.Counter]:
  """Rejection sampling: the distinct correct transcripts of these evaluations, in the questions' order.

  An episode is correct if its outcome is 1 and none of its turns was cut off.

  Args:
    folders: folders of evaluations, each with one or several seeds, with the same recipe and switches.

  Returns:
    ([(example, turns)] with distinct ids, number of episodes by status). The statuses are "kept", "wrong", "failed",
    "cut off", and "again" for a repeated transcript.

  Raises:
    ValueError: a folder is not a finished evaluation, the recipes differ, the recipe's episodes or the evaluation's
      prompts cannot be trained on, or a question is not among the examples, or lacks its passages there, or has others.

  Source: rejection sampling as in Search-R1 (arXiv 2503.09516) sec. 5.1: five samples a question, the right ones kept.
  """
  by_place = {(example.source, example.id): example for example in examples}
  if len(by_place) < len(examples):
    raise ValueError("--data: two of its questions have the same source and id, so that transcripts cannot be matched.")
  earlier: dict[tuple[str, str], list[transcripts.Turns]] = {}
  counts: collections.Counter = collections.Counter()
  folders = [part for folder in folders for part in answer_files.parts(pathlib.Path(folder))]
  settings_of = {str(folder): answer_files.finished(folder)["settings"] for folder in folders}
  settings, recipe = _agreed([*settings_of.items()])
  if settings.get("own_passages") is False:
    by_place = {place: questions.without_passages(example) for place, example in by_place.items()}
  bare = sum(not example.passages for example in by_place.values())
  if recipe.needs_passages and bare:
    raise ValueError(
      f"--data: {bare} of its {len(by_place)} questions have no passages, but {recipe.name}'s prompt shows passages, "
      "which the evaluation retrieved. Evaluate questions with passages: `ragrl retrieve` attaches an index's."
    )
  for folder in folders:
    rows = list(jsonl.read(folder / answer_files.PREDICTIONS))
    played = [_said(logged) for logged in episodes_lib.read_folder(folder)]
    if len(rows) != len(played):
      raise ValueError(f"{folder}: {len(rows)} predictions and {len(played)} episodes: run the evaluation to its end.")
    places = [(row["source"] or "", row["id"]) for row in rows]
    for place, row, (turns, whole) in zip(places, rows, played):
      if place not in by_place:
        raise ValueError(f"{folder}: question {row['id']!r} is not in --data: give it the evaluation's questions.")
      if comparison.asked_of(row) != (by_place[place].question, by_place[place].golds):
        raise ValueError(
          f"{folder}: question {row['id']!r} has another text or other golds there than in --data, so it is not known "
          "which answers are right: give the evaluation's questions, or run the evaluation again (it scores again)."
        )
      status = _status(row, whole, turns in earlier.get(place, ()))
      counts[status] += 1
      if status == "kept":
        earlier.setdefault(place, []).append(turns)
    shown = (settings_of[str(folder)].get(answer_files.CONTENTS) or {}).get("passages")
    if recipe.needs_passages and shown not in (None, digests.by_field(map(by_place.get, places)).get("passages")):
      raise ValueError(
        f"{folder}: its questions have other passages in --data, so SFT would train on other prompts: give the "
        "evaluation's questions."
      )
  pairs = [(example, turns) for place, example in by_place.items() for turns in earlier.get(place, [])]
  return list(zip(_named([example for example, _ in pairs]), [turns for _, turns in pairs])), counts


def _named(examples: Sequence[Example]) -> list[Example]:
  """The examples with distinct ids, which a file requires: "q7", then "q7.2"."""
  seen: collections.Counter = collections.Counter()
  result, used = [], {example.id for example in examples}
  for example in examples:
    seen[example.id] += 1
    number, name = seen[example.id], example.id
    while number > 1 and (name := f"{example.id}.{number}") in used:
      number += 1
    seen[example.id] = number
    used.add(name)
    result.append(dataclasses.replace(example, id=name))
  return result


def _said(logged: Mapping[str, Any]) -> tuple[transcripts.Turns, bool]:
  """(an episode's turns, whether none was cut off). Its prompt and passages take most of the memory, and are let go."""
  segments = logged["segments"][1:]
  turns = [(segment["owner"], segment["text"]) for segment in segments]
  return turns, not any(segment.get("stop") in TRUNCATED for segment in segments if segment["owner"] == MODEL)


def _status(row: Mapping[str, Any], whole: bool, known: bool) -> str:
  if row["ended"] == "failed":
    return "failed"
  if row["outcome"] != 1.0:
    return "wrong"
  return "cut off" if not whole else "again" if known else "kept"


def _agreed(evaluations: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[Mapping[str, Any], Recipe]:
  """The evaluations' settings and recipe. Refuses evaluations whose transcripts cannot form one training set."""
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
  is_agent = recipe in ("agent", "tool_agent")  # not built: this would run programs that the evaluation's file names
  rebuilt = None if is_agent else recipes.get(recipe, settings["preset"], **settings["switches"])
  if rebuilt is None or rebuilt.tool_tokens is not None:
    raise ValueError(
      f"{first}: the prompts of {recipe} hold tools or a program's own messages, which transcripts do not have: SFT "
      "would train on other prompts."
    )
  if not rebuilt.trainable:
    raise ValueError(f"{first}: {recipe} joins several conversations in an episode: no policy can be trained on it.")
  return settings, rebuilt
