"""Evaluates a policy: scores every example exactly once, in input order; writes one row per example and the means."""

import functools
import json
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa, searches, stats
from ragrl_jax.evaluation import comparison, conduct_rows, evidence_rows
from ragrl_jax.rollout.group_sampler import TooManyFailures, refuse_failures
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.store import jsonl

PREDICTIONS, METRICS, SETTINGS = "predictions.jsonl", "metrics.json", "settings.json"
WITH_INTERVAL = ("em", "f1", "cover_em", "outcome")

# (examples, index of the first one in the set) → their episodes, in the same order.
Play = Callable[[Sequence[structs.Example], int], Sequence[structs.Episode]]


def answer(recipe, episode: structs.Episode) -> str | None:
  """The last answer that the model wrote, with each turn parsed on its own; None if there is none."""
  if "answer" in episode.facts:  # another generator answered from the policy's evidence
    return episode.facts["answer"]
  for segment in reversed(episode.segments):
    if segment.owner == structs.MODEL:
      found = recipe.parser.answer(segment.text)
      if found is not None:
        return found
  return None


def prediction(recipe, scored: rewards.Scored) -> dict[str, Any]:
  """The row of one example. A question without an answer scores 0; the scores of a failed episode are None.

  The outcome is also None if a judge gave no verdict.
  """
  example, episode = scored.example, scored.episode
  said = answer(recipe, episode)
  failed = episode.ended == "failed"
  measure = lambda metric: None if failed else 0.0 if said is None else metric(said, example.golds)
  golds = episodes_lib.gold_ids(example, episode)
  return {
    "id": example.id,
    "question": example.question,
    "golds": example.golds,
    "prediction": said,
    "em": measure(qa.exact_match),
    "f1": measure(qa.f1),
    "cover_em": measure(qa.cover_em),
    "char_f1": measure(functools.partial(qa.f1, unit="char", style="filco")),
    **_in_style(recipe.style, measure),
    "outcome": scored.outcome,
    "terms": scored.terms,
    "pooled": scored.pooled,
    "num_searches": episode.num_searches,
    "wasted_searches": searches.wasted_searches(episodes_lib.searched(episode), golds),
    "ended": episode.ended,
    "failure": episode.failure,
    "prompt_tokens": len(episode.segments[0].ids) if episode.segments else 0,
    "response_tokens": episode.num_model_tokens,
    "episode_tokens": episode.num_tokens,
    "hops": example.hops,
    "source": example.source,
    **evidence_rows.row(recipe, example, episode),
    **conduct_rows.row(example, episode, said),
  }


def _in_style(style: str, measure: Callable[..., float | None]) -> dict[str, float | None]:
  """EM and F1 as the paper's tables have them, where they normalise answers in another way than `em` and `f1`."""
  if style == "squad":
    return {}
  metrics = dict(em=qa.exact_match, f1=qa.f1)
  return {f"{name}_{style}": measure(functools.partial(metric, style=style)) for name, metric in metrics.items()}


def rows_of(
  examples: Sequence[structs.Example], play: Play, recipe, *, batch: int, first: int = 0
) -> Iterator[list[tuple[dict[str, Any], rewards.Scored]]]:
  """Plays `batch` examples at a time and yields their rows, in input order.

  Raises:
    RuntimeError: `play` did not return one episode for each example, in their order.
  """
  for start in range(0, len(examples), batch):
    part = examples[start : start + batch]
    played = play(part, first + start)
    given, wanted = [episode.example_id for episode in played], [example.id for example in part]
    if given != wanted:
      raise RuntimeError(
        f"{len(part)} questions were played and {len(played)} episodes returned, not one for each in "
        f"their order (first: asked {wanted[:1]}, got {given[:1]})."
      )
    scored = rewards.score(recipe, part, played, 0)
    yield [(prediction(recipe, one), one) for one in scored]


def evaluate(
  examples: Sequence[structs.Example],
  play: Play,
  recipe,
  out: pathlib.Path,
  *,
  settings: Mapping[str, Any],
  batch: int = 256,
  max_failed_share: float = 1.0,
  max_unjudged_share: float = 1.0,
  progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
  """Scores every example once and writes predictions.jsonl, episodes.jsonl and metrics.json to `out`.

  Rows are appended batch by batch, in input order; those of episodes.jsonl (`store.episodes.played`) hold what was
  said, found and judged. A killed run continues where it stopped: examples with a row are not played again.

  Args:
    examples: all questions.
    play: plays a batch of them.
    recipe: parses answers and scores episodes.
    out: the folder; it is created if needed.
    settings: everything that the scores depend on (checkpoint, data, recipe, retrieval, sampling); stored in
      metrics.json.
    batch: questions played together. With batch 1 the metrics have `latency`: the median seconds from a question to its
      scored answer, over the questions played by this call (the first one includes compilation).
    max_failed_share, max_unjudged_share: highest shares in a batch (`refuse_failures`); above them the evaluation stops
      without writing the batch.
    progress: called after each batch with the number of examples done.

  Returns:
    The metrics as written: `summarise`, seconds, peak memory and settings.

  Raises:
    ValueError: `out` holds predictions with other settings or for other questions.
    TooManyFailures: a tool is down. Finished batches are kept, and the same call continues after them.
  """
  out.mkdir(parents=True, exist_ok=True)
  settings = jsonl.plain(settings)
  path = out / PREDICTIONS
  rows = jsonl.repair(path)
  if rows:
    _check(out, rows, settings, examples)
  else:
    with jsonl.whole(out / SETTINGS) as part:
      part.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
  if jsonl.cut(out / episodes_lib.PLAYED, len(rows)) < len(rows) < len(examples):
    raise ValueError(
      f"{out / episodes_lib.PLAYED} holds fewer episodes than {PREDICTIONS} has rows, as evaluations of older versions "
      "do: choose another --out, or delete the folder."
    )
  resumed, began, took = len(rows), time.perf_counter(), []
  progress(resumed)
  asked = began
  appended = functools.partial(open, mode="a", encoding="utf-8", newline="\n")
  with appended(path) as file, appended(out / episodes_lib.PLAYED) as played:
    for found in rows_of(examples[resumed:], play, recipe, batch=batch, first=resumed):
      took.append(time.perf_counter() - asked)
      _refuse_failures([one.episode for _, one in found], max_failed_share, max_unjudged_share)
      rows += [row for row, _ in found]
      # Episodes first: those without a row are cut off when a killed evaluation goes on.
      played.writelines(jsonl.line(episodes_lib.played(one.example, one.episode)) for _, one in found)
      played.flush()
      file.writelines(jsonl.line(row) for row, _ in found)
      file.flush()
      progress(len(rows))
      asked = time.perf_counter()
  seconds = time.perf_counter() - began
  metrics = summarise(rows) | {
    "seconds": round(seconds, 3),
    "seconds_cover": len(rows) - resumed,
    "peak_memory": peak_memory(),
    "settings": settings,
  }
  if batch == 1 and took:
    metrics["latency"] = round(statistics.median(took), 6)
  with jsonl.whole(out / METRICS) as part:
    part.write_text(json.dumps(jsonl.plain(metrics), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
  return metrics


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Means over the rows that could be scored, with 95 % bootstrap intervals over questions.

  Returns:
    n (scored), failed, unjudged (scored, but without an outcome, and in no mean of it); em, f1, cover_em and outcome,
    each with `_interval`; char_f1, em_spaced and f1_spaced (if the recipe's style is "spaced"), answered (share),
    searches, wasted_searches (None if gold passages are unknown), response_tokens, terms, pooled (`Recipe.pooled`),
    ended (counts); the measures of `evidence_rows.summarise` and `conduct_rows.summarise`; by_hops and by_source:
    {value: {n, em, em_interval, f1, searches}}; with several sources, macro: the mean of their means
    (`comparison.macro`).
  """
  known = [row for row in rows if row["ended"] != "failed"]
  metrics: dict[str, Any] = {"n": len(known), "failed": len(rows) - len(known)}
  metrics["unjudged"] = sum(row["outcome"] is None for row in known)
  for name in WITH_INTERVAL:
    metrics |= _with_interval(name, known)
  metrics["char_f1"] = _mean([row["char_f1"] for row in known])
  for name in ("em_spaced", "f1_spaced"):
    if any(name in row for row in known):
      metrics[name] = _mean([row[name] for row in known])
  metrics["answered"] = _mean([row["prediction"] is not None for row in known])
  metrics["searches"] = _mean([row["num_searches"] for row in known])
  metrics["wasted_searches"] = _mean([row["wasted_searches"] for row in known])
  metrics["response_tokens"] = _mean([row["response_tokens"] for row in known])
  names = dict.fromkeys(name for row in known for name in row["terms"])
  metrics["terms"] = {name: _mean([row["terms"].get(name) for row in known]) for name in names}
  metrics["pooled"] = rewards.ratios([row.get("pooled", {}) for row in known])
  ends = [row["ended"] for row in rows]
  metrics["ended"] = {why: ends.count(why) for why in sorted(set(ends))}
  metrics |= evidence_rows.summarise(known) | conduct_rows.summarise(known)
  for group, key in (("by_hops", "hops"), ("by_source", "source")):
    values = sorted({row[key] for row in known if row[key] not in (None, "")})
    metrics[group] = {str(value): _part([row for row in known if row[key] == value]) for value in values}
  if len(metrics["by_source"]) > 1:
    metrics["macro"] = comparison.macro(comparison.by_set([row for row in known if row["source"]]))
  return metrics


def flat(metrics: Mapping[str, Any], prefix: str = "evaluation/") -> dict[str, float]:
  """The numbers of `summarise` with one prefix, for a row of metrics.jsonl.

  Intervals, unknown values and the split by a single source are left out.
  """
  found = {}
  for name, value in metrics.items():
    if name == "by_source" and len(value) < 2:
      continue
    if isinstance(value, Mapping):
      found |= flat(value, f"{prefix}{name}/")
    elif isinstance(value, int | float):
      found[prefix + name] = value
  return found


def peak_memory() -> dict[str, int]:
  """Peak memory in bytes: "host" for this process, and for each platform the largest peak that a device reports."""
  unit = 1 if sys.platform == "darwin" else 1024
  found = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
  for device in jax.local_devices():
    held = (device.memory_stats() or {}).get("peak_bytes_in_use")
    if held is not None:
      found[device.platform] = max(found.get(device.platform, 0), held)
  return found


def _refuse_failures(episodes: Sequence[structs.Episode], share: float, unjudged_share: float) -> None:
  try:
    refuse_failures(episodes, share, unjudged_share)
  except TooManyFailures as error:
    raise TooManyFailures(f"{error} Then run the same command again: it goes on from here.") from None


def _check(out: pathlib.Path, rows, settings, examples) -> None:
  """Refuses to continue predictions of another evaluation."""
  path = out / SETTINGS
  before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
  differ = [name for name in sorted({*before, *settings}) if before.get(name) != settings.get(name)]
  if differ:
    raise ValueError(
      f"{out} holds predictions made with other settings ({', '.join(f'{n}: {before.get(n)!r}' for n in differ)}; now "
      f"{', '.join(repr(settings.get(n)) for n in differ)}): choose another --out, or delete the folder."
    )
  given = [(example.id, example.question) for example in examples[: len(rows)]]
  there = [(row["id"], row["question"]) for row in rows]
  if there != given:
    place = next((i for i, (one, other) in enumerate(zip(there, given)) if one != other), len(given))
    raise ValueError(
      f"{out / PREDICTIONS}:{place + 1}: this prediction is for another question than the data's row at "
      "this position: choose another --out, or delete the folder."
    )


def _part(rows) -> dict[str, Any]:
  return {
    "n": len(rows),
    **_with_interval("em", rows),
    "f1": _mean([row["f1"] for row in rows]),
    "searches": _mean([row["num_searches"] for row in rows]),
  }


def _with_interval(name: str, rows) -> dict[str, Any]:
  values = np.asarray([row[name] for row in rows if row[name] is not None], np.float64)
  if not values.size:
    return {name: None, f"{name}_interval": None}
  return {name: float(values.mean()), f"{name}_interval": list(stats.bootstrap_interval(values, seed=0))}


def _mean(values) -> float | None:
  known = [float(value) for value in values if value is not None]
  return sum(known) / len(known) if known else None
