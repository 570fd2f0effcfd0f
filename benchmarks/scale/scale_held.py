"""docs/scale.md's tables of the conversations that fit beside the train state, and of the parts of a step's time."""

from collections.abc import Callable, Mapping
from typing import Any

import scale_cases as cases
import scale_search as search

from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import summary

GIB, MIB = 2**30, 2**20
MODEL = "qwen2.5-7b"

# Conversations of a host before the cache was in pages: rows of the whole context in bfloat16, on the best plan of the
# arithmetic of commit 77fa9da (10 % free), with as many rows as then fill the chip. It knew no GPUs: H200's memory and
# bandwidth were added to its table of chips, and eight a host. None: its smallest cache did not fit.
BEFORE = {
  ("search_r1", "v5e-64"): 125,
  ("search_r1", "v5p-64"): 749,
  ("search_r1", "8 × H200"): 1476,
  ("when_to_search", "v5e-64"): None,
  ("when_to_search", "v5p-64"): 311,
  ("when_to_search", "8 × H200"): 336,
}

# What makes a step of search_r1 on v5e-64 shorter, or might: the settings that differ from the recipe's.
AIM = ("search_r1", "v5e-64")
TRIED = {
  "as the recipe is": {},
  "keys and values in int8": {"rollout.kv_dtype": "int8"},
  "one update a step: no pass for old log-probabilities": {"loss.minibatches": 1},
  "no KL: no pass for the reference": {"loss.kl": "none", "loss.kl_coef": 0.0},
  "both": {"loss.minibatches": 1, "loss.kl": "none", "loss.kl_coef": 0.0},
}


def reports() -> dict[tuple[str, str, str], Any]:
  """(recipe, slice, kv_dtype) → report of the best plan."""
  return {
    (run, where, kind): cases.plan(MODEL, run, where, kv_dtype=kind)[1]
    for run, where in BEFORE
    for kind in ("model", "int8")
  }


def conversations(results: Mapping[tuple[str, str, str], Any]) -> list[list[str]]:
  """A line for each case: what fitted before, and what fits in pages of bfloat16 and of int8."""
  lines = []
  for (run, where), before in BEFORE.items():
    line = [run, where, "–" if before is None else f"{before:,}"]
    for kind in ("model", "int8"):
      report = results[run, where, kind]
      times = "" if before is None else f" ({report.conversations / before:.1f} ×)"
      line.append(f"{report.conversations:,}{times}")
    wide, narrow = (results[run, where, kind] for kind in ("model", "int8"))
    line += [
      f"{wide.free / GIB:.1f} / {narrow.free / GIB:.1f}",
      f"{wide.conversation.reserved / MIB:.0f} / {wide.conversation.bytes / MIB:.0f} / "
      f"{narrow.conversation.bytes / MIB:.0f}",
      f"{cases.load_of(run).episodes // cases.SLICES[where].hosts:,}",
    ]
    lines.append(line)
  return lines


def parts(results: Mapping[tuple[str, str, str], Any]) -> list[list[str]]:
  """A line for each case: seconds of each program, and those of the learner's operations without remat at the peak."""
  names = ("learner: accumulate", "learner: score", "engine: prefill", "engine: decode")
  lines = []
  for (run, where, kind), report in results.items():
    programs = {program.name: program for program in report.programs}
    cells = []
    for name in names:
      seconds, bound = report.seconds(programs[name]) if name in programs else (0.0, "")
      cells.append(f"{programs[name].calls * seconds:.1f} {bound}" if bound else "")
    floor = report.needed_flops / summary.peak(report.topology)
    lines.append([run, where, "bfloat16" if kind == "model" else kind, f"{report.step_s:.1f}", *cells, f"{floor:.1f}"])
  return lines


def tried() -> list[list[str]]:
  """A line for each of TRIED: the best plan's step, and its learner's and engine's parts, in seconds."""
  lines, (run, where) = [], AIM
  for name, changes in TRIED.items():
    config = cases.RUNS[run].config()
    for path, value in changes.items():
      section, field = path.split(".")
      config[section][field] = value
    result = search.best(
      config,
      SHAPES[MODEL],
      cases.SLICES[where],
      margin=cases.MARGIN,
      fill=cases.FILL,
      drawn=cases.RUNS[run].drawn(config),
    )
    assert result is not None  # the recipe's own plan fits, and these need no more
    report = result[1]
    part = lambda kind, report=report: sum(
      program.calls * report.seconds(program)[0] for program in report.programs if program.name.startswith(kind)
    )
    lines.append([name, f"{report.step_s:.1f}", f"{part('learner'):.1f}", f"{part('engine'):.1f}"])
  return lines


def section(table: Callable[..., str]) -> str:
  """The page's section; `table` makes one of a head and lines."""
  result = reports()
  return SECTION.format(
    conversations=table(
      ["recipe", "slice", "before", "pages", "int8 pages", "GiB free", "MiB each", "episodes"], conversations(result)
    ),
    parts=table(
      ["recipe", "slice", "cache", "step, s", "gradient", "scoring", "prefill", "decode", "learner's least"],
      parts(result),
    ),
    tried=table(["search_r1 on v5e-64", "step, s", "learner", "engine"], tried()),
  )


SECTION = """## Conversations beside the train state

Qwen2.5-7B, on the best plan: conversations of the mean length for which a host's cache has room, as `ragrl check`
prints them. *Before*: rows of the whole context in bfloat16 (commit 77fa9da, by its own arithmetic). *GiB free*: for
the cache on a chip, in bfloat16 / with int8. *MiB each*: of a conversation on a chip, for the whole context / for the
filled pages / for the filled pages in int8. *Episodes*: per step and host. Longer conversations use the pages that
shorter ones leave free, and pages without room are swapped to the host's memory.

{conversations}

Each case holds four times as many as before: in bfloat16 on 8 × H200 and, for search_r1, on v5p-64, else with int8.
This has three causes. A conversation needs memory only for its filled pages, about half of the context: 1.9 ×. int8
with its scales takes 0.52 of bfloat16's memory: 1.9 ×. And while the engine samples, a chip holds neither the learner's
temporaries nor the gradient. On GPUs, the int8 pages of a layer have at most 2 GiB, because of the kernel's offsets. On
TPUs, attention to int8 pages is plain JAX, so int8 there gives more conversations but takes more time, as the next
table shows; on GPUs it takes no more time.

The parts of a step: seconds of each program, and its limit. *Learner's least*: the time of its operations at the chips'
peak, without remat's second forward pass and without padding.

{parts}

The aim for `search_r1` on v5e-64 was 25 s, from 65.9 s before there were pages. It is not met, and with this recipe no
plan can meet it, because the learner's least alone is more. These are five passes over 5.2M tokens: three for the
gradient, and two for old and reference log-probabilities. Replicas, lanes, blocks and int8 change only the rest:
remat's second pass, a quarter of the gradient's time (without it, a chip holds some 20 GB of activations per row),
prefill and decode. These changes were tried, each with its best plan by the same arithmetic:

{tried}

Leaving out a pass changes the algorithm, and even without both passes the step takes more than 25 s.
"""
