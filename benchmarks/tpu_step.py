"""Compiles the learner's `accumulate` (loss and gradient of a block of rows) for a TPU slice, without having one.

Run:    python benchmarks/tpu_step.py [--cases 2x8192,2x32768,28x2048,28x2048@O1] [--topology v5e:2x4] [--chunk 256]
        [--layers N] [--tokens T] [--text OUT.hlo]

Needs libtpu (pip install 'ragrl_jax[tpu]') and no TPU. The model has Qwen3-0.6B's widths and V 151,936, with fsdp over
all chips, one row per chip, remat, and bf16 computation with float32 master weights; no weights are created. A case is
LAYERSxTOKENS, or LAYERSxTOKENS@LEVEL with jax_optimization_level (O1 compiles four times as fast, does not overlap
collectives with computation, and needs more memory).
Memory is what the compiler reserves on one chip: temporaries, and the peak with the arguments. The compiler refuses a
program that does not fit. Seconds are for lowering and compiling in this process: CPU seconds on a busy machine, wall
time on a quiet one.
Nothing is executed, so these figures do not say how fast a step is.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu is only the compiler

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ragrl_jax.learner import step
from ragrl_jax.learner.settings import Settings
from ragrl_jax.learner.trained import Trained
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot
from ragrl_jax.plan.compiled import KINDS
from ragrl_jax.structs import Batch

CASES = "2x8192,2x32768,28x2048,28x2048@O1"
WIDTHS = dict(vocab_size=151_936, d_model=1024, num_heads=16, num_kv_heads=8, head_dim=128, d_ff=3072, rope_theta=1e6)


def lower(devices, layers, tokens, chunk):
  """`accumulate` of one block, a row a device, traced."""
  mesh = mesh_lib.make(devices, data=1, fsdp=-1)
  make = lambda: Decoder(
    DecoderConfig(num_layers=layers, **WIDTHS), rngs=nnx.Rngs(0), dtype=jnp.bfloat16, remat=True, mesh=mesh
  )
  settings = Settings(logprob_chunk=chunk)
  objective = lambda *args: step.policy_objective(*args, settings=settings)
  trained = Trained(nnx.eval_shape(make), optax.identity(), objective, trainable=nnx.Param, mesh=mesh, names=step.SUMS)
  rows = {
    field.name: jax.ShapeDtypeStruct(
      (mesh.shape["fsdp"], tokens), KINDS.get(field.name, jnp.float32), sharding=rules.batch_sharding(mesh)
    )
    for field in dataclasses.fields(Batch)
  }
  number = lambda *shape: jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  )
  sums = dict.fromkeys(step.SUMS, number())
  block = Batch(**rows | dict(until=None, states=None, places=None, routes=None))
  return trained.accumulate.lower(trained.params, sums, trained.params, trained.frozen, block, number(2), number())


def measure(devices, layers, tokens, chunk, text):
  wall, cpu = time.perf_counter(), time.process_time()
  try:
    compiled = lower(devices, layers, tokens, chunk).compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return "does not fit: " + " ".join(str(error).split())[:300]
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  memory = compiled.memory_analysis()
  if text:
    pathlib.Path(text).write_text(compiled.as_text())
  gib = lambda size: f"{size / 2**30:.3f} GiB"
  return (
    f"temporaries {gib(memory.temp_size_in_bytes)}, peak {gib(memory.peak_memory_in_bytes)}, {cpu:.1f} CPU s, "
    f"{wall:.1f} s wall"
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--cases", default=CASES)
  parser.add_argument("--layers", type=int, help="with --tokens: one case instead of --cases")
  parser.add_argument("--tokens", type=int)
  parser.add_argument("--topology", default="v5e:2x4")
  parser.add_argument("--chunk", type=int, default=256, help="tokens whose logits a chip holds at once")
  parser.add_argument("--text", help="file for the program of the last case")
  args = parser.parse_args()
  if (args.layers is None) != (args.tokens is None):
    parser.error("--layers and --tokens go together")
  cases = args.cases if args.layers is None else f"{args.layers}x{args.tokens}"
  try:
    devices = aot.devices(args.topology)
  except (RuntimeError, ValueError) as error:
    sys.exit(str(error))
  for case in cases.split(","):
    size, _, level = case.partition("@")
    layers, tokens = (int(n) for n in size.split("x"))
    jax.config.update("jax_optimization_level", level or "UNKNOWN")
    print(
      f"{args.topology}, {layers} layers, {tokens} tokens a chip{level and f', {level}'}: "
      + measure(devices, layers, tokens, args.chunk, args.text),
      flush=True,
    )


if __name__ == "__main__":
  main()
