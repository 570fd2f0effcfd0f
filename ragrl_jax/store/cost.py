"""What a run has cost, from the rows of its metrics.jsonl: hours by phase, tokens, and a price."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = "cost/"
TOKENS = {"tokens": "trained_tokens", "engine/sampled_tokens": "sampled_tokens"}  # column of a row → what is summed


def of_rows(rows: Iterable[Mapping[str, Any]], price_per_hour: float = 0.0) -> dict[str, float]:
  """{"cost/hours", "cost/hours/PHASE", "cost/trained_tokens", "cost/sampled_tokens", "cost/price"}: what is known.

  Hours are those of the steps, evaluations and checkpoints, without starts.
  """
  hours, tokens = collections.Counter(), collections.Counter()
  for row in rows:
    for name, value in row.items():
      if name.startswith("seconds/") and name != "seconds/step" and value:
        hours[name.removeprefix("seconds/")] += value / 3600
      elif name in TOKENS and value:
        tokens[TOKENS[name]] += value
  found = {f"hours/{phase}": spent for phase, spent in hours.items()} | dict(tokens)
  if hours:
    found["hours"] = sum(hours.values())
    found |= {"price": found["hours"] * price_per_hour} if price_per_hour else {}
  return {PREFIX + name: float(value) for name, value in found.items()}
