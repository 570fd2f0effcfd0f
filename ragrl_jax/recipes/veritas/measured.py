"""Measures the faithfulness of logged episodes: a judge is asked about their pairs, set by set (VERITAS, Table 1)."""

import collections
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ragrl_jax.core.rewards import faithful
from ragrl_jax.judging import judge_api
from ragrl_jax.recipes.steps import steps
from ragrl_jax.store import episodes as episodes_lib

Sets = Mapping[str, Mapping[str, Mapping[str, Any]]]


def measured(
  rows: Iterable[Mapping[str, Any]],
  judges: Mapping[str, judge_api.Judge],
  *,
  progress: Callable[[str, int, int], None] = lambda term, done, of: None,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Asks the judges about every distinct pair of a system's episodes.

  Args:
    rows: rows of logged episodes (`store.episodes.read_folder`). Failed episodes are left out.
    progress: called with (term, number of judged pairs, number of all pairs).

  Returns:
    {set: {term: measures}}. The measures are "faithful": mean verdict over the pairs (None without pairs, or if no
    verdict came); "pairs": their number, and "incomplete": those of them that lack a side, and count 0; "judged" and
    "unjudged": pairs with and without a verdict; "left_out": episodes with a pair without a verdict, which are in no
    mean; "without": episodes without a pair, which are in no mean, because they are not unfaithful; "verdicts": {hash
    of a complete pair: its verdict, or None}; "questions": {id: (sum of its verdicts, number of its pairs)}, without
    questions that were played several times.

  Raises:
    JudgeFailed: see `judge_api.verdicts`.
  """
  found: dict[str, list[tuple[str, dict[str, tuple[faithful.Pair, ...]]]]] = {}  # set → (id, pairs by term) of episodes
  for row in rows:
    if row["ended"] != "failed":
      its = steps(episodes_lib.episode_of(row).turns, row["facts"].get("action", "last"))
      found.setdefault(row["source"] or "", []).append((row["id"], {term: getattr(its, term) for term in judges}))
  verdicts = {term: _judge(term, judge, found, progress) for term, judge in judges.items()}
  return {
    name: {term: _pooled([(id, pairs[term]) for id, pairs in of_set], verdicts[term]) for term in judges}
    for name, of_set in sorted(found.items())
  }


def _judge(term: str, judge: judge_api.Judge, found, progress) -> dict[tuple[str, str], float | None]:
  pairs = dict.fromkeys(pair for of_set in found.values() for _, of in of_set for pair in faithful.whole(of[term]))
  done = lambda number: progress(term, number, len(pairs))
  return dict(zip(pairs, judge_api.verdicts(judge, list(pairs), progress=done) if pairs else (), strict=True))


def _pooled(played, verdicts) -> dict[str, Any]:
  ids, episodes = zip(*played)
  complete = [faithful.whole(pairs) for pairs in episodes]
  verdicts_of = [[verdicts[pair] for pair in pairs] for pairs in complete]
  numbers = [faithful.pooled(pairs, its) for pairs, its in zip(episodes, verdicts_of)]
  times = collections.Counter(ids)
  value, number = sum(value for value, _ in numbers), sum(number for _, number in numbers)
  judged, unjudged = sum(len(its) - its.count(None) for its in verdicts_of), sum(its.count(None) for its in verdicts_of)
  is_known = number and (judged or not unjudged)  # without any verdict, the incomplete pairs alone would be a mean of 0
  return dict(
    faithful=value / number if is_known else None,
    pairs=number,
    incomplete=sum(len(pairs) - len(its) for pairs, its in zip(episodes, verdicts_of) if None not in its),
    unjudged=unjudged,
    judged=judged,
    left_out=sum(None in its for its in verdicts_of),
    without=sum(not pairs for pairs in episodes),
    verdicts={_hash(pair): verdicts[pair] for pairs in complete for pair in pairs},
    questions={id: of for id, of in zip(ids, numbers) if is_known and times[id] == 1},
  )


def _hash(pair: tuple[str, str]) -> str:
  return hashlib.sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def macro(sets: Sets) -> dict[str, float | None]:
  """{term: mean of the sets' values} with equal weights; None if a set has no pair."""
  names = next(iter(sets.values()), ())
  values = {name: [terms[name]["faithful"] for terms in sets.values()] for name in names}
  return {name: None if None in some else sum(some) / len(some) for name, some in values.items()}
