"""Which curves a run's page shows, in which order, and where its time went."""

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MAX_POINTS = 1_200


@dataclasses.dataclass(frozen=True)
class Panel:
  """One chart. `series` maps a line's label to the pattern of its column's name; the first match is drawn."""

  title: str
  note: str
  unit: str
  series: Mapping[str, str]


PANELS = (
  Panel("Reward", "Weighted sum of the terms, mean over scored episodes", "reward", {"reward": r"reward(/mean)?"}),
  Panel("Outcome", "Share of training episodes that are right, unshaped", "share", {"outcome": r"outcome(/mean)?"}),
  Panel("Held-out exact match", "Greedy answers to questions never trained on", "share",
        {"EM": r"eval(uate)?/em", "F1": r"eval(uate)?/f1"}),
  Panel("Searches per question", "Executed searches an episode", "searches", {
    "training": r"(num_)?searches(/mean)?", "held-out": r"eval(uate)?/(num_)?searches"}),
  Panel("Response length", "Tokens the model wrote in an episode", "tokens", {"tokens": r"(response_)?length(/mean)?"}),
  Panel("Entropy", "Of the policy at sampled tokens; near zero nothing new is tried", "nats",
        {"entropy": r"entropy(/mean)?"}),
  Panel("KL to the reference", "How far the policy has moved from where it started", "nats",
        {"KL": r"(ref_)?kl(/mean)?"}),
  Panel("Gradient norm", "Before clipping", "norm", {"norm": r"grad_norm"}),
  Panel("Clip fraction", "Trained tokens whose ratio left the trust region", "share", {
    "clipped": r"clip(ped)?_(fraction|share)", "above": r"clip(ped)?_high(_fraction|_share)?",
    "below": r"clip(ped)?_low(_fraction|_share)?", "dual": r"(dual_clip|clip_dual)(ped)?(_fraction|_share)?"}),
  Panel("Sampler mismatch", "|log-probability when sampled − when scored|; above 0.01 look for a bug", "nats", {
    "mean": r"(sampler_)?(mismatch|gap)(/mean)?", "max": r"(sampler_)?(mismatch|gap)[/_]max"}),
  Panel("Throughput", "Tokens sampled and trained, over the whole step", "tokens/s", {
    "tokens/s": r"tokens_per_s(econd)?"}),
)
TERM, TIME = re.compile(r"terms?/(.+)"), re.compile(r"(?:seconds|time)/(.+)")
_NOT_CURVES = {"step", "time"}


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """What the page draws: {"steps", "columns": {name: values}, "panels", "more", "every"}.

  `panels` are the known charts that have data, one for each reward term behind the reward's; `more` the columns no
  chart knows. A run of more than MAX_POINTS rows is averaged in stretches of `every` rows.
  """
  names = {name for row in rows for name, value in row.items() if isinstance(value, int | float)} - _NOT_CURVES
  every = -(-len(rows) // MAX_POINTS) if rows else 1
  stretches = [rows[i:i + every] for i in range(0, len(rows), every)]
  panels, taken = [], set()
  for panel in PANELS:
    series = []
    for label, pattern in panel.series.items():
      if match := min((n for n in names - taken if re.fullmatch(pattern, n)), default=None):
        series.append({"label": label, "column": match})
        taken.add(match)
    if series:
      panels.append({"title": panel.title, "note": panel.note, "unit": panel.unit, "series": series})
    if panel.title == "Reward":
      for name in sorted(n for n in names if TERM.fullmatch(n)):
        term = TERM.fullmatch(name)[1]
        panels.append({"title": f"Term: {term}", "note": "Unweighted, mean over scored episodes", "unit": "value",
                       "series": [{"label": term, "column": name}]})
        taken.add(name)
  rest = sorted(name for name in names - taken if not TIME.fullmatch(name))
  more = [{"title": name, "note": "", "unit": "", "series": [{"label": name, "column": name}]} for name in rest]
  drawn = sorted(taken | set(rest))
  return {
    "steps": [stretch[-1]["step"] for stretch in stretches], "every": every, "panels": panels, "more": more,
    "columns": {name: [_mean(row.get(name) for row in stretch) for stretch in stretches] for name in drawn},
  }


def breakdown(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
  """Seconds of each part of a step: {"steps", "parts": [{"name", "seconds", "median", "share"}], "bottleneck"}.

  Columns are `seconds/<part>`; what `seconds/total` leaves unexplained becomes the part "other". Medians are over all
  steps but the first, which compiles. The bottleneck is the part with the largest median. None without such columns.
  """
  rows = [row for row in rows if any(TIME.fullmatch(name) for name in row)]
  names = list(dict.fromkeys(name for row in rows for name in row if TIME.fullmatch(name)))
  total = [name for name in names if TIME.fullmatch(name)[1] in ("total", "step")]
  parts = {TIME.fullmatch(name)[1]: [row.get(name) or 0.0 for row in rows] for name in names if name not in total}
  if not parts:
    return None
  if total:
    left = [max(0.0, (row.get(total[0]) or 0.0) - sum(part[i] for part in parts.values())) for i, row in enumerate(rows)]
    if sum(left) > 0.01 * sum(row.get(total[0]) or 0.0 for row in rows):
      parts["other"] = left
  parts = {name: seconds for name, seconds in parts.items() if any(seconds)}
  if not parts:
    return None
  medians = {name: statistics.median(seconds[1:] or seconds) for name, seconds in parts.items()}
  whole = sum(medians.values()) or 1.0
  every = -(-len(rows) // MAX_POINTS)
  return {
    "steps": [row["step"] for row in rows][every - 1::every] if every > 1 else [row["step"] for row in rows],
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
