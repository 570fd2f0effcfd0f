"""docs/scale.md and .png: the best plan of every case by arithmetic, and what libtpu says of those it compiled."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import scale_cases as cases

from ragrl_jax.plan import chips
from ragrl_jax.plan.workload import load

GIB = 2**30
SHOWN = "search_r1"  # the figure's recipe
MODEL = "qwen2.5-7b"  # of the table of decoding's share


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """Compiled rows, one a line; none if there is no file."""
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def write(rows: Sequence[dict[str, Any]], docs: pathlib.Path) -> None:
  """The page and the figure."""
  refused = {}
  for row in rows:
    if not row.get("report", {}).get("fits"):
      refused.setdefault((row["model"], row["run"], row["slice"]), set()).add(cases.choice_of(row))
  plans = {
    key: cases.plan(*key, frozenset(refused.get(key, ())))
    for key in ((model, run, where) for model in cases.MODELS for run in cases.RUNS for where in cases.SLICES)
  }
  (docs / "scale.md").write_text(
    PAGE.format(
      slices=slices(),
      runs=runs(),
      plans="\n\n".join(f"### {run}\n\n{best(plans, rows, run)}" for run in cases.RUNS),
      compiled=compiled(rows),
      parts=parts(rows),
      good=good(rows),
      scaling=scaling(plans),
      versions=versions(rows),
      margin=f"{100 * cases.MARGIN:.0f} %",
      drawing=drawing(plans),
      never=never(plans),
    ),
    encoding="utf-8",
  )
  figure(plans, rows, docs / "scale.png")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def slices() -> str:
  def one(name, where):
    chip = chips.of(where.topology)
    shape = f"{where.slices} × " * (where.slices > 1) + f"`{where.topology}`"
    return [
      name,
      shape,
      str(where.chips),
      str(where.chips // 4),
      f"{chip.hbm / GIB:.2f} GiB",
      f"{where.chips * chip.hbm / GIB / 1024:.1f} TiB",
    ]

  return table(
    ["slice", "topology", "chips", "hosts of 4", "memory of a chip", "of all"],
    [one(*item) for item in cases.SLICES.items()],
  )


def runs() -> str:
  lines = []
  for name, run in cases.RUNS.items():
    config = run.config()
    r, made = config.rollout, load(config, fill=cases.FILL, drawn=run.drawn(config))
    lines.append(
      [
        name,
        f"{r.prompts_per_step} × {r.group_size}",
        f"{r.context:,}",
        f"{made.length:,.0f}",
        f"{made.drawn:,.0f}",
        f"{made.tokens / 1e6:.1f}M",
        f"{made.packed / 1e6:.1f}M",
        str(config.loss.minibatches * config.loss.epochs),
        run.note,
      ]
    )
  return table(
    [
      "recipe",
      "prompts × group",
      "context",
      "an episode",
      "of it drawn",
      "a step's tokens",
      "learner's rows",
      "updates",
      "",
    ],
    lines,
  )


def mesh(choice) -> str:
  """data × fsdp × tensor (× sequence)."""
  axes = dataclasses.astuple(choice.axes)
  return "×".join(str(n) for n in (axes if axes[3] > 1 else axes[:3]))


def best(plans, rows, run) -> str:
  """A line a model, a cell a slice."""
  done = {(row["model"], row["run"], row["slice"]) for row in rows if "report" in row}
  lines = []
  for model in cases.MODELS:
    line = [model]
    for where in cases.SLICES:
      found = plans[model, run, where]
      if found is None:
        line.append(f"– ({cases.least(model, run, where) / GIB:.1f} GiB)")
        continue
      choice, report = found
      mark = "*" if (model, run, where) in done else ""
      line.append(
        f"{seconds(report.step_s)} s{mark}<br>{mesh(choice)}, {choice.lanes} lanes<br>{report.needed / GIB:.1f} GiB"
      )
    lines.append(line)
  return table(["", *cases.SLICES], lines)


def seconds(value: float) -> str:
  return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def compiled(rows) -> str:
  """What libtpu says beside the arithmetic, a line a compiled case."""
  lines = []
  for row in rows:
    choice = cases.choice_of(row)
    said = cases.estimate(row["model"], row["run"], row["slice"], choice)
    start = [row["model"], row["run"], row["slice"], mesh(choice), f"{choice.micro_rows} / {choice.lanes}"]
    if "report" not in row:
      lines.append(start + [f"not compiled: {row['failed']}"] + [""] * 7)
      continue
    report = row["report"]
    stays, spare = sum(report["resident"].values()), max(one["temporaries"] for one in report["programs"])
    peak = max(one["peak"] for one in report["programs"])
    errors = [one["name"] for one in report["programs"] if one["error"]]
    room = max(one.temporaries for one in said.programs)
    lines.append(
      start
      + [
        f"{stays / GIB:.2f} ({sum(said.resident.values()) / GIB:.2f})",
        f"refused: {', '.join(errors)} ({room / GIB:.2f})" if errors else f"{spare / GIB:.2f} ({room / GIB:.2f})",
        f"{peak / GIB:.2f}",
        f"{report['needed'] / GIB:.2f} ({said.needed / GIB:.2f}) of {report['capacity'] / GIB:.2f}",
        "yes" if report["fits"] else "**no**",
        f"{seconds(report['step_s'])} ({seconds(said.step_s)})",
        f"{report['tokens_per_second']:,.0f}",
        f"{report['mfu']:.0%}",
      ]
    )
  return table(
    [
      "model",
      "recipe",
      "slice",
      "mesh",
      "rows / lanes",
      "stays, GiB",
      "temporaries, GiB",
      "largest peak",
      "together, GiB",
      "fits",
      "step, s",
      "tokens/s",
      "MFU",
    ],
    lines,
  )


def parts(rows) -> str:
  """Where a step's time goes, a line a compiled case that fits."""
  lines = []
  for row in rows:
    if not row.get("report", {}).get("fits"):
      continue
    report = row["report"]
    told = lambda name, report=report: [
      (one["calls"] * one["seconds"], one["bound"]) for one in report["programs"] if one["name"] == name
    ]
    show = lambda name, told=told: ", ".join(f"{seconds(s)} {bound}" for s, bound in told(name)) or ""
    sent = next((one for one in report["programs"] if one["name"] == "learner: accumulate"), None)
    lines.append(
      [
        row["model"],
        row["run"],
        row["slice"],
        show("learner: accumulate"),
        show("learner: apply"),
        show("learner critic: accumulate"),
        show("learner: score"),
        show("engine: prefill"),
        show("engine: decode"),
        f"{sent['calls'] * sent['sent'] / 1e9:,.0f}",
        f"{sent['calls'] * sent['dcn'] / 1e9:,.1f}" if sent["dcn"] else "",
      ]
    )
  return table(
    [
      "model",
      "recipe",
      "slice",
      "gradient, s",
      "update, s",
      "critic's gradient, s",
      "scoring, s",
      "prefill, s",
      "decode, s",
      "gradient's ICI, GB",
      "its DCN, GB",
    ],
    lines,
  )


def good(rows) -> str:
  """How far the arithmetic is from the compiler, over all compiled programs."""
  ratios = dict(temporaries=[], together=[], sent=[], step=[])
  for row in rows:
    if not row.get("report", {}).get("fits"):
      continue
    said = cases.estimate(row["model"], row["run"], row["slice"], cases.choice_of(row))
    report = row["report"]
    mine = {one["name"]: one for one in report["programs"]}
    ratios["together"].append(said.needed / report["needed"])
    ratios["temporaries"].append(
      max(one.temporaries for one in said.programs) / max(one["temporaries"] for one in report["programs"])
    )
    ratios["sent"].append(
      next(one.sent for one in said.programs if one.name == "learner: accumulate") / mine["learner: accumulate"]["sent"]
    )
    ratios["step"].append(said.step_s / report["step_s"])
  if not ratios["step"]:
    return "Nothing is compiled yet."
  names = dict(
    temporaries="largest temporaries", together="memory, together", sent="ICI bytes of a gradient", step="step time"
  )
  show = lambda found: [f"{min(found):.2f}", f"{sorted(found)[len(found) // 2]:.2f}", f"{max(found):.2f}"]
  return table(
    ["arithmetic over compiled", "least", "middle", "most", "n"],
    [[names[name], *show(found), str(len(found))] for name, found in ratios.items()],
  )


def scaling(plans) -> str:
  """Tokens a second of one recipe on more and more chips of a kind."""
  lines = []
  for model in cases.MODELS:
    for kind in ("v5e", "v5p"):
      mine = [
        (where, plans[model, SHOWN, name])
        for name, where in cases.SLICES.items()
        if name.startswith(kind) or (kind == "v5e" and "v5e" in name)
      ]
      mine = sorted((where.chips, found[1]) for where, found in mine if found is not None)
      if len(mine) > 1:
        base = mine[0][1].tokens / mine[0][1].step_s / mine[0][0]
        cells = [
          f"{n}: {report.tokens / report.step_s:,.0f} ({report.tokens / report.step_s / n / base:.0%})"
          for n, report in mine
        ]
        lines.append([model, kind, " · ".join(cells)])
  return table(["model", "chips", "chips: tokens/s (a chip's, of the smallest slice's)"], lines)


def drawing(plans) -> str:
  """Decoding's share of a step of one model."""

  def share(found):
    if found is None:
      return "–"
    _, report = found
    decode = next(one for one in report.programs if one.name == "engine: decode")
    return f"{decode.calls * report.seconds(decode)[0] / report.step_s:.0%}"

  return table(
    [MODEL, *cases.SLICES], [[run, *(share(plans[MODEL, run, where]) for where in cases.SLICES)] for run in cases.RUNS]
  )


def never(plans) -> str:
  """What fits on no slice of a kind of chip, as a list."""
  lines = []
  for kind in dict.fromkeys(where.topology.split(":")[0] for where in cases.SLICES.values()):
    names = [name for name, where in cases.SLICES.items() if where.topology.startswith(kind)]
    out = {
      model: [run for run in cases.RUNS if all(plans[model, run, name] is None for name in names)]
      for model in cases.MODELS
    }
    said = [
      f"{model} ({'every recipe' if len(runs) == len(cases.RUNS) else ', '.join(runs)})"
      for model, runs in out.items()
      if runs
    ]
    lines.append(f"- {', '.join(names)}: {'; '.join(said) if said else 'everything fits on one of them'}")
  return "\n".join(lines)


def versions(rows) -> str:
  found = sorted({(row["libtpu"], row["level"]) for row in rows if "libtpu" in row})
  spent = sum(row.get("cpu_s", 0.0) for row in rows)
  return (
    ", ".join(f"libtpu {version} at jax_optimization_level={level}" for version, level in found)
    + f"; {sum('report' in row for row in rows)} cases, {spent / 60:.0f} minutes of one core in all"
  )


def figure(plans, rows, path: pathlib.Path) -> None:
  """Step time and tokens a second against chips: lines are arithmetic, marks compiled."""
  matplotlib.use("agg")
  from matplotlib import pyplot

  drawn, axes = pyplot.subplots(
    2, len(cases.MODELS), figsize=(3.4 * len(cases.MODELS), 6.4), dpi=110, sharex=True, sharey="row"
  )
  for column, model in enumerate(cases.MODELS):
    for color, kind in enumerate(("v5e", "v6e", "v5p")):
      points = sorted(
        (where.chips, plans[model, SHOWN, name][1])
        for name, where in cases.SLICES.items()
        if where.topology.startswith(kind) and plans[model, SHOWN, name] is not None
      )
      mine = sorted(
        (cases.SLICES[row["slice"]].chips, row["report"])
        for row in rows
        if (row["model"], row["run"]) == (model, SHOWN)
        and row.get("report", {}).get("fits")
        and cases.SLICES[row["slice"]].topology.startswith(kind)
      )
      for line, (arithmetic, found) in enumerate(
        ((lambda r: r.step_s, lambda r: r["step_s"]), (lambda r: r.tokens / r.step_s, lambda r: r["tokens_per_second"]))
      ):
        plot = axes[line, column]
        plot.plot([n for n, _ in points], [arithmetic(r) for _, r in points], color=f"C{color}", marker=".", label=kind)
        plot.plot(
          [n for n, _ in mine],
          [found(r) for _, r in mine],
          color=f"C{color}",
          linestyle="",
          marker="o",
          markersize=9,
          fillstyle="none",
          label=f"{kind}, compiled",
        )
    axes[0, column].set(title=model, xscale="log", yscale="log")
    axes[1, column].set(xlabel="chips", yscale="log")
    ticks = sorted({where.chips for where in cases.SLICES.values()})
    axes[1, column].set_xticks(ticks, [str(n) for n in ticks])
    axes[1, column].minorticks_off()
    for plot in axes[:, column]:
      plot.grid(alpha=0.3)
  axes[0, 0].set_ylabel("seconds a step, at best")
  axes[1, 0].set_ylabel("tokens a second, at best")
  axes[0, 0].legend(frameon=False, fontsize=7)
  drawn.suptitle(f"{SHOWN}: arithmetic (lines) and compiled (circles)")
  drawn.tight_layout()
  drawn.savefig(path)
  pyplot.close(drawn)


PAGE = """# What fits where, and how fast at best

`make scale` (`python benchmarks/scale/run.py --docs`) wrote this page, from arithmetic and from the compiled cases
kept in `scale.jsonl`. **Nothing here was run on a TPU**: no time is a measurement.

## How to read it

- *Arithmetic* (`ragrl_jax/plan/`) adds up, for every mesh data × fsdp × tensor × sequence of a slice, what a chip
  holds (float32 masters, AdamW's moments, the gradient, the reference, a critic of its own, on every host of four
  chips an engine in bf16 with its cache, temporaries) and what a step computes, reads and sends. It chooses rows a
  block, lanes and cache rows too; prompts, groups, lengths and the objective stay the recipe's. The shortest step of
  those that leave {margin} of the memory free is *the best plan*; of steps equal within 2 %, the one that sends least.
- *Compiled* means that libtpu compiled every program of that plan (learner, critic, scoring, prefill, extension,
  decoding), depth and widths in full, for that slice; the engine's for a slice of one host. It says what memory they
  need and which collectives they run, and refuses what does not fit. A number in parentheses beside a compiled one is
  the arithmetic's for the same plan.
- *Step time* is a roofline: of each program the longest of compute at the peak, HBM traffic at full bandwidth, ICI
  traffic over all links and (across slices) the chip's share of the network, times its calls; programs run one after
  the other. **Operations and HBM traffic are arithmetic on both sides**: what the compiler adds is memory, and ICI and
  DCN traffic. *Tokens/s* are those of whole episodes, prompts counted in each; where a group's prompt is computed once
  (care, arena, lear) they are more than what is computed. *MFU* is of the learner's programs at that roofline,
  gradients and scoring: remat's second pass and the padding of blocks are what it loses.

## Its limits

- A real step takes longer. Kernels miss the peak; collectives hide only in part; an axis of the mesh has not all of a
  chip's links to itself, and an all-reduce, which counts once here, goes round nearly twice; engines wait for their
  longest episodes (here all are of the mean length); judges and retrievers cost nothing here, nor do groups that
  dynamic sampling throws away; what a critic guesses before its update is left out.
- `jax_optimization_level` is O1 where the versions below say so: it compiles four times as fast as a run's own O2,
  hides no collectives and needs other temporaries (`log.md`).
- On v5e slices larger than 4 × 4 libtpu refuses, ahead of time, collectives among a part of the slice ("On platforms
  with limited ICI routing device assignment should include all slice devices"); it compiles them on v5p. Every host's
  engine is such a program. Whether it may run there beside the others could not be tried without a v5e.
- The arithmetic's temporaries are a sum of the arrays that are expected to live at once, no model of the compiler's
  scheduling; see how far off it is below.

## Slices and recipes

{slices}

A v5p's name counts two cores a chip. Recipes of equal sizes share a row: `search_r1:ppo` is `veritas`.

{runs}

Every episode is of the mean length, half of the context; a recipe that searches draws half of it, another one reply
of `max_new_tokens` at most. *Learner's rows*: tokens it computes, a shared prompt once a group. *Updates*: optimiser
steps.

## The best plan of every case

Arithmetic: step time; mesh, decoding lanes a host; memory of a chip. A star: this case was compiled, see below. A dash:
nothing fits, with what the smallest plan needs.

{plans}

What fits on none:

{never}

What every host keeps for its engine decides it: all weights in bf16 over four chips, and a cache of whole rows, eight
of them for the prompts of groups. More chips do not make that smaller; an engine over several hosts would, and there is
none yet.

Decoding's share of those steps. Where it is large, more lanes are what is missing (memory); on many chips, an
episode's tokens, which are drawn one after the other.

{drawing}

## What libtpu says

{versions}.

{compiled}

*Stays*: for the whole run, on a chip. *Temporaries*: of the program that needs most. *Largest peak*: what libtpu says
lives at once in a single program, its own arguments included. *Together*: what stays and those temporaries.

Where a step's time goes, with what bounds it, and what a chip sends:

{parts}

How good the arithmetic is, over those that fit. How many copies of an array live at once was read off the first two
cases and three earlier compilations of Qwen2.5-7B; of the other cases it knew nothing. Step times agree because
operations and HBM traffic are the same arithmetic, and the traffic that the compiler adds bounds little.

{good}

## How it scales

Arithmetic, `search_r1`; circles in the figure are compiled.

{scaling}

![Step time and tokens a second against chips](scale.png)
"""
