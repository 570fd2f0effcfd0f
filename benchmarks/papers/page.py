"""Writes the table of claims and the figure, from the finished runs."""

import gzip
import importlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from papers.miniature import SAMPLED, WARM, Claim, Paper, Side

from ragrl_jax.core.metrics import stats
from ragrl_jax.store import jsonl

RUNS = "papers.jsonl.gz"
SEEDS = 5
Run = tuple[str, str, int]  # paper, arm, seed
Rows = Mapping[Run, Mapping[str, Any]]


def read_rows(path: pathlib.Path) -> dict[Run, dict[str, Any]]:
  """{(paper, arm, seed): a run's result} from a file with one per line, .gz or not; empty if there is no file."""
  if not path.is_file():
    return {}
  text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
  rows = map(json.loads, text.splitlines())
  return {(row["paper"], row["arm"], row["seed"]): row for row in rows}


def comparable(rows: Rows, work: Sequence[Run], made: Callable[[Run], bool]) -> Rows:
  """The rows without those of an unfinished paper and seed whose warm start is not on this machine.

  All runs of a paper and seed go on from one warm start. A new one is not the same on another machine.

  Args:
    rows: finished runs.
    work: all runs wanted.
    made: whether the warm start of a run is on this machine.
  """
  again = {run[::2] for run in work if run not in rows and not made(run)}
  return {run: row for run, row in rows.items() if run[::2] not in again}


def values(rows: Rows, paper: Paper, side: Side | float, seed: int, *, sampled: bool = False) -> np.ndarray | None:
  """The arm's value of each question for this seed, NaN where it does not apply; a single one if the measure is of the
  whole test, or if the side is a number. None if the arm has not run.
  """
  if not isinstance(side, Side):
    return np.asarray([float(side)])
  row, key = rows.get((paper.name, side.arm, seed)), side.key(paper) + (SAMPLED if sampled else "")
  if row is None or key not in row["reached"]:
    return None
  kept = row["values"].get(key, {}).get(side.measure, [row["reached"][key].get(side.measure)])
  result = np.asarray([np.nan if one is None else one for one in kept], np.float64)
  return None if np.isnan(result).all() else result


def judged(paper: Paper, claim: Claim, rows: Rows) -> dict[str, Any] | None:
  """Means of both sides, the seeds' differences, their mean's interval, the verdict, the difference of sampled answers.

  None if no seed has both sides yet.
  """
  seeds = sorted({seed for name, _, seed in rows if name == paper.name})
  both = lambda **options: [
    pair
    for seed in seeds
    for pair in [[values(rows, paper, side, seed, **options) for side in (claim.side, claim.other)]]
    if all(one is not None for one in pair)
  ]
  pairs = both()
  if not pairs:
    return None
  side, other = (float(np.mean([np.nanmean(pair[place]) for pair in pairs])) for place in (0, 1))
  differences = [float(np.nanmean(a) - np.nanmean(b)) for a, b in pairs]
  # Every seed has a world, questions and a warm start of its own: its difference is one value.
  interval, drawn = stats.t_interval(differences) if len(pairs) > 1 else None, both(sampled=True)
  return dict(
    side=side,
    other=other,
    differences=differences,
    interval=interval,
    verdict=verdict(claim, side - other, interval),
    seeds=len(pairs),
    questions=min(max(len(one) for one in pair) for pair in pairs),
    sampled=float(np.mean([np.nanmean(a) - np.nanmean(b) for a, b in drawn])) if drawn else None,
  )


def verdict(claim: Claim, difference: float, interval: tuple[float, float] | None) -> str:
  """ "shown", "refuted here" or "not decidable".

  The gain is the difference in the claim's direction. It is shown if the whole interval is above 0 (above `least`, if
  that is negative) and the gain is `least` or more, refuted if the whole interval is below `least`.
  """
  if interval is None:
    return "one seed"
  low, high = (-interval[1], -interval[0]) if claim.lower else interval
  gain = -difference if claim.lower else difference
  if low > min(claim.least, 0.0) and gain >= claim.least - 1e-9:  # .5 - .4 < .1 in floats
    return "shown"
  return "refuted here" if high < claim.least else "not decidable"


def tables(papers: Mapping[str, Paper], rows: Rows) -> str:
  """One table: claim | effect stated before | with | without | interval | sampled | seeds × questions | verdict."""
  head = ("", "claim", "stated", "with", "without", "difference, 95 %", "sampled", "seeds × questions", "verdict")
  lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
  for paper in papers.values():
    for claim in paper.claims:
      result, stated = judged(paper, claim, rows), f"{'≤ −' if claim.lower else '≥ '}{claim.least:g}"
      if not claim.least:
        stated = "< 0" if claim.lower else "> 0"
      if result is None:
        lines.append(f"| {paper.name} | {claim.text} | {stated} | | | | | not run | |")
        continue
      interval = "{:+.3f} to {:+.3f}".format(*result["interval"]) if result["interval"] else ""
      sampled = "" if result["sampled"] is None else f"{result['sampled']:+.3f}"
      lines.append(
        f"| {paper.name} | {claim.text} | {stated} | {result['side']:.3f} | {result['other']:.3f} | {interval} "
        f"| {sampled} | {result['seeds']} × {result['questions']} | {result['verdict']} |"
      )
  return "\n".join(lines)


def summary(papers: Mapping[str, Paper], rows: Rows) -> str:
  """How many claims have which verdict."""
  result = [judged(paper, claim, rows) for paper in papers.values() for claim in paper.claims]
  lines = ["not run" if one is None else one["verdict"] for one in result]
  return f"{len(lines)} claims: " + ", ".join(f"{lines.count(kind)} {kind}" for kind in dict.fromkeys(sorted(lines)))


def missed(papers: Mapping[str, Paper], rows: Rows) -> list[str]:
  """The claims that are not run, or whose difference is less than the stated one in a seed."""
  gains = lambda claim, found: [-one if claim.lower else one for one in found["differences"]]
  return [
    f"{paper.name}: {claim.text}"
    for paper in papers.values()
    for claim in paper.claims
    if (found := judged(paper, claim, rows)) is None or min(gains(claim, found)) < claim.least - 1e-9
  ]


def notes(papers: Mapping[str, Paper], rows: Rows) -> str:
  """Notes on claims that are not confirmed, and each arm's values on the first test."""
  parts = []
  for paper in papers.values():
    test = next(iter(paper.tests))
    arms = [arm for arm in (WARM, *paper.arms) if any(key[:2] == (paper.name, arm) for key in rows)]
    parts.append(f"## {paper.name}\n\n{importlib.import_module('papers.' + paper.name).__doc__}".rstrip())
    texts = [f"- {claim.text}: {claim.note}" for claim in paper.claims if claim.note]
    lines = [
      f"| arm | {paper.shown[0]} | {paper.shown[1]} | steps | core seconds per run | seeds | commit |",
      "|---" * 7 + "|",
    ]
    for arm in arms:
      runs = [row for key, row in rows.items() if key[:2] == (paper.name, arm)]
      means = []
      for measure in paper.shown:
        known = [row["reached"][test].get(measure) for row in runs]
        known = [number for number in known if number is not None]
        means.append(f"{np.mean(known):.3f}" if known else "")
      lines.append(
        f"| {arm} | {means[0]} | {means[1]} | {'/'.join(str(row['steps']) for row in runs)} "
        f"| {np.mean([row['seconds'] for row in runs]):.0f} "
        f"| {len(runs)} | {', '.join(sorted({row['commit'] for row in runs}))} |"
      )
    parts += ["\n".join(texts)] * bool(texts) + ["\n".join(lines)]
  return "\n\n".join(parts)


def figure(papers: Mapping[str, Paper], rows: Rows, path: pathlib.Path) -> None:
  """Two charts per paper over the steps: one line per arm, with its seeds as a band."""
  matplotlib.use("agg")
  from matplotlib import pyplot

  picture, axes = pyplot.subplots(2, len(papers), figsize=(4 * len(papers), 7), dpi=110, squeeze=False)
  for column, paper in enumerate(papers.values()):
    for line, measure in enumerate(paper.shown):
      plot = axes[line, column]
      for arm in paper.arms:
        curve(plot, paper, arm, measure, rows)
      plot.set(title=paper.name if not line else "", xlabel="step", ylabel=measure)
      plot.grid(alpha=0.3)
    if axes[0, column].lines:
      axes[0, column].legend(frameon=False, fontsize=7)
  picture.tight_layout()
  picture.savefig(path)
  pyplot.close(picture)


def curve(plot, paper: Paper, arm: str, measure: str, rows: Rows) -> None:
  """One arm's mean over seeds, beginning with the warm start's value."""
  seeds = sorted(seed for name, had, seed in rows if (name, had) == (paper.name, arm))
  lines = []
  for seed in seeds:
    start = rows.get((paper.name, WARM, seed), dict(curve={}))["curve"]
    points = {int(step): row.get(measure) for step, row in (start | rows[paper.name, arm, seed]["curve"]).items()}
    lines.append({step: number for step, number in sorted(points.items()) if number is not None})
  steps = sorted(set.intersection(*map(set, lines))) if lines else []
  if not steps:
    return
  values = np.asarray([[line[step] for step in steps] for line in lines])
  (mark,) = plot.plot(steps, values.mean(axis=0), marker="o", markersize=2, label=arm)
  plot.fill_between(steps, values.min(axis=0), values.max(axis=0), color=mark.get_color(), alpha=0.12)


def write(papers: Mapping[str, Paper], rows: Rows, docs: pathlib.Path) -> None:
  """Writes docs/papers.md, its runs (.jsonl.gz) and the figure."""
  order = [(paper.name, arm) for paper in papers.values() for arm in (WARM, *paper.arms)]
  kept = sorted((key for key in rows if key[:2] in order), key=lambda key: (order.index(key[:2]), key[2]))
  lines = "".join(jsonl.line(rows[key]) for key in kept)
  (docs / RUNS).write_bytes(gzip.compress(lines.encode(), mtime=0))  # the same runs give the same bytes
  kept = {key: rows[key] for key in kept}
  text = PAGE.format(
    summary=summary(papers, kept),
    finished=len(kept),
    runs=SEEDS * len(order),
    table=tables(papers, kept),
    notes=notes(papers, kept),
  )
  (docs / "papers.md").write_text(text, encoding="utf-8")
  figure(papers, kept, docs / "papers.png")


PAGE = """# Five papers' claims, in miniature

`make papers` (`python benchmarks/run_papers.py --docs`) writes this page from the runs in `papers.jsonl.gz`, whatever
the result. All runs of a paper and seed go on from one base reader, a decoder of 1M parameters (`make base`); ARENA's
from a further stage of it, which names passages by number. Three machines each trained a base reader for its runs:
seeds 0 and 1; seed 2, and seed 3 of CARE, ARENA and VERITAS; all others ([log](../benchmarks/LOG.md)). For every paper
and seed there is a made-up world, and all arms start from one warm start in the paper's format, with faults on
purpose. An arm ends when its reward has stopped rising, or after a fixed number of steps. Claims are measured with the
facts of the made-up world (which passage states which fact), never with the judge that gave the reward. Questions are
about names that training never saw.

{summary}.

{finished} of {runs} runs are finished. `make papers` runs what is missing. A claim with one seed has no interval, so it
is neither shown nor refuted.

{table}

*stated*: the least difference, stated before the runs. *with*, *without*: means over seeds, greedy answers.
*difference*: with minus without, 95 % interval (Student's) of the mean over seeds, paired; each seed has questions of
its own. *sampled*: the difference of sampled answers. *shown*: the whole interval is above 0 (above the stated bound,
if that is below 0) and the difference is as large as stated. *refuted here*: the whole interval is below the stated
difference. No verdict is adjusted for the number of claims. A model of this size shows the effect of a reward on
behaviour. It does not show the effect on a model of 7B.

{notes}

![Curves](papers.png)
"""
