"""Writes docs/scale.md and .png: the best plan of every case by arithmetic, and the compilers' reports on some."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import scale_cases as cases
import scale_held as held
from scale_tables import GIB, compiled, good, mesh, parts, seconds, table, versions

from ragrl_jax.plan import chips
from ragrl_jax.plan.workload import load

SHOWN = "search_r1"  # the figure's recipe
MODEL = "qwen2.5-7b"  # the model in the table of decoding's share


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """The compiled rows, one per line; empty if there is no file."""
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def write(rows: Sequence[dict[str, Any]], docs: pathlib.Path) -> None:
  """Writes the page and the figure."""
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
      held=held.section(table),
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


def slices() -> str:
  def one(name, where):
    chip = chips.for_topology(where.topology)
    shape = f"{where.slices} × " * (where.slices > 1) + f"`{where.topology}`"
    return [
      name,
      shape,
      str(where.chips),
      str(where.hosts),
      f"{chip.hbm / GIB:.2f} GiB",
      f"{where.chips * chip.hbm / GIB / 1024:.1f} TiB",
    ]

  return table(
    ["slice", "topology", "chips", "hosts", "memory per chip", "of all chips"],
    [one(*item) for item in cases.SLICES.items()],
  )


def runs() -> str:
  lines = []
  for name, run in cases.RUNS.items():
    config = run.config()
    r, built = config.rollout, load(config, fill=cases.FILL, drawn=run.drawn(config))
    lines.append(
      [
        name,
        f"{r.prompts_per_step} × {r.group_size}",
        f"{r.context:,}",
        f"{built.length:,.0f}",
        f"{built.drawn:,.0f}",
        f"{built.tokens / 1e6:.1f}M",
        f"{built.packed / 1e6:.1f}M",
        str(config.loss.minibatches * config.loss.epochs),
        run.note,
      ]
    )
  return table(
    [
      "recipe",
      "prompts × group",
      "context",
      "tokens per episode",
      "of them sampled",
      "tokens per step",
      "learner tokens",
      "updates",
      "",
    ],
    lines,
  )


def best(plans, rows, run) -> str:
  """The best plans of a recipe: one line per model, one column per slice."""
  done = {(row["model"], row["run"], row["slice"]) for row in rows if "report" in row}
  lines = []
  for model in cases.MODELS:
    line = [model]
    for where in cases.SLICES:
      result = plans[model, run, where]
      if result is None:
        line.append(f"– ({cases.least(model, run, where) / GIB:.1f} GiB)")
        continue
      choice, report = result
      mark = "*" if (model, run, where) in done else ""
      line.append(
        f"{seconds(report.step_s)} s{mark}<br>{mesh(choice)}, {choice.lanes} lanes / {choice.tensor}<br>"
        f"{report.needed / GIB:.1f} GiB"
      )
    lines.append(line)
  return table(["", *cases.SLICES], lines)


def scaling(plans) -> str:
  """Tokens per second of one recipe over numbers of chips, for each kind of chip."""
  lines = []
  for model in cases.MODELS:
    for kind in ("v5e", "v5p", "h100", "h200"):
      mine = [
        (where, plans[model, SHOWN, name]) for name, where in cases.SLICES.items() if where.topology.startswith(kind)
      ]
      mine = sorted((where.chips, found[1]) for where, found in mine if found is not None)
      if len(mine) > 1:
        base = mine[0][1].tokens / mine[0][1].step_s / mine[0][0]
        cells = [
          f"{n}: {report.tokens / report.step_s:,.0f} ({report.tokens / report.step_s / n / base:.0%})"
          for n, report in mine
        ]
        lines.append([model, kind, " · ".join(cells)])
  return table(["model", "chips", "chips: tokens/s (per chip, relative to the smallest slice)"], lines)


def drawing(plans) -> str:
  """Decoding's share of a step, for one model."""

  def share(results):
    if results is None:
      return "–"
    _, report = results
    decode = next(program for program in report.programs if program.name == "engine: decode")
    return f"{decode.calls * report.seconds(decode)[0] / report.step_s:.0%}"

  return table(
    [MODEL, *cases.SLICES], [[run, *(share(plans[MODEL, run, where]) for where in cases.SLICES)] for run in cases.RUNS]
  )


def never(plans) -> str:
  """A list of the cases that fit on no slice of a kind of chip."""
  lines = []
  for kind in dict.fromkeys(where.topology.split(":")[0] for where in cases.SLICES.values()):
    names = [name for name, where in cases.SLICES.items() if where.topology.startswith(kind)]
    out = {
      model: [run for run in cases.RUNS if all(plans[model, run, name] is None for name in names)]
      for model in cases.MODELS
    }
    texts = [
      f"{model} ({'every recipe' if len(runs) == len(cases.RUNS) else ', '.join(runs)})"
      for model, runs in out.items()
      if runs
    ]
    lines.append(f"- {', '.join(names)}: {'; '.join(texts) if texts else 'everything fits on one of them'}")
  return "\n".join(lines)


def figure(plans, rows, path: pathlib.Path) -> None:
  """Plots step time and tokens per second over chips; lines are arithmetic, circles compiled."""
  matplotlib.use("agg")
  from matplotlib import pyplot

  picture, axes = pyplot.subplots(
    2, len(cases.MODELS), figsize=(3.4 * len(cases.MODELS), 6.4), dpi=110, sharex=True, sharey="row"
  )
  for column, model in enumerate(cases.MODELS):
    for color, kind in enumerate(("v5e", "v6e", "v5p", "h100", "h200")):
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
  picture.suptitle(f"{SHOWN}: arithmetic (lines) and compiled (circles)")
  picture.tight_layout()
  picture.savefig(path)
  pyplot.close(picture)


PAGE = """# Scale: what fits on which TPU slice and on which GPUs, and lower bounds of step times

`make scale` (`python benchmarks/scale/run.py --docs`) wrote this page, from arithmetic and from the compiled cases
in `scale.jsonl`. **Nothing here was run on a TPU or GPU**: no time is a measurement.

## How to read it

- *Arithmetic* (`benchmarks/scale`) computes, for every mesh data × fsdp × tensor × sequence of a slice, the memory of a
  chip (float32 master weights, AdamW's moments, the gradient, the reference, a separate critic, on every host an engine
  in bf16 with its cache, temporaries), and the operations, memory traffic and network traffic of a step. It also
  chooses rows per block, lanes, the engine's mesh and its pages. Prompts, groups, lengths and the objective are the
  recipe's. *The best plan* has the shortest step among plans that leave {margin} of the memory free; if steps are equal
  within 2 %, also with collectives that do not overlap, it is the one beside which most conversations fit.
- *Compiled* means that libtpu, or JAX's CUDA plugin, compiled every program of that plan (learner, critic, scoring,
  prefill, extension, decoding) for those chips, with full depth and widths; the engine's programs for one host. They
  report memory and collectives, and libtpu refuses a program that does not fit. A number in parentheses next to a
  compiled one is from the arithmetic for the same plan.
- *Step time* is a roofline. Each program takes the longest of: compute at the peak, HBM traffic at full bandwidth, ICI
  or NVLink traffic over all links, and (across slices, or hosts of GPUs) the chip's share of the network; times its
  number of calls. Programs run one after the other. **Operations and HBM traffic are arithmetic on both sides**: the
  compiler adds memory and the traffic between chips. *Tokens/s* counts whole episodes with their prompts. If a group's
  prompt is computed only once (care, arena, lear), this is more than the computed tokens. *MFU* is of the learner's
  programs (gradients and scoring) at that roofline; it is below 100 % because of remat's second pass and the padding of
  blocks.

## Limits

- A real step takes longer. Kernels do not reach the peak. Collectives overlap only partly with computation. An axis of
  the mesh does not have all links of a chip, and an all-reduce, which counts once here, sends nearly twice its size.
  Engines wait for their longest episodes (here all have the mean length). Judges, retrievers and groups that dynamic
  sampling discards cost nothing here.
- `jax_optimization_level` is O1 where the versions below say so. For TPUs it compiles four times as fast as O2, which
  runs use; it does not overlap collectives and needs other temporaries (`benchmarks/LOG.md`). GPUs' programs are
  compiled as runs compile them: UNKNOWN is JAX's default.
- On v5e slices larger than 4 × 4, libtpu refuses to compile collectives among a part of the slice ahead of time ("On
  platforms with limited ICI routing device assignment should include all slice devices"); it compiles them for v5p.
  Every host's engine is such a program. Without a v5e it could not be tested whether engines run there.
- Of a GPU's memory 92 % may be used (`XLA_PYTHON_CLIENT_MEM_FRACTION=0.92`). GPUs are H100 and H200 SXM with NVLink in
  hosts of eight, and one network adapter of 400 Gbit/s each. A run also waits for the launches of kernels, which
  `ragrl check` counts and this page does not price.
- Decoding counts all weights as read in every step: also the input embedding, of which a step reads a few rows (5 to
  8 % of the bytes of a 7B to 14B model whose head is not tied to it), and all experts of a mixture, of which few lanes
  use a part.
- The arithmetic's temporaries are a sum of the arrays that are expected to be live at the same time, not a model of the
  compiler's scheduling. Its error is given below.

## Chips and recipes

{slices}

A v5p's name counts two cores per chip. Recipes of equal sizes share a row: `search_r1:ppo` is `veritas`.

{runs}

Every episode has the mean length, half of the context. In a recipe that searches, the model samples half of the
episode; in others one reply of at most `max_new_tokens`. *Learner tokens*: tokens that the learner computes, with a
shared prompt once per group. *Updates*: optimiser steps per step of the run.

## The best plan of every case

Arithmetic: step time; mesh, decoding lanes per host / chips of a replica; memory per chip. A star means that this case
was compiled (see below). A dash means that nothing fits; the memory of the smallest plan follows.

{plans}

What fits on none of them:

{never}

The limit is the larger of two phases. One has the learner's state and its temporaries. The other has the learner's
state and an engine on every host, with all weights in bf16 over the chips of a replica, and a cache with room for the
conversations of the mean length plus a fifth. More chips do not make an engine smaller, unless it spans several hosts;
the search tries this if no engine of one host fits.

The table shows decoding's share of these steps. If it is large, more lanes would help, but lanes need memory. On many
chips, the limit is the length of an episode, whose tokens are sampled one after the other.

{drawing}

{held}

## What the compilers say

{versions}.

{compiled}

*Resident*: memory of a chip during the whole run. *Temporaries*: those of the program that needs most. *Largest peak*:
the compiler's peak for a single program, with its arguments. *Together*: resident memory and these temporaries.

The parts of a step's time, each with its limit, and the bytes that a chip sends:

{parts}

The accuracy of the arithmetic, over compiled cases that fit. The numbers of copies of an array that are live at the
same time were fitted to search_r1 on v5e-64 and four earlier compilations of Qwen2.5-7B, all for TPUs; only other cases
are predictions. Step times agree because both sides use the same arithmetic for operations and HBM traffic, and the
compiler's additional traffic rarely is the limit.

{good}

## When documents belong in a database

An index's folder is searched by the run's own host. A database ([Milvus, OpenSearch,
Elasticsearch](retrieval.md#documents-in-a-database)) is searched by its own machines. Gigabytes for passages of 100
words (0.6 KB of text) and vectors of 768 numbers; the first row is measured ([cost](retrieval.md#cost)), the others
are arithmetic:

| passages | text | BM25 | Flat, float32 | HNSW32 | IVF-PQ96 |
| --- | --- | --- | --- | --- | --- |
| 1M | 0.6 | 0.15 | 3.1 | 3.3 | 0.1 |
| 21M (Wikipedia) | 13 | 3.1 | 65 | 70 | 2.5 |
| 100M | 60 | 15 | 310 | 330 | 12 |
| 1,000M | 600 | 150 | 3,100 | 3,300 | 120 |

`search_r1` with Qwen2.5-7B on 8 × H200 plays 2,560 episodes in a step of 65 s. With two searches each these are 79
searches a second. Over 21M passages they keep busy, by the seconds a million queries of that page: BM25 33 cores,
Flat 31, IVF-PQ96 0.3, HNSW32 0.1; int8 on the eight GPUs themselves takes 0.1 % of their time.

- *Below the host's memory* (with HNSW32 some 3.9 GB per million passages: 16M on 64 GB, 130M on 512 GB), a folder is
  the cheaper place: no network, exact by default, and one command. Wikipedia fits in a host of 128 GB.
- *Beyond it*, or where several runs and other programs share the documents, or they change: a database. It needs the
  same memory on its own machines, once per replica. Filling it with Wikipedia sends 65 GB of vectors and 13 GB of
  text, after 0.2 hours of encoding on an H200 (compiled).
- *Per search* a batch of 64 queries sends 0.2 MB of vectors (in JSON 1 MB) and receives 0.1 MB of passages (three
  each): less than 1 ms at 10 Gbit/s, beside the time of the search itself.

## How it scales

Arithmetic, `search_r1`; circles in the figure are compiled.

{scaling}

![Step time and tokens a second against chips](scale.png)
"""
