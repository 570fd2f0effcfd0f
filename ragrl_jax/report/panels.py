"""Which curves a page shows, of one run or of several, in which order; and where a run's time went."""

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl
MAX_POINTS = 1_200  # of a curve
MAX_BARS = 300  # of the time breakdown


@dataclasses.dataclass(frozen=True)
class Panel:
  """One chart.

  Attributes:
    series: line's label → column's name.
    zero_is_off: a line that never leaves 0 is of something switched off, and not drawn.
    searching: of searches, which a run without a retriever cannot make.
    featured: stands beside the summary.
  """

  title: str
  note: str
  unit: str
  series: Mapping[str, str]
  zero_is_off: bool = False
  searching: bool = False
  featured: bool = False


PANELS = (
  Panel("Reward", "Weighted sum of the terms, mean of episodes", "reward", {"reward": "reward"}),
  Panel("Outcome", "Share of training episodes that are right, unshaped", "share", {"outcome": "outcome"}),
  Panel(
    "Held-out exact match",
    "Greedy answers to questions never trained on, by the facts they need",
    "share",
    {
      "all": "evaluation/em",
      "1 hop": "evaluation/by_hops/1/em",
      **{f"{hops} hops": f"evaluation/by_hops/{hops}/em" for hops in (2, 3, 4)},
      "development": "development/em",
    },
    featured=True,
  ),
  Panel(
    "Searches per question",
    "Executed searches an episode",
    "searches",
    {"training": "searches", "held-out": "evaluation/searches", "wasted": "evaluation/wasted_searches"},
    searching=True,
  ),
  Panel("Response length", "Tokens the model wrote in an episode", "tokens", {"tokens": "response_tokens"}),
  Panel(
    "Groups without spread",
    "All samples earned the same: nothing to learn from",
    "share",
    {"groups": "zero_spread_groups"},
  ),
  Panel("Entropy", "At trained tokens; near 0 nothing new is tried", "nats", {"entropy": "entropy"}),
  Panel(
    "KL",
    "To the reference, and over the updates of a step",
    "nats",
    {"reference": "kl", "update": "old_kl"},
    zero_is_off=True,
  ),
  Panel("Loss", "What is minimised; in RL its size says little", "loss", {"loss": "loss"}),
  Panel("Gradient norm", "Before clipping", "norm", {"norm": "grad_norm"}),
  Panel(
    "Clip fraction",
    "Trained tokens whose ratio left the clip range",
    "share",
    {"clipped": "clip_fraction", "dual": "dual_clip_fraction"},
    zero_is_off=True,
  ),
  Panel(
    "Sampler mismatch", "|log-probability as sampled − as scored|", "nats", {"mismatch": "mismatch"}, zero_is_off=True
  ),
  Panel("Throughput", "Tokens of the step's episodes over its seconds", "tokens/s", {"tokens/s": "tokens_per_second"}),
)
# Parts of a step in the order they are stacked, so that each keeps its colour from run to run.
PARTS = ("rollout", "retrieval_wait", "judge_wait", "scoring", "update", "weights", "other", "evaluate", "checkpoint")
TERM, TIME, ENDED = re.compile(r"term/(.+)"), re.compile(r"seconds/(.+)"), re.compile(r"((?:evaluation/)?ended/).+")
_NOT_CURVES = {"step", "time"}


def curves(runs: Mapping[str, Rows], *, searching: bool = True) -> dict[str, Any]:
  """What the page draws: {"runs", "panels", "more"}.

  `runs` are {"name", "steps", "columns": {name: values}, "joined", "every"}. A run of more than MAX_POINTS rows is
  averaged in stretches of `every` rows. None in a column is a gap of its curve; in a `joined` one, which is measured
  now and then, it is a step between two measurements. `panels` are the known charts that have data, with one for each
  reward term behind the reward's; `more` the columns no chart knows. Of several runs, a chart has one column and a line
  for each run.

  Args:
    runs: the rows of each run by its name.
    searching: whether any run has something to search in: without, columns of searches that are 0 throughout are left
      out.
  """
  columns = [_columns(name, rows) for name, rows in runs.items()]
  names = {name for run in columns for name in run["columns"]}
  flat = {name for name in names if not any(any(run["columns"].get(name, ())) for run in columns)}
  panels, taken = [], set()
  for panel in PANELS:
    absent = flat if panel.zero_is_off or (panel.searching and not searching) else set()
    series = {label: name for label, name in panel.series.items() if name in names - absent}
    taken |= {*series.values()} | ({*panel.series.values()} if panel.searching else set())
    panels += _charts(panel, series, columns)
    if panel.title == "Reward":
      terms = {TERM.fullmatch(name)[1]: name for name in sorted(names) if TERM.fullmatch(name)}
      taken |= {*terms.values()}
      for term, name in terms.items():
        panels += _charts(Panel(f"Term: {term}", "Unweighted, mean of episodes", "value", {}), {term: name}, columns)
  more = [
    chart
    for name in sorted(names - taken)
    if not TIME.fullmatch(name)
    for chart in _charts(Panel(name, "", "", {}), {name: name}, columns)
  ]
  drawn = {line["column"] for chart in panels + more for line in chart["series"]}
  for run in columns:
    run["columns"] = {name: values for name, values in run["columns"].items() if name in drawn}
    run["joined"] = sorted(drawn & {*run["joined"]})
  return {"runs": columns, "panels": panels, "more": more}


def _charts(panel: Panel, series: Mapping[str, str], runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """One chart with a line for each label; of several runs a chart for each label, with a line for each run."""
  chart = lambda title, lines: {
    "title": title,
    "note": panel.note,
    "unit": panel.unit,
    "series": lines,
    "featured": panel.featured,
  }
  if len(runs) == 1:
    lines = [{"label": label, "column": name, "run": 0} for label, name in series.items()]
    return [chart(panel.title, lines)] if lines else []
  title = lambda label: panel.title if len(series) == 1 else f"{panel.title}: {label}"
  return [
    chart(
      title(label),
      [
        {"label": run["name"], "column": name, "run": place} for place, run in enumerate(runs) if name in run["columns"]
      ],
    )
    for label, name in series.items()
  ]


def _columns(name: str, rows: Rows) -> dict[str, Any]:
  """One run's numbers, thinned."""
  rows = _without_holes(rows)
  places: dict[str, list[int]] = {}
  numbers = set()
  for place, row in enumerate(rows):
    for column, value in row.items():
      places.setdefault(column, []).append(place)
      if isinstance(value, int | float):
        numbers.add(column)
  numbers -= _NOT_CURVES
  every = -(-len(rows) // MAX_POINTS) if rows else 1
  stretches = [rows[i : i + every] for i in range(0, len(rows), every)]
  return {
    "name": name,
    "every": every,
    "steps": [stretch[-1]["step"] for stretch in stretches],
    "joined": [column for column in numbers if len(places[column]) <= places[column][-1] - places[column][0]],
    "columns": {
      column: [_mean(row.get(column) for row in stretch) for stretch in stretches] for column in sorted(numbers)
    },
  }


def _without_holes(rows: Rows) -> list[Mapping[str, Any]]:
  """The rows with a 0 for each way of ending that no episode of a step took: only those taken are logged."""
  ways = {match[0]: match[1] for row in rows for name in row if (match := ENDED.fullmatch(name))}
  known = [{match[1] for name in row if (match := ENDED.fullmatch(name))} for row in rows]
  return [{way: 0.0 for way, kind in ways.items() if kind in kinds} | row for row, kinds in zip(rows, known)]


def breakdown(rows: Rows) -> dict[str, Any] | None:
  """Seconds of each part: {"steps", "parts": [{"name", "seconds", "median", "total", "share"}], "bottleneck", …}.

  Columns are `seconds/<part>`; what `seconds/step` leaves unexplained becomes the part "other". Totals and shares are
  of the whole run, evaluations and checkpoints included where they were timed. Medians are over all steps but the
  first, which compiles. The bottleneck is the part with the largest median. None without such columns.
  """
  rows = [row for row in rows if any(TIME.fullmatch(name) for name in row)]
  names = list(dict.fromkeys(name for row in rows for name in row if TIME.fullmatch(name)))
  whole = [name for name in names if TIME.fullmatch(name)[1] == "step"]
  parts = {TIME.fullmatch(name)[1]: [row.get(name) or 0.0 for row in rows] for name in names if name not in whole}
  if not parts:
    return None
  if whole:
    known = [sum(part[i] for part in parts.values()) for i in range(len(rows))]
    left = [max(0.0, (row.get(whole[0]) or 0.0) - seconds) for row, seconds in zip(rows, known)]
    if sum(left) > 0.01 * sum(row.get(whole[0]) or 0.0 for row in rows):
      parts["other"] = left
  order = {name: place for place, name in enumerate(PARTS)}
  parts = {name: parts[name] for name in sorted(parts, key=lambda n: order.get(n, len(order))) if any(parts[name])}
  if not parts:
    return None
  steps = [place for place, row in enumerate(rows) if row["step"] > 0] or [*range(len(rows))]
  medians = {name: statistics.median([seconds[i] for i in steps[1:] or steps]) for name, seconds in parts.items()}
  total = sum(map(sum, parts.values()))
  every = -(-len(rows) // MAX_BARS)
  return {
    "steps": [row["step"] for row in rows][every - 1 :: every],
    "parts": [
      {
        "name": name.replace("_", " "),
        "median": _short(medians[name]),
        "total": _short(sum(seconds)),
        "share": _short(sum(seconds) / total),
        "seconds": [_mean(seconds[i : i + every]) for i in range(0, len(seconds) - len(seconds) % every, every)],
      }
      for name, seconds in parts.items()
    ],
    "median": _short(sum(medians.values())),
    "total": _short(total),
    "every": every,
    "bottleneck": max(medians, key=medians.get).replace("_", " "),
  }


def seconds(rows: Rows) -> float | None:
  """Seconds that the parts of all rows took together; None if none was timed."""
  taken = [
    value
    for row in rows
    for name, value in row.items()
    if TIME.fullmatch(name) and name != "seconds/step" and value is not None
  ]
  return sum(taken) if taken else None


def _mean(values) -> float | None:
  known = [value for value in values if isinstance(value, int | float)]
  return _short(sum(known) / len(known)) if known else None


def _short(value: float) -> float:
  """Five digits: what a curve can show."""
  return float(f"{value:.5g}")
