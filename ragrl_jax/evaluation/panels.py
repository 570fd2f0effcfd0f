"""Which curves a run's page shows, in which order, and where its time went."""

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MAX_POINTS = 1_200  # of a curve
MAX_BARS = 300       # of the time breakdown


@dataclasses.dataclass(frozen=True)
class Panel:
  """One chart.

  Attributes:
    series: line's label → column's name.
    zero_is_off: a line that never leaves 0 is of something switched off, and not drawn.
    featured: stands beside the summary.
  """

  title: str
  note: str
  unit: str
  series: Mapping[str, str]
  zero_is_off: bool = False
  featured: bool = False


PANELS = (
  Panel("Reward", "Weighted sum of the terms, mean of episodes", "reward", {"reward": "reward"}),
  Panel("Outcome", "Share of training episodes that are right, unshaped", "share", {"outcome": "outcome"}),
  Panel("Held-out exact match", "Greedy answers to questions never trained on, by the facts they need", "share", {
    "all": "evaluation/em", "1 hop": "evaluation/by_hops/1/em",
    **{f"{hops} hops": f"evaluation/by_hops/{hops}/em" for hops in (2, 3, 4)}}, featured=True),
  Panel("Searches per question", "Executed searches an episode", "searches",
        {"training": "searches", "held-out": "evaluation/searches", "wasted": "evaluation/wasted_searches"}),
  Panel("Response length", "Tokens the model wrote in an episode", "tokens", {"tokens": "response_tokens"}),
  Panel("Groups without spread", "All samples earned the same: nothing to learn from", "share",
        {"groups": "zero_spread_groups"}),
  Panel("Entropy", "At trained tokens; near 0 nothing new is tried", "nats", {"entropy": "entropy"}),
  Panel("KL", "To the reference, and over the updates of a step", "nats",
        {"reference": "kl", "update": "old_kl"}, zero_is_off=True),
  Panel("Loss", "What is minimised; in RL its size says little", "loss", {"loss": "loss"}),
  Panel("Gradient norm", "Before clipping", "norm", {"norm": "grad_norm"}),
  Panel("Clip fraction", "Trained tokens whose ratio left the clip range", "share",
        {"clipped": "clip_fraction", "dual": "dual_clip_fraction"}, zero_is_off=True),
  Panel("Sampler mismatch", "|log-probability as sampled − as scored|", "nats",
        {"mismatch": "mismatch"}, zero_is_off=True),
  Panel("Throughput", "Tokens of the step's episodes over its seconds", "tokens/s",
        {"tokens/s": "tokens_per_second"}),
)
# Parts of a step in the order they are stacked, so that each keeps its colour from run to run.
PARTS = ("rollout", "retrieval_wait", "judge_wait", "scoring", "update", "weights", "other")
TERM, TIME = re.compile(r"term/(.+)"), re.compile(r"seconds/(.+)")
_NOT_CURVES = {"step", "time"}


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """What the page draws: {"steps", "columns": {name: values}, "panels", "more", "every"}.

  `panels` are the known charts that have data, one for each reward term behind the reward's; `more` the columns no
  chart knows. A run of more than MAX_POINTS rows is averaged in stretches of `every` rows.
  """
  names = {name for row in rows for name, value in row.items() if isinstance(value, int | float)} - _NOT_CURVES
  every = -(-len(rows) // MAX_POINTS) if rows else 1
  stretches = [rows[i:i + every] for i in range(0, len(rows), every)]
  flat = {name for name in names if not any(row.get(name) for row in rows)}
  panels, taken = [], set()
  for panel in PANELS:
    known = names - flat if panel.zero_is_off else names
    series = [{"label": label, "column": name} for label, name in panel.series.items() if name in known]
    taken |= {line["column"] for line in series}
    if series:
      panels.append(_panel(panel.title, panel.note, panel.unit, series, featured=panel.featured))
    if panel.title == "Reward":
      for name in sorted(n for n in names if TERM.fullmatch(n)):
        term = TERM.fullmatch(name)[1]
        lines = [{"label": term, "column": name}]
        panels.append(_panel(f"Term: {term}", "Unweighted, mean of episodes", "value", lines))
        taken.add(name)
  rest = sorted(name for name in names - taken if not TIME.fullmatch(name))
  more = [_panel(name, "", "", [{"label": name, "column": name}]) for name in rest]
  drawn = sorted(taken | set(rest))
  return {
    "steps": [stretch[-1]["step"] for stretch in stretches], "every": every, "panels": panels, "more": more,
    "columns": {name: [_mean(row.get(name) for row in stretch) for stretch in stretches] for name in drawn},
  }


def _panel(title: str, note: str, unit: str, series: list[dict[str, str]], featured: bool = False) -> dict[str, Any]:
  return {"title": title, "note": note, "unit": unit, "series": series, "featured": featured}


def breakdown(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
  """Seconds of each part of a step: {"steps", "parts": [{"name", "seconds", "median", "share"}], "bottleneck"}.

  Columns are `seconds/<part>`; what `seconds/step` leaves unexplained becomes the part "other". Medians are over all
  steps but the first, which compiles. The bottleneck is the part with the largest median. None without such columns.
  """
  rows = [row for row in rows if any(TIME.fullmatch(name) for name in row)]
  names = list(dict.fromkeys(name for row in rows for name in row if TIME.fullmatch(name)))
  total = [name for name in names if TIME.fullmatch(name)[1] == "step"]
  parts = {TIME.fullmatch(name)[1]: [row.get(name) or 0.0 for row in rows] for name in names if name not in total}
  if not parts:
    return None
  if total:
    known = [sum(part[i] for part in parts.values()) for i in range(len(rows))]
    left = [max(0.0, (row.get(total[0]) or 0.0) - seconds) for row, seconds in zip(rows, known)]
    if sum(left) > 0.01 * sum(row.get(total[0]) or 0.0 for row in rows):
      parts["other"] = left
  order = {name: place for place, name in enumerate(PARTS)}
  parts = {name: parts[name] for name in sorted(parts, key=lambda n: order.get(n, len(order))) if any(parts[name])}
  if not parts:
    return None
  medians = {name: statistics.median(seconds[1:] or seconds) for name, seconds in parts.items()}
  whole = sum(medians.values()) or 1.0
  every = -(-len(rows) // MAX_BARS)
  return {
    "steps": [row["step"] for row in rows][every - 1::every],
    "parts": [{"name": name.replace("_", " "), "median": _short(medians[name]), "share": _short(medians[name] / whole),
               "seconds": [_mean(seconds[i:i + every]) for i in range(0, len(seconds) - len(seconds) % every, every)]}
              for name, seconds in parts.items()],
    "median": _short(whole), "bottleneck": max(medians, key=medians.get).replace("_", " "),
  }


def _mean(values) -> float | None:
  known = [value for value in values if isinstance(value, int | float)]
  return _short(sum(known) / len(known)) if known else None


def _short(value: float) -> float:
  """Five digits: what a curve can show."""
  return float(f"{value:.5g}")
