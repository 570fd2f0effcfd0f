"""Columns about an episode: precision of the answer, repeated and successful searches, tokens, confidence."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa, searches, stats
from ragrl_jax.evaluation import answer_recall

MEANS = ("precision", "recall", "repeated_searches", "stale_searches", "found_answer", "found_gold", "confidence")


def row(example: structs.Example, episode: structs.Episode, said: str | None) -> dict[str, Any]:
  """Columns of a row of predictions; empty for a failed episode. `said` is its answer, or None.

  precision, recall: of the answer's words (`qa.overlap`); 0 without an answer.
  repeated_searches, stale_searches: see `core.metrics.searches`. Passages are compared by title and text.
  found_answer: whether a retrieved passage's text contains a gold (`qa.has_answer`). None without a search, or if the
  gold is yes or no.
  found_gold: the share of the gold documents (`answer_recall.gold_scores`) among the retrieved passages. None without a
  search, or if the documents are unknown.
  confidence: see `confidence`.
  """
  if episode.ended == "failed":
    return {}
  found = [passage for search in episode.searches for passage in search.found or ()]
  asked = [(s.query or "", [f"{p.title}\n{p.text}" for p in s.found or ()]) for s in episode.searches]
  held = any(qa.has_answer(passage.text, example.golds) for passage in found)
  by_gold = answer_recall.gold_scores(example, found, max(len(found), 1)) if asked else None
  words = qa.overlap(said or "", example.golds)
  return dict(
    precision=words.precision,
    recall=words.recall,
    repeated_searches=searches.repeated_searches(asked),
    stale_searches=searches.stale_searches(asked),
    found_answer=float(held) if asked and qa.searchable(example.golds) else None,
    found_gold=None if by_gold is None else by_gold["recall"],
    confidence=confidence(episode),
  )


def confidence(episode: structs.Episode) -> float | None:
  """exp of the mean log-probability of the tokens of the model's last turn, which holds the answer.

  None if log-probabilities are unknown, or if another generator answered.
  """
  last = next((s for s in reversed(episode.segments) if s.owner == structs.MODEL), None)
  if last is None or not last.logprobs or "answer" in episode.facts:
    return None
  return min(1.0, math.exp(math.fsum(last.logprobs) / len(last.logprobs)))


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
  """Means of the columns over the rows in which they are known, given_tokens, and the calibration of the answers.

  given_tokens: mean tokens of the prompt and of results per question. ece, brier: compare the confidence with the
  outcome (rounded to 0 or 1), over the rows with an answer that have both. Measures without a known value are left out.
  """
  found: dict[str, float | None] = {}
  for name in MEANS:
    if known := [row[name] for row in rows if row.get(name) is not None]:
      found[name] = sum(known) / len(known)
  if sized := [row["episode_tokens"] - row["response_tokens"] for row in rows if row.get("episode_tokens") is not None]:
    found["given_tokens"] = sum(sized) / len(sized)
  pairs = [
    (row["confidence"], float(row["outcome"] >= 0.5))
    for row in rows
    if row.get("confidence") is not None and row["outcome"] is not None and row["prediction"] is not None
  ]
  if pairs:
    said, right = zip(*pairs)
    found |= dict(ece=stats.calibration_error(said, right), brier=stats.brier(said, right))
  return found
