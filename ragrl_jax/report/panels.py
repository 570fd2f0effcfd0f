"""The charts of a report, for one run or several, and the breakdown of a run's time."""

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.run import detectors
from ragrl_jax.store import metrics

Rows = Sequence[Mapping[str, Any]]  # rows of metrics.jsonl
MAX_POINTS = 1_200  # points of a curve
MAX_BARS = 300  # bars of the time breakdown


@dataclasses.dataclass(frozen=True)
class Panel:
  """One chart.

  Attributes:
    series: label of a line → name of its column.
    zero_is_off: a column that is 0 in every row belongs to a switched-off feature and is not drawn.
    searching: the chart is about searches, and hidden for runs without a retriever.
    featured: the chart is shown next to the summary.
  """

  title: str
  note: str
  unit: str
  series: Mapping[str, str]
  zero_is_off: bool = False
  searching: bool = False
  featured: bool = False


_of = lambda name: {kind: f"{name}/{kind}" for kind in ("thought", "query", "answer")}
PANELS = (
  Panel("Reward", "Weighted sum of the terms, mean of episodes", "reward", {"reward": "reward"}),
  Panel("Outcome", "Share of training episodes that are right, unshaped", "share", {"outcome": "outcome"}),
  Panel("Held-out exact match", "Greedy answers to questions never trained on", "share",
        {"all": "evaluation/em", "1 hop": "evaluation/by_hops/1/em",
         **{f"{hops} hops": f"evaluation/by_hops/{hops}/em" for hops in (2, 3, 4)}, "development": "development/em"},
        featured=True),
  Panel("Searches per question", "Executed searches an episode", "searches",
        {"training": "searches", "held-out": "evaluation/searches", "wasted": "evaluation/wasted_searches"},
        searching=True),
  Panel("Response length", "Tokens the model wrote in an episode", "tokens",
        {"all": "response_tokens"} | _of("tokens")),
  Panel("Groups without spread", "All samples earned the same: nothing to learn from", "share",
        {"groups": "zero_spread_groups"}),
  Panel("Entropy", "At trained tokens; near 0 nothing new is tried", "nats", {"all": "entropy"} | _of("entropy")),
  Panel("Thought", "Shares that rise while it dies", "share",
        {"repeated words": "repeats/within", "words of earlier turns": "repeats/between", "broken tags": "broken_tags",
         "repeated queries": "queries/repeated", "queries shared by questions": "queries/shared",
         "less likely though right": "fallen_tokens"},
        zero_is_off=True),
  Panel("KL", "To the reference, and over the updates of a step", "nats", {"reference": "kl", "update": "old_kl"},
        zero_is_off=True),
  Panel("Loss", "The minimised value; in RL its size is not informative", "loss", {"loss": "loss"}),
  Panel("Gradient norm", "Before clipping", "norm", {"norm": "grad_norm"}),
  Panel("Clip fraction", "Trained tokens at which the clip acts", "share",
        {"clipped": "clip_fraction", "dual": "dual_clip_fraction"}, zero_is_off=True),
  Panel("Sampler mismatch", "|log-probability as sampled − as scored|", "nats", {"mismatch": "mismatch"},
        zero_is_off=True),
  Panel("Throughput", "Tokens of the step's episodes over its seconds", "tokens/s", {"tokens/s": "tokens_per_second"}),
)  # fmt: skip
EVALUATED, GROUPED = ("evaluation", "development"), ("by_hops", "by_source")
FILTERED = ("Reward", "Outcome", "Groups without spread")  # charts that dynamic sampling changes
TRICKS = Panel("Unearned reward", "Replies with a trick that the recipe's README names", "share", {})
# Parts of a step in stacking order. A part's place is its colour, the same in every run; others share the next one.
PARTS = ("rollout", "retrieval_wait", "judge_wait", "scoring", "update", "weights", "other", "evaluate", "checkpoint")
OF_HOST = ("metrics", "writing", "handing_over")  # in "other" unless they take a hundredth of the run
TERM, TRICK = re.compile(r"term/(.+)"), re.compile(r"unearned/(.+)")
TIME, ENDED = re.compile(r"seconds/(.+)"), re.compile(r"((?:evaluation/)?ended/).+")
_NOT_CURVES = {"step", "time"}


def curves(runs: Mapping[str, Rows], *, searching: bool = True) -> dict[str, Any]:
  """The data of the page's charts: {"runs", "panels", "more", "constant"}.

  `runs` are {"name", "steps", "rollbacks", "columns": {name: values}, "joined", "every"}. With more than MAX_POINTS
  rows, each point is a mean over `every` rows. None in a column is a gap of its curve. In a `joined` column, which is
  measured at some steps only, None lies between two measurements and the curve is connected. `panels` are the charts of
  PANELS that have data, after the reward's one for each term that differs from it, and one for the recipe's known
  tricks. `more` are charts of all other columns, {"group", "charts"}, and `constant` those that never change, {"name",
  "value"}. With several runs, a chart shows one column, with a line for each run.

  Args:
    searching: whether any run has a retriever. Without one, search columns that are 0 in every row are left out.
  """
  columns = [_columns(name, rows) for name, rows in runs.items()]
  names = {name for run in columns for name in run["columns"]}
  names -= _repeated(names)
  values = {name: [run["columns"].get(name) for run in columns] for name in names}
  flat = {name for name in names if not any(any(column or ()) for column in values[name])}
  matched = lambda pattern: {match[1]: name for name in sorted(names) if (match := pattern.fullmatch(name))}
  terms, tricks = matched(TERM), matched(TRICK)
  single_terms = {name for name in terms.values() if values[name] == values.get("reward")}  # the reward is this term
  panels, used = [], {*terms.values(), *tricks.values()}
  for panel in PANELS:
    absent = flat if panel.zero_is_off or (panel.searching and not searching) else set()
    series = {label: name for label, name in panel.series.items() if name in names - absent}
    used |= {*series.values()} | ({*panel.series.values()} if panel.searching else set())
    if panel.title == "Outcome" and single_terms and values.get("outcome") == values["reward"]:
      continue
    if panel.title == "Reward" and single_terms:
      panel = dataclasses.replace(panel, note=_alone(terms, single_terms, values))
    if panel.title in FILTERED and "groups/metric" in names:
      panel = dataclasses.replace(panel, note=f"{panel.note}; of the groups that the filter kept (all: groups/metric)")
    panels += _charts(panel, series, columns)
    if panel.title == "Reward":
      for term, name in terms.items():
        if name not in single_terms:
          panels += _charts(Panel(f"Term: {term}", "Unweighted, mean of episodes", "value", {}), {term: name}, columns)
      panels += _charts(TRICKS, {trick: name for trick, name in tricks.items() if name not in flat}, columns)
  costs = {name for name in names if name.startswith(metrics.COST)}
  others = sorted(name for name in names - used - costs if not TIME.fullmatch(name))
  constant = {name: known.pop() for name in others if len(known := _known(values[name])) == 1}
  groups: dict[str, list] = {}
  for name in others:
    if name not in constant:
      group = name.partition("/")[0] if "/" in name else ""
      groups.setdefault(group, []).extend(_charts(Panel(name, "", "", {}), {name: name}, columns))
  more = [{"group": group, "charts": groups[group]} for group in sorted(groups)]
  drawn = {line["column"] for chart in sum((part["charts"] for part in more), panels) for line in chart["series"]}
  for run in columns:
    run["columns"] = {name: values for name, values in run["columns"].items() if name in drawn}
    run["joined"] = sorted(drawn & {*run["joined"]})
  constants = [{"name": name, "value": value} for name, value in constant.items()]
  return {"runs": columns, "panels": panels, "more": more, "constant": constants}


def _repeated(names: set[str]) -> set[str]:
  """The columns of the only number of hops, or the only set, of an evaluation: they repeat those of all questions."""
  result: set[str] = set()
  for prefix in (f"{split}/{group}/" for split in EVALUATED for group in GROUPED):
    columns = {name for name in names if name.startswith(prefix)}
    if len({name.removeprefix(prefix).rpartition("/")[0] for name in columns}) == 1:
      result |= columns
  return result


def _known(columns: Sequence[Sequence[float | None] | None]) -> set[float]:
  return {value for column in columns for value in column or () if value is not None}


def _alone(terms: Mapping[str, str], single_terms: set[str], values: Mapping[str, Any]) -> str:
  """The note of a reward that is one term, which has no chart of its own."""
  same = [f"the term {label}" for label, name in terms.items() if name in single_terms]
  same += ["the outcome"] if values.get("outcome") == values["reward"] else []
  return f"Mean of episodes; the same as {' and '.join(same)}"


def _charts(panel: Panel, series: Mapping[str, str], runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """For one run, one chart with a line for each label. For several runs, a chart per label with a line for each run."""
  about = {"note": panel.note, "unit": panel.unit, "featured": panel.featured}
  chart = lambda title, lines: {"title": title, "series": lines} | about
  if len(runs) == 1:
    lines = [{"label": label, "column": name, "run": 0} for label, name in series.items()]
    return [chart(panel.title, lines)] if lines else []
  title = lambda label: panel.title if len(series) == 1 else f"{panel.title}: {label}"
  line = lambda run, name, place: {"label": run["name"], "column": name, "run": place}
  lines_of = lambda name: [line(run, name, place) for place, run in enumerate(runs) if name in run["columns"]]
  return [chart(title(label), lines_of(name)) for label, name in series.items()]


def _columns(name: str, rows: Rows) -> dict[str, Any]:
  """One run's columns of numbers, averaged to at most MAX_POINTS points."""
  rows = _without_holes(rows)
  places: dict[str, list[int]] = {}
  numbers = set()
  for place, row in enumerate(rows):
    for column, value in row.items():
      places.setdefault(column, []).append(place)
      if isinstance(value, int | float) and not column.startswith(("rollback/", detectors.NOISE)):
        numbers.add(column)
  numbers -= _NOT_CURVES
  stride = -(-len(rows) // MAX_POINTS) if rows else 1
  stretches = [rows[i : i + stride] for i in range(0, len(rows), stride)]
  mean = lambda column: [_mean(row.get(column) for row in stretch) for stretch in stretches]
  return {
    "name": name,
    "every": stride,
    "steps": [stretch[-1]["step"] for stretch in stretches],
    "rollbacks": [row["step"] for row in rows if "rollback/to" in row],
    "joined": [column for column in numbers if len(places[column]) <= places[column][-1] - places[column][0]],
    "columns": {column: mean(column) for column in sorted(numbers)},
  }


def _without_holes(rows: Rows) -> list[Mapping[str, Any]]:
  """The rows with 0 for each kind of ending that no episode of a step had, since only occurring kinds are logged."""
  endings = {match[0]: match[1] for row in rows for name in row if (match := ENDED.fullmatch(name))}
  ending_rows = [{match[1] for name in row if (match := ENDED.fullmatch(name))} for row in rows]
  return [{way: 0.0 for way, kind in endings.items() if kind in kinds} | row for row, kinds in zip(rows, ending_rows)]


def breakdown(rows: Rows) -> dict[str, Any] | None:
  """Seconds of each part: {"steps", "parts": [{"name", "tone", "seconds", "median", "total", "share"}], "median", …}.

  The columns are `seconds/<part>`. Totals and shares are over the whole run, with evaluations and checkpoints if they
  were timed. Medians are over all steps except the first, which compiles. The bottleneck is the part with the largest
  median. None without such columns.
  """
  rows = [row for row in rows if any(TIME.fullmatch(name) for name in row)]
  names = list(dict.fromkeys(name for row in rows for name in row if TIME.fullmatch(name)))
  parts = {TIME.fullmatch(name)[1]: [row.get(name) or 0.0 for row in rows] for name in names if name != "seconds/step"}
  total = sum(map(sum, parts.values()))
  small = [parts.pop(name) for name in OF_HOST if 0 < sum(parts.get(name, ())) < 0.01 * total]
  parts["other"] = [sum(values_of_part) for values_of_part in zip(parts.get("other", [0.0] * len(rows)), *small)]
  order = {name: place for place, name in enumerate(PARTS)}
  parts = {name: parts[name] for name in sorted(parts, key=lambda n: order.get(n, len(order))) if any(parts[name])}
  if not parts:
    return None
  steps = [place for place, row in enumerate(rows) if row["step"] > 0] or [*range(len(rows))]
  median = lambda seconds: statistics.median([seconds[i] for i in steps[1:] or steps])
  medians = {name: median(seconds) for name, seconds in parts.items()}
  stride = -(-len(rows) // MAX_BARS)

  def part(name: str, seconds: Sequence[float]) -> dict[str, Any]:
    numbers = dict(median=medians[name], total=sum(seconds), share=sum(seconds) / total)
    bars = [_mean(seconds[i : i + stride]) for i in range(0, len(seconds) - len(seconds) % stride, stride)]
    about = {"name": name.replace("_", " "), "tone": order.get(name, len(order)), "seconds": bars}
    return about | {key: _short(value) for key, value in numbers.items()}

  return {
    "steps": [row["step"] for row in rows][stride - 1 :: stride],
    "parts": [part(*one) for one in parts.items()],
    "median": _short(median([*map(sum, zip(*parts.values()))])),
    "total": _short(total),
    "every": stride,
    "bottleneck": max(medians, key=medians.get).replace("_", " "),
  }


def _mean(values) -> float | None:
  numbers = [value for value in values if isinstance(value, int | float)]
  return _short(sum(numbers) / len(numbers)) if numbers else None


def _short(value: float) -> float:
  """The value to five digits, which suffice for a curve."""
  return float(f"{value:.5g}")
