"""Does it fit, and how fast could it be: python launchers/compile_check.py --config configs/arena.py --topology v5e:8x8

Compiles every program of a run for TPUs or GPUs. It needs none of them and no weights, but their compiler: libtpu (pip
install 'ragrl_jax[tpu]') or JAX's CUDA plugin (pip install 'ragrl_jax[gpu-check]'). Prints per chip: what stays in
memory, and for each program its temporaries, its work, traffic and collectives, and the least time it can take; on GPUs
also the kernels that it launches, and the loops that wait for the host. Exits with 1 if the run does not fit.
"""

import json
import os
import sys

from absl import flags
from ml_collections import config_flags

from ragrl_jax.cli import commands

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu and the CUDA plugin serve only as compilers
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import compiled, report_tables

CONFIG = config_flags.DEFINE_config_file("config", help_string=commands.CONFIG_HELP, lock_config=True)
TOPOLOGY = flags.DEFINE_string(
  "topology",
  None,
  "TPU slice: v5e:2x4, v5e:16x16, v6e:8x8, v5p:4x4x4, …; GPUs: h100:8, b200:8, h200:2x8 (two hosts), …",
)
SLICES = flags.DEFINE_integer("slices", 1, "Number of TPU slices, joined by the data centre's network.")
SHAPE = flags.DEFINE_string("shape", "", f"Model: {', '.join(SHAPES)}; by default what config.model says.")
FILL = flags.DEFINE_float("fill", 0.5, "Mean length of an episode as a share of config.rollout.context.")
DRAWN = flags.DEFINE_float("drawn", 0.5, "Share of an episode that the model writes.")
JSON = flags.DEFINE_bool("json", False, "Print JSON.")


def main(_):
  """Runs `ragrl check`."""
  report = compiled.check(
    CONFIG.value, TOPOLOGY.value, slices=SLICES.value, shape=SHAPE.value, fill=FILL.value, drawn=DRAWN.value
  )
  print(json.dumps(report.to_json(), indent=1) if JSON.value else report_tables.text(report))
  sys.exit(not report.fits)


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["config", "topology"])
  commands.run(main)
