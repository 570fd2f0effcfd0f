"""Memory and best speed of a run: ragrl check --config arena --topology v5e:8x8

Compiles every program of a run for TPUs or GPUs. It needs neither the devices nor weights, only the compiler: libtpu
(pip install 'ragrl_jax[tpu]') or JAX's CUDA plugin (pip install 'ragrl_jax[gpu-check]'). Prints the resident memory per
chip, and for each program its temporaries, work, traffic, collectives and shortest possible time. On GPUs it also
prints the kernels that a program launches, and the loops that wait for the host. Exits with 1 if the run does not fit.

With --passages N it adds a dense index of N passages, which the chips of each host search exactly. No setting of a run
puts one there: a program of yours can (`load_index(…, search="device")`), and `ragrl serve-index --search device` on
chips of its own. Without --config the index is alone: ragrl check --topology h200:1 --passages 21015324
"""

import json
import os
import sys

from absl import app, flags

from ragrl_jax.cli import commands
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import compiled, index as index_lib, summary
from ragrl_jax.retrieval import device

CONFIG = commands.config_flag(required=False)
TOPOLOGY = flags.DEFINE_string(
  "topology",
  None,
  "TPU slice: v5e:2x4, v5e:16x16, v6e:8x8, v5p:4x4x4, …; GPUs: h100:8, b200:8, h200:2x8 (two hosts), …",
  required=True,
)
SLICES = flags.DEFINE_integer("slices", 1, "Number of TPU slices, joined by the data centre's network.")
SHAPE = flags.DEFINE_string("shape", "", f"Model: {', '.join(SHAPES)}; by default that of config.model.")
FILL = flags.DEFINE_float("fill", 0.5, "Mean length of an episode as a share of config.rollout.context.")
DRAWN = flags.DEFINE_float("drawn", 0.5, "Share of an episode that the model writes.")
PASSAGES = flags.DEFINE_integer("passages", 0, "Vectors of a dense index on the chips; 0: none.")
DIM = flags.DEFINE_integer("dim", 768, "Length of the vectors.")
INDEX_DTYPE = flags.DEFINE_enum("index_dtype", "int8", device.DTYPES, "Dtype of the vectors on the chips.")
QUERIES = flags.DEFINE_integer("queries", 64, "Queries per batch.")
ONLY = flags.DEFINE_list("only", [], "Programs to compile, separated by commas; all by default.")
JSON = flags.DEFINE_bool("json", False, "Print JSON.")


def main():
  commands.on_cpu()  # libtpu and the CUDA plugin serve only as compilers
  os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
  index = None
  if PASSAGES.value:
    index = index_lib.Index(PASSAGES.value, DIM.value, INDEX_DTYPE.value, QUERIES.value)
  elif of_index := commands.given(DIM, INDEX_DTYPE, QUERIES):
    raise app.UsageError(f"{of_index} without --passages: only an index has these. Give it, or leave them out.")
  if CONFIG.value is None:
    if index is None:
      raise ValueError("give --config to compile a run, --passages to compile an index, or both.")
    if of_run := commands.given(SLICES, SHAPE, FILL, DRAWN, ONLY):
      raise app.UsageError(f"{of_run} without --config: only a run has these. Give it, or leave them out.")
    found = index_lib.alone(index, TOPOLOGY.value)
    print(json.dumps(found.to_json(), indent=1) if JSON.value else found.text())
    sys.exit(not found.fits)
  report = compiled.check(
    CONFIG.value, TOPOLOGY.value, slices=SLICES.value, shape=SHAPE.value, fill=FILL.value, drawn=DRAWN.value,
    only=tuple(ONLY.value), index=index,
  )  # fmt: skip
  summary.refuse_unknown(ONLY.value, report)
  print(json.dumps(report.to_json(), indent=1) if JSON.value else summary.text(report))
  sys.exit(not report.fits)
