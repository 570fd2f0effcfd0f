"""Writes the table of claims and the figure, from the finished runs."""

import importlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from miniature import WARM, Claim, Paper, Side

from ragrl_jax.core.metrics import stats

Rows = Mapping[tuple[str, str, int], Mapping[str, Any]]


def read_rows(path: pathlib.Path) -> dict[tuple[str, str, int], dict[str, Any]]:
  """{(paper, arm, seed): a run's result} from a file with one per line; empty if there is no file."""
  if not path.is_file():
    return {}
  rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  return {(row["paper"], row["arm"], row["seed"]): row for row in rows}


def value(rows: Rows, paper: str, side: Side | float, seed: int) -> float | None:
  """The arm's value for this seed; None if it has not run, or if the measure does not apply."""
  if not isinstance(side, Side):
    return float(side)
  row = rows.get((paper, side.arm, seed))
  if row is None:
    return None
  if side.step is not None:
    return row["curve"].get(str(side.step), {}).get(side.measure)
  test = side.test or next(iter(row["reached"]))
  return row["reached"].get(test, {}).get(side.measure)


def judged(paper: Paper, claim: Claim, rows: Rows) -> dict[str, Any] | None:
  """Means, the difference's interval, and the number of seeds that agree; None if no seed has both sides yet."""
  pairs = [
    (value(rows, paper.name, claim.side, seed), value(rows, paper.name, claim.other, seed))
    for seed in sorted({seed for name, _, seed in rows if name == paper.name})
  ]
  pairs = [pair for pair in pairs if None not in pair]
  if not pairs:
    return None
  side, other = np.asarray(pairs, float).T
  gains = other - side if claim.lower else side - other
  agree = int(np.sum(gains >= claim.least - 1e-9 if claim.least else gains > 0))  # .5 - .4 < .1 in floats
  return dict(
    side=side.mean(),
    other=other.mean(),
    interval=stats.bootstrap_interval(side - other, seed=0),
    agree=agree,
    n=len(pairs),
  )


def tables(papers: Mapping[str, Paper], rows: Rows) -> str:
  """One table: claim | with | without | interval | seeds that agree, n."""
  lines = ["| | claim | with | without | difference, 95 % | seeds that agree, n | shows |", "|---" * 7 + "|"]
  for paper in papers.values():
    for claim in paper.claims:
      found = judged(paper, claim, rows)
      if found is None:
        lines.append(f"| {paper.name} | {claim.text} | | | | not run | |")
        continue
      interval = "{:+.3f} to {:+.3f}".format(*found["interval"]) if found["n"] > 1 else "one seed"
      shows = "yes" if found["agree"] == found["n"] else "no" if not found["agree"] else "not in every seed"
      lines.append(
        f"| {paper.name} | {claim.text} | {found['side']:.3f} | {found['other']:.3f} | {interval} "
        f"| {found['agree']} of {found['n']} | {shows} |"
      )
  return "\n".join(lines)


def notes(papers: Mapping[str, Paper], rows: Rows) -> str:
  """Notes on claims that are not confirmed, and each arm's values on the first test."""
  parts = []
  for paper in papers.values():
    test = next(iter(paper.tests))
    arms = [arm for arm in (WARM, *paper.arms) if any(key[:2] == (paper.name, arm) for key in rows)]
    parts.append(f"## {paper.name}\n\n{importlib.import_module(paper.name).__doc__}".rstrip())
    if paper.later_steps:
      parts.append(
        f"Seeds after 0 warm up for {paper.later_steps} steps from the weights of seed 0's warm start. Some of "
        "their names also occur in seed 0's world, with other facts."
      )
    said = [f"- {claim.text}: {claim.note}" for claim in paper.claims if claim.note]
    lines = [f"| arm | {paper.shown[0]} | {paper.shown[1]} | core seconds per run | seeds | commit |", "|---" * 6 + "|"]
    for arm in arms:
      runs = [row for key, row in rows.items() if key[:2] == (paper.name, arm)]
      means = []
      for measure in paper.shown:
        known = [row["reached"][test].get(measure) for row in runs]
        known = [number for number in known if number is not None]
        means.append(f"{np.mean(known):.3f}" if known else "")
      lines.append(
        f"| {arm} | {means[0]} | {means[1]} | {np.mean([row['seconds'] for row in runs]):.0f} "
        f"| {len(runs)} | {', '.join(sorted({row['commit'] for row in runs}))} |"
      )
    parts += ["\n".join(said)] * bool(said) + ["\n".join(lines)]
  return "\n\n".join(parts)


def figure(papers: Mapping[str, Paper], rows: Rows, path: pathlib.Path) -> None:
  """Two charts per paper over the steps: one line per arm, with its seeds as a band."""
  matplotlib.use("agg")
  from matplotlib import pyplot

  drawn, axes = pyplot.subplots(2, len(papers), figsize=(4 * len(papers), 7), dpi=110, squeeze=False)
  for column, paper in enumerate(papers.values()):
    for line, measure in enumerate(paper.shown):
      plot = axes[line, column]
      for arm in paper.arms:
        curve(plot, paper, arm, measure, rows)
      plot.set(title=paper.name if not line else "", xlabel="step", ylabel=measure)
      plot.grid(alpha=0.3)
    if axes[0, column].lines:
      axes[0, column].legend(frameon=False, fontsize=7)
  drawn.tight_layout()
  drawn.savefig(path)
  pyplot.close(drawn)


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
  """Writes docs/papers.md, its runs (.jsonl) and the figure."""
  order = [(paper.name, arm) for paper in papers.values() for arm in (WARM, *paper.arms)]
  kept = sorted((key for key in rows if key[:2] in order), key=lambda key: (order.index(key[:2]), key[2]))
  (docs / "papers.jsonl").write_text("".join(json.dumps(rows[key]) + "\n" for key in kept), encoding="utf-8")
  kept = {key: rows[key] for key in kept}
  (docs / "papers.md").write_text(PAGE.format(table=tables(papers, kept), notes=notes(papers, kept)), encoding="utf-8")
  figure(papers, kept, docs / "papers.png")


PAGE = """# Five papers' claims, in miniature

`make papers` (`python benchmarks/papers/run.py --docs`) writes this page from the runs in `papers.jsonl`, whatever the
result. For every paper and seed, all arms start from one warm start, with a model of under 1M parameters on one core.
Claims are measured with the facts of the made-up world (which passage states which fact), never with the judge that
gave the reward. Answers are greedy, to questions about names that training never saw.

{table}

*with*, *without*: means over seeds. *difference*: with minus without, bootstrap interval over seeds. *seeds that
agree*: the number of seeds in which the claim holds. A model of this size shows the effect of a reward on behaviour. It
does not show the effect on a model of 7B.

{notes}

![Curves](papers.png)
"""
