"""Classifies each search of an episode: gold, no gold, repeat or unknown."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ragrl_jax.core.rewards import queries
from ragrl_jax.core.text.normalize import normalize

NEW_GOLD, NO_GOLD, REPEAT, UNKNOWN = "gold", "no gold", "repeat", "unknown"

STYLE = "squad"  # in which queries are compared for their content
Searches = Sequence[tuple[str, Collection[str]]]  # (query, ids of the passages it returned), in order of time


def in_row(row: Mapping[str, Any]) -> tuple[Searches, Collection[str] | None]:
  """(its executed searches, ids of the gold passages) of an episode's row (`store.episodes.row`)."""
  searches = [segment for segment in row["segments"] if segment.get("found") is not None]
  return [(s.get("query") or "", [passage["id"] for passage in s["found"]]) for s in searches], row.get("gold_ids")


def verdicts(searches: Searches, golds: Collection[str] | None) -> list[str]:
  """One verdict for each executed search.

  "repeat": the query was asked before (`queries.plain`). "gold": it returned a gold passage not yet shown.
  "no gold": it returned none. "unknown": no repeat, and the gold passages are not known (None).
  """
  past_queries, past_ids, result = set(), set(), []
  for query, ids in searches:
    query = queries.plain(query)
    new = set(ids) & set(golds or ()) - past_ids
    result.append(REPEAT if query in past_queries else UNKNOWN if golds is None else NEW_GOLD if new else NO_GOLD)
    past_queries.add(query)
    past_ids.update(ids)
  return result


def repeated_searches(searches: Searches) -> int:
  """Number of searches whose query has the same words as an earlier one, in any order, without articles and marks."""
  word_sets = [frozenset(normalize(queries.plain(query), STYLE).split()) for query, _ in searches]
  return len(word_sets) - len(set(word_sets))


def stale_searches(searches: Searches) -> int:
  """Number of searches that returned only passages of earlier searches, and at least one passage.

  Unlike `wasted_searches`, it needs no gold passages.
  """
  past_ids: set[str] = set()
  stale = 0
  for _, ids in searches:
    stale += bool(ids) and past_ids.issuperset(ids)
    past_ids.update(ids)
  return stale


def wasted_searches(searches: Searches, golds: Collection[str] | None) -> int | None:
  """Number of searches that repeat a query or return no new gold passage; None if the gold passages are not known."""
  return None if golds is None else sum(verdict != NEW_GOLD for verdict in verdicts(searches, golds))
