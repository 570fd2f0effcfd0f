"""Classifies each search of a logged episode: gold, no gold, repeat or unknown."""

from collections.abc import Mapping
from typing import Any

NEW_GOLD, NO_GOLD, REPEAT, UNKNOWN = "gold", "no gold", "repeat", "unknown"


def verdicts(row: Mapping[str, Any]) -> list[str]:
  """One verdict for each executed search of an episode's row (`store.episodes.row`).

  "repeat": the query was asked before, ignoring case and spaces. "gold": it returned a gold passage not yet shown.
  "no gold": it returned none. "unknown": no repeat, and the gold passages are not known.
  """
  golds = row.get("gold_ids")
  asked, shown, found = set(), set(), []
  for segment in row["segments"]:
    if segment.get("found") is None:
      continue
    query = " ".join((segment.get("query") or "").lower().split())
    brought = {passage["id"] for passage in segment["found"]}
    new = brought & set(golds or ()) - shown
    found.append(REPEAT if query in asked else UNKNOWN if golds is None else NEW_GOLD if new else NO_GOLD)
    asked.add(query)
    shown |= brought
  return found


def wasted_searches(row: Mapping[str, Any]) -> int | None:
  """Number of searches that repeat a query or return no new gold passage; None if the gold passages are not known."""
  if row.get("gold_ids") is None:
    return None
  return sum(verdict != NEW_GOLD for verdict in verdicts(row))
