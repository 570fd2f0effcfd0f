"""Does it fit, and how fast could it be: python launchers/compile_check.py --config configs/arena.py --topology v5e:8x8

Compiles every program of a run for a TPU slice. It needs no TPU and no weights, but libtpu (pip install
'ragrl_jax[tpu]'). Prints per chip: what stays in HBM, and for each program its temporaries, its work, traffic and
collectives, and the least time it can take. Exits with 1 if the run does not fit.
"""

import json
import os
import sys

from absl import flags
from ml_collections import config_flags

from ragrl_jax.cli import commands

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu serves only as the compiler

from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import compiled

CONFIG = config_flags.DEFINE_config_file("config", help_string=commands.CONFIG_HELP, lock_config=True)
TOPOLOGY = flags.DEFINE_string("topology", None, "Slice: v5e:2x4, v5e:16x16, v6e:8x8, v5p:4x4x4, …")
SLICES = flags.DEFINE_integer("slices", 1, "Number of slices, joined by the data centre's network.")
SHAPE = flags.DEFINE_string("shape", "", f"Model: {', '.join(SHAPES)}; by default what config.model says.")
FILL = flags.DEFINE_float("fill", 0.5, "Mean length of an episode as a share of config.rollout.context.")
DRAWN = flags.DEFINE_float("drawn", 0.5, "Share of an episode that the model writes.")
JSON = flags.DEFINE_bool("json", False, "Print JSON.")


def main(_):
  """Runs `ragrl check`."""
  report = compiled.check(
    CONFIG.value, TOPOLOGY.value, slices=SLICES.value, shape=SHAPE.value, fill=FILL.value, drawn=DRAWN.value
  )
  print(json.dumps(report.to_json(), indent=1) if JSON.value else text(report))
  sys.exit(not report.fits)


def text(report: compiled.Report) -> str:
  """The report as tables."""
  gib = lambda size: f"{size / 2**30:.2f}"
  axes = " · ".join(f"{name} {size}" for name, size in report.mesh.items())
  stays = [
    ("resident on a chip", "GiB"),
    *((name, gib(size)) for name, size in report.resident.items()),
    ("largest temporaries", gib(max(program.temporaries for program in report.programs))),
    ("together", gib(report.needed)),
    ("a chip has", gib(report.chip.hbm)),
  ]
  rows = [
    (
      "program",
      "compile s",
      "temporaries GiB",
      "peak GiB",
      "TFLOP",
      "HBM GB",
      "sent GB",
      "between slices GB",
      "collectives",
      "least ms",
      "bound",
      "calls a step",
    )
  ]
  for one in report.programs:
    seconds, bound = report.seconds(one)
    said = ", ".join(f"{count} {kind}" for kind, count in one.collectives.items())
    rows.append(
      (
        one.name,
        f"{one.compile_s:.0f}",
        gib(one.temporaries),
        gib(one.peak),
        f"{one.flops / 1e12:.2f}",
        f"{one.hbm / 1e9:.2f}",
        f"{one.sent / 1e9:.2f}",
        f"{one.dcn / 1e9:.2f}",
        said or "-",
        f"{1000 * seconds:.1f}",
        bound,
        str(one.calls),
      )
    )
  errors = [f"{one.name} does not compile: {one.error}" for one in report.programs if one.error]
  return "\n\n".join(
    [
      f"{report.slices} × {report.topology}, {report.devices} chips, {report.hosts} hosts; {axes}; "
      f"{report.parameters / 1e9:.2f}B parameters; {report.rows} cache rows a host",
      columns(stays),
      columns(rows),
      *errors,
      f"{'It fits' if report.fits else 'IT DOES NOT FIT'}. At the roofline a step of {report.tokens} tokens takes "
      f"{report.step_s:.1f} s: {report.tokens / report.step_s:,.0f} tokens/s, the learner's MFU {report.mfu:.0%}.",
    ]
  )


def columns(rows: list[tuple[str, ...]]) -> str:
  """Cells aligned, the first column to the left."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return "\n".join(
    "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(zip(row, widths)))
    for row in rows
  )


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["config", "topology"])
  commands.run(main)
