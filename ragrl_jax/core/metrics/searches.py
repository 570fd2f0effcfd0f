"""Classifies each search of an episode: gold, no gold, repeat or unknown."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

NEW_GOLD, NO_GOLD, REPEAT, UNKNOWN = "gold", "no gold", "repeat", "unknown"

Searches = Sequence[tuple[str, Collection[str]]]  # (query, ids of the passages it returned), in order of time


def in_row(row: Mapping[str, Any]) -> tuple[Searches, Collection[str] | None]:
  """(its executed searches, ids of the gold passages) of an episode's row (`store.episodes.row`)."""
  found = [segment for segment in row["segments"] if segment.get("found") is not None]
  return [(s.get("query") or "", [passage["id"] for passage in s["found"]]) for s in found], row.get("gold_ids")


def verdicts(searches: Searches, golds: Collection[str] | None) -> list[str]:
  """One verdict for each executed search.

  "repeat": the query was asked before, ignoring case and spaces. "gold": it returned a gold passage not yet shown.
  "no gold": it returned none. "unknown": no repeat, and the gold passages are not known (None).
  """
  asked, shown, found = set(), set(), []
  for query, brought in searches:
    query = " ".join(query.lower().split())
    new = set(brought) & set(golds or ()) - shown
    found.append(REPEAT if query in asked else UNKNOWN if golds is None else NEW_GOLD if new else NO_GOLD)
    asked.add(query)
    shown.update(brought)
  return found


def wasted_searches(searches: Searches, golds: Collection[str] | None) -> int | None:
  """Number of searches that repeat a query or return no new gold passage; None if the gold passages are not known."""
  return None if golds is None else sum(verdict != NEW_GOLD for verdict in verdicts(searches, golds))
