"""Compiles the programs of benchmarks/gpu.py for one H200, without a GPU: `python benchmarks/gpu.py --compile`.

The compiler is JAX's CUDA plugin (the extra `gpu-check`). It counts kernels and bytes of the programs, but measures no
times. The counts are stored in docs/performance.json. A case that is stored is not compiled again.
"""

import importlib.metadata
import json
import pathlib
import subprocess
from typing import Any

import gpu_parts

from ragrl_jax import config as config_lib
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import compiled, gpus, index

KEPT = pathlib.Path(__file__).parents[1] / "docs" / "performance.json"
TOPOLOGY = "h200:1"
PROGRAMS = dict(decode="engine: decode", learn="learner: accumulate", switch="switch: weights")


def config_of(part: str, rank: int, sizes: gpu_parts.Sizes) -> Any:
  """The settings of a run whose programs are the same as those that gpu_parts.py measures."""
  config = config_lib.load("configs/search_r1.py")
  config.model.update(dict(dtype="bfloat16", remat=True))
  if rank:
    config.model.param_dtype = "bfloat16"
    config.model.lora.update(dict(rank=rank, alpha=2.0 * rank, layers=".*"))
  # gpu_parts decodes prompts and new tokens of these sizes, so that a conversation fills its context.
  config.rollout.update(
    dict(
      lanes=sizes.lanes,
      rows=sizes.lanes,
      context=sizes.prompt + sizes.new,
      chunk=sizes.chunk,
      prefill=sizes.prompt,
      page=128,
      max_new_tokens=sizes.new,
    )
  )
  config.loss.update(dict(kl="none", kl_coef=0.0, minibatches=1))
  config.learner.update(dict(micro_rows=sizes.micro_rows, row_lengths=(sizes.length,), logprob_chunk=1024))
  return config


def counts(part: str, shape: str) -> dict[str, Any]:
  """Compiles one case of benchmarks/gpu.py's WORK, and returns the compiler's counts as JSON values.

  Raises:
    RuntimeError: the compiler is missing.
  """
  sizes = gpu_parts.Sizes()
  if part == "search":
    asked = index.Index(sizes.vectors, sizes.dim, "bfloat16", sizes.queries, sizes.k)
    one = index.alone(asked, TOPOLOGY).program
    if one.error:
      raise RuntimeError(f"{part} does not compile: {one.error}")
    return _row(one, turns=1) | dict(rows=2 * sizes.vectors * sizes.dim)
  name, _, adapters = shape.partition("+")
  config = config_of(part, sizes.rank if adapters else 0, sizes)
  drawn = sizes.new / (sizes.prompt + sizes.new)
  report = compiled.check(config, TOPOLOGY, shape=name, only=(PROGRAMS[part],), fill=1.0, drawn=drawn)
  (one,) = report.programs
  if one.error:
    raise RuntimeError(f"{part} {shape} does not compile: {one.error}")
  return _row(one, turns=one.turns) | dict(layers=SHAPES[name].num_layers, weights=report.resident["engine: weights"])


def _row(one: Any, turns: int) -> dict[str, Any]:
  """A program's counts per call, or per iteration of its loop."""
  return dict(
    kernels=one.fewest // turns,
    host_loops=one.host_loops,
    collectives=sum(one.collectives.values()),
    temporaries=one.temporaries,
    moved=one.moved / turns,
    least=one.hbm / turns,
  )


def read() -> dict[tuple[str, str], dict[str, Any]]:
  """(part, shape) → counts, for the cases that are stored."""
  kept = json.loads(KEPT.read_text()) if KEPT.is_file() else []
  return {(row["part"], row["shape"]): row for row in kept}


def commit() -> str:
  """The short name of the commit that is checked out."""
  done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
  return done.stdout.strip() or "unknown"


def play(cases: list[tuple[str, str]]) -> None:
  """Compiles the cases that are not in KEPT, and writes them there one by one."""
  gpus.devices(TOPOLOGY)  # fails at once if the compiler is missing
  said = dict(plugin=importlib.metadata.version("jax-cuda12-plugin"), commit=commit())
  result = read()
  for part, shape in cases:
    if (part, shape) not in result:
      result[part, shape] = dict(part=part, shape=shape) | counts(part, shape) | said
      KEPT.write_text(json.dumps(list(result.values()), indent=1) + "\n")
      print(json.dumps(result[part, shape]), flush=True)
