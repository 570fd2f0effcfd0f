"""Evaluates a policy: plays and scores every example once, and writes a row for each and the means."""

import collections
import concurrent.futures
import contextlib
import functools
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa, searches, stats
from ragrl_jax.data import digests
from ragrl_jax.evaluation import answer_files, comparison, episode_rows
from ragrl_jax.evaluation.answer_files import AGAIN, METRICS, AnswerFiles, write_json
from ragrl_jax.recipes import parts
from ragrl_jax.rollout import collect
from ragrl_jax.rollout.group_sampler import TooManyFailures, refuse_failures
from ragrl_jax.run import rewards
from ragrl_jax.settings import stored_paths
from ragrl_jax.store import episodes as episodes_lib, jsonl, lock

WITH_INTERVAL = ("em", "f1", "cover_em", "outcome")

LONGEST_REPLY = 200  # characters that are shown of a reply without an answer
SHOWN = 2  # such replies
FEWEST = 64  # smallest number of episodes over which the share of failures is computed

# (requests grouped by question, episodes at a time) → their episodes as they end, in any order. An episode has the
# request's numbers: the index of the question as prompt_index, the seed as sample.
Play = Callable[[Sequence[Sequence[collect.Request]], int], Generator[structs.Episode, None, None]]


def prediction(recipe, scored: rewards.Scored) -> dict[str, Any]:
  """The row of one example. A question without an answer scores 0; the scores of a failed episode are None.

  The outcome is also None if a judge gave no verdict.
  """
  example, episode = scored.example, scored.episode
  answer_text = parts.last_answer(recipe.parser, episode)
  failed = episode.ended == "failed"
  measure = lambda metric: None if failed else 0.0 if answer_text is None else metric(answer_text, example.golds)
  golds = episodes_lib.gold_ids(example, episode)
  return {
    "id": example.id,
    "question": example.question,
    "golds": example.golds,
    "prediction": answer_text,
    "unanswered": None if failed or answer_text is not None else _unanswered(example, episode),
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
    **episode_rows.evidence(recipe, example, episode),
    **episode_rows.conduct(example, episode, answer_text),
  }


def _unanswered(example: structs.Example, episode: structs.Episode) -> dict[str, Any]:
  """How a reply without an answer looks: its beginning, and whether the model's text contains a gold."""
  text = "\n".join(segment.text for segment in episode.segments if segment.owner == structs.MODEL)
  has_gold = qa.searchable(example.golds) and qa.has_answer(text, example.golds)  # "no" is in many replies
  return dict(reply=" ".join(text[:LONGEST_REPLY].split()), has_gold=has_gold)


# Columns that need token ids or log-probabilities, which kept episodes lack. They do not depend on the right answers.
_OF_TOKENS = ("prompt_tokens", "response_tokens", "episode_tokens", "confidence")


def scored_again(recipe, example: structs.Example, episode: structs.Episode, row: Mapping[str, Any]) -> dict[str, Any]:
  """The row of a kept answer with the scores of a question whose right answers have changed.

  Raises:
    ValueError: a judge compared this answer with the old golds in play (`Recipe.judges_golds`).
  """
  if recipe.judges_golds and tuple(row["golds"]) != example.golds and row["ended"] != "failed":
    raise ValueError(
      f"question {example.id!r}: its golds differ from those with which a judge compared the kept answer, so its "
      f"verdict does not hold: {AGAIN}."
    )
  (scored,) = rewards.score(recipe, [example], [episode], 0)
  return prediction(recipe, scored) | {name: row[name] for name in _OF_TOKENS if name in row}


def _in_style(style: str, measure: Callable[..., float | None]) -> dict[str, float | None]:
  """EM and F1 in the normalisation of the paper's tables, if it differs from that of `em` and `f1`."""
  if style == "squad":
    return {}
  metrics = dict(em=qa.exact_match, f1=qa.f1)
  return {f"{name}_{style}": measure(functools.partial(metric, style=style)) for name, metric in metrics.items()}


def answer_all(
  requests: Sequence[Sequence[collect.Request]],
  play: Play,
  recipe,
  keep: Callable[[dict[str, Any], rewards.Scored], None],
  *,
  at_once: int,
  progress: Callable[[int], None] = lambda done: None,
) -> None:
  """Plays and scores every request. Answers are scored in a thread, and passed to `keep`, while others are played.

  Args:
    at_once: episodes played at a time. With 1, the next one begins after `keep` has returned.
    progress: called with the number of kept answers.

  Raises:
    RuntimeError: `play` did not return one episode for each request.
    Errors of `play` and `keep`.
  """
  left = {(one.prompt_index, one.sample): one.example for group in requests for one in group}
  number = len(left)
  waiting: collections.deque[concurrent.futures.Future] = collections.deque()

  def score(example: structs.Example, episode: structs.Episode) -> None:
    (scored,) = rewards.score(recipe, [example], [episode], 0)
    keep(prediction(recipe, scored), scored)

  def finish_first() -> None:
    waiting.popleft().result()
    progress(number - len(left) - len(waiting))

  # One thread suffices: scoring is Python, which runs while the device samples.
  with (
    concurrent.futures.ThreadPoolExecutor(1, "scoring") as scoring,
    contextlib.closing(play(requests, at_once)) as played,
  ):
    for episode in played:
      example = left.pop((episode.prompt_index, episode.sample), None)
      if example is None or example.id != episode.example_id:
        raise RuntimeError(
          f"an episode was returned for question {episode.prompt_index} ({episode.example_id!r}), sample "
          f"{episode.sample}, which was not requested or has already been answered."
        )
      waiting.append(scoring.submit(score, example, episode))
      # Unscored episodes occupy memory, so playing waits for scoring if scoring is slower.
      while waiting and (waiting[0].done() or len(waiting) >= at_once):
        finish_first()
    while waiting:
      finish_first()
  if left:
    raise RuntimeError(
      f"{number} questions were played and {number - len(left)} episodes returned (first missing: {next(iter(left))})."
    )


def evaluate(
  examples: Sequence[structs.Example],
  play: Play,
  recipe,
  out: pathlib.Path,
  *,
  settings: Mapping[str, Any],
  batch: int = 256,
  seeds: int = 1,
  max_failed_share: float = 1.0,
  max_unjudged_share: float = 1.0,
  devices: str = "",
  price_per_hour: float = 0.0,
  progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
  """Scores every example once and writes predictions.jsonl, episodes.jsonl and metrics.json to `out`.

  Rows are appended as the answers end, and sorted into input order at the end. The rows of episodes.jsonl
  (`store.episodes.played`) have the texts, passages and verdicts. A killed run continues where it stopped: examples
  with a row are not played again. If only their right answers or other fields that scores read have changed
  (`data.digests`), the kept answers are scored again.

  With several seeds, each has its own folder with these files (`out`/seed_0 and so on), and `out` has the metrics.json
  of all of them (`answer_files.over_seeds`). More seeds can be added later.

  Args:
    out: the folder; it is created if needed.
    settings: everything that the scores depend on (checkpoint, data, recipe, retrieval, sampling); stored in
      metrics.json with the digests of the questions.
    batch: episodes played at a time. With batch 1 the metrics have `latency`: the median seconds from a question to its
      scored answer, over the questions played by this call (the first one includes compilation).
    seeds: number of answers to each question, which `play` samples with different random numbers.
    max_failed_share, max_unjudged_share: highest shares among the last max(`batch`, 64) episodes (`refuse_failures`).
      Above them the evaluation stops, and the next call plays the failed episodes again.
    devices, price_per_hour: what answers, and the price of an hour of it, if they are known.
    progress: called with the number of answers.

  Returns:
    The metrics as written: `summarise`, settings, and of the questions played by this call (or else by the last one
    that played any) seconds, peak memory, and devices and price.

  Raises:
    ValueError: `out` holds predictions with other settings or for other questions, or something else than an
      evaluation; or another process writes there.
    TooManyFailures: a tool is down. Finished answers are kept, and the same call continues after them.
  """
  folders = answer_files.folders(out, seeds)  # before the lock's file is written there
  # A seed's answers do not depend on the number of seeds.
  settings = {**settings, answer_files.CONTENTS: digests.by_field(examples)}
  ownership = [settings | ({} if seeds == 1 else dict(sample=seed)) for seed in range(seeds)]
  with contextlib.ExitStack() as stack:
    stack.enter_context(lock.held(out))
    again = functools.partial(scored_again, recipe)
    files = [AnswerFiles(folder, owned, examples, again) for folder, owned in zip(folders, ownership)]
    for one in files:
      stack.callback(one.close)
    requests = [
      [collect.Request(example, index, seed) for seed, one in enumerate(files) if index not in one.rows]
      for index, example in enumerate(examples)
    ]
    requests = [group for group in requests if group]
    resumed = sum(len(one.rows) for one in files)
    progress(resumed)
    seconds_of, start = [], time.perf_counter()
    last = start

    def answered(count: int) -> None:
      nonlocal last
      seconds_of.append(time.perf_counter() - last)
      progress(resumed + count)
      last = time.perf_counter()

    if requests:
      keeper = _Keeper(files, max(batch, FEWEST), max_failed_share, max_unjudged_share)
      answer_all(requests, play, recipe, keeper, at_once=batch, progress=answered)
      keeper.check()
    seconds = time.perf_counter() - start
    rows = [one.finish() for one in files]
  parts = [summarise(part) for part in rows]
  for folder, owned, part in zip(folders, ownership, parts):
    if seeds > 1:
      write_json(folder / METRICS, part | dict(settings=owned))
  spent: dict[str, Any] = {
    "seconds": round(seconds, 3),
    "seconds_cover": len(seconds_of),
    "peak_memory": peak_memory(),
    **({"devices": devices} if devices else {}),
    **({"price": seconds / 3600 * price_per_hour} if price_per_hour else {}),
  }
  if not seconds_of:  # what the call that played measured stays
    earlier = jsonl.read_object(out / METRICS)
    spent |= {name: earlier[name] for name in (*spent, "latency") if name in earlier}
  elif batch == 1 and seeds == 1:
    spent["latency"] = round(statistics.median(seconds_of), 6)
  metrics = parts[0] if seeds == 1 else answer_files.over_seeds(parts, rows, WITH_INTERVAL)
  metrics |= spent | dict(settings=jsonl.plain(settings))
  for folder in {out, *folders}:
    stored_paths.note(folder)
  write_json(out / METRICS, metrics)
  return metrics


class _Keeper:
  """Writes answers to the seeds' files, and stops the evaluation if a tool is down.

  Failed episodes are written after enough others have ended, so that a tool that is down is recognised first.
  """

  def __init__(self, files: Sequence[AnswerFiles], window: int, failed_share: float, unjudged_share: float):
    self._files, self._shares = files, (failed_share, unjudged_share)
    self._recent: collections.deque[structs.Episode] = collections.deque(maxlen=window)
    self._held: list[tuple[dict[str, Any], rewards.Scored]] = []
    self._ended = 0

  def __call__(self, row: dict[str, Any], scored: rewards.Scored) -> None:
    self._recent.append(scored.episode)
    self._ended += 1
    if scored.episode.ended == "failed" or structs.NO_VERDICT in scored.episode.facts:
      self._held.append((row, scored))
    else:
      self._write(row, scored)
    if self._ended % (self._recent.maxlen or 1) == 0:
      self.check()

  def check(self) -> None:
    """Writes the episodes that were held back. Raises TooManyFailures if too many of the newest episodes failed."""
    try:
      refuse_failures(self._recent, *self._shares)
    except TooManyFailures as error:
      raise TooManyFailures(f"{error} Then run the same command again: it continues from here.") from None
    for row, scored in self._held:
      self._write(row, scored)
    self._held.clear()

  def _write(self, row: dict[str, Any], scored: rewards.Scored) -> None:
    self._files[scored.episode.sample].add(scored.episode.prompt_index, row, scored)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Means over the rows that could be scored, with 95 % bootstrap intervals over questions.

  Returns:
    n (scored), failed, unjudged (scored, but without an outcome, and in no mean of it); em, f1, cover_em and outcome,
    each with `_interval`; char_f1, em_spaced and f1_spaced (if the recipe's style is "spaced"), answered (share),
    unanswered (replies without an answer: their number, those of them with a gold in the text, and the first ones),
    searches, wasted_searches (None if gold passages are unknown), response_tokens, terms, pooled (`Recipe.pooled`),
    ended (counts); the measures of `episode_rows.summarise`; `episode_rows.counted`; by_hops and by_source:
    {value: {n, em, em_interval, f1, searches}}; with several sources, macro: the mean of their means
    (`comparison.macro`).
  """
  scored = [row for row in rows if row["ended"] != "failed"]
  metrics: dict[str, Any] = {"n": len(scored), "failed": len(rows) - len(scored)}
  metrics["unjudged"] = sum(row["outcome"] is None for row in scored)
  for name in WITH_INTERVAL:
    metrics |= _with_interval(name, scored)
  metrics["char_f1"] = stats.mean_known([row["char_f1"] for row in scored])
  for name in ("em_spaced", "f1_spaced"):
    if any(name in row for row in scored):
      metrics[name] = stats.mean_known([row[name] for row in scored])
  metrics["answered"] = stats.mean_known([row["prediction"] is not None for row in scored])
  silent = [row["unanswered"] for row in scored if row.get("unanswered")]
  with_gold = sum(one["has_gold"] for one in silent)
  metrics["unanswered"] = dict(replies=len(silent), with_gold=with_gold, seen=[one["reply"] for one in silent[:SHOWN]])
  metrics["searches"] = stats.mean_known([row["num_searches"] for row in scored])
  metrics["wasted_searches"] = stats.mean_known([row["wasted_searches"] for row in scored])
  metrics["response_tokens"] = stats.mean_known([row["response_tokens"] for row in scored])
  names = dict.fromkeys(name for row in scored for name in row["terms"])
  metrics["terms"] = {name: stats.mean_known([row["terms"].get(name) for row in scored]) for name in names}
  metrics["pooled"] = rewards.ratios([row.get("pooled", {}) for row in scored])
  ends = [row["ended"] for row in rows]
  metrics["ended"] = {why: ends.count(why) for why in sorted(set(ends))}
  metrics |= episode_rows.summarise(scored) | dict(counted=episode_rows.counted(scored))
  for group, key in (("by_hops", "hops"), ("by_source", "source")):
    values = sorted({row[key] for row in scored if row[key] not in (None, "")})
    metrics[group] = {str(value): _part([row for row in scored if row[key] == value]) for value in values}
  if len(metrics["by_source"]) > 1:
    metrics["macro"] = comparison.macro(comparison.by_set([row for row in scored if row["source"]]))
  return metrics


def flat(metrics: Mapping[str, Any], prefix: str = "evaluation/") -> dict[str, float]:
  """The numbers of `summarise` with one prefix, for a row of metrics.jsonl.

  Intervals, unknown values and the split by a single source are left out.
  """
  result = {}
  for name, value in metrics.items():
    if name == "by_source" and len(value) < 2:
      continue
    if isinstance(value, Mapping):
      result |= flat(value, f"{prefix}{name}/")
    elif isinstance(value, int | float):
      result[prefix + name] = value
  return result


def peak_memory() -> dict[str, int]:
  """Peak memory in bytes: "host" for this process, and for each platform the largest peak that a device reports."""
  unit = 1 if sys.platform == "darwin" else 1024
  result = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
  for device in jax.local_devices():
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    if peak is not None:
      result[device.platform] = max(result.get(device.platform, 0), peak)
  return result


def _part(rows) -> dict[str, Any]:
  return {
    "n": len(rows),
    **_with_interval("em", rows),
    "f1": stats.mean_known([row["f1"] for row in rows]),
    "searches": stats.mean_known([row["num_searches"] for row in rows]),
  }


def _with_interval(name: str, rows) -> dict[str, Any]:
  values = np.asarray([row[name] for row in rows if row[name] is not None], np.float64)
  if not values.size:
    return {name: None, f"{name}_interval": None}
  return {name: float(values.mean()), f"{name}_interval": list(stats.bootstrap_interval(values, seed=0))}
