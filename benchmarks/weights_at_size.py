r"""Cost of loading, saving and resharding weights of a published model's size: random values, eight devices.

Run:    python benchmarks/weights_at_size.py --shape qwen3-8b [--folder WHERE_THERE_IS_ROOM] [--no-reshard] [--json OUT]

  write    makes a Hugging Face folder: bfloat16, sharded safetensors, random values.
  load     a fresh process reads it onto a learner's mesh of eight simulated CPU devices (fsdp 4, tensor 2).
  save     writes the arrays to a second folder, whose tensors must equal those of the first bit for bit.
  reshard  converts them to an engine's layout (fsdp 2, tensor 4) by one compiled program, timed. Both layouts are in
           memory, and XLA's CPU backend moves all parameters at once: 4.5 times the weights.
Memory is the loading process's anonymous memory (RssAnon, every 10 ms). It includes Python and the compiler, but not
memory-mapped file pages. The aim for load and save is 1.25 times the weights.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import jax
import ml_dtypes
import numpy as np
from flax import nnx

from ragrl_jax.engine import loader
from ragrl_jax.models import families, mapping, tensors, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.parallel import mesh as mesh_lib

AIM = 1.25
BF16 = np.dtype(ml_dtypes.bfloat16)
LEARNER, ENGINE = dict(data=1, fsdp=4, tensor=2), dict(data=2, tensor=4)
SHARD_BYTES = 2_000_000_000
BLOCK = 2**24  # values drawn at a time


def write(folder: pathlib.Path, config: DecoderConfig, seed: int = 0) -> int:
  """Writes a folder of random weights, ± 2^-6 to 2^-5, and returns their size in bytes."""
  folder.mkdir(parents=True, exist_ok=True)
  abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[1]
  draw = np.random.default_rng(seed)
  entries = [
    (tensor, shape, lambda shape=shape: _random(draw, shape))
    for name, leaf in mapping.named(abstract)
    for tensor, shape in mapping.tensor_names(families.tensors(config.family), name, leaf.shape)
  ]
  tensors.write(folder, entries, BF16, shard_bytes=SHARD_BYTES)
  (folder / "config.json").write_text(json.dumps({**config.to_hf(), "torch_dtype": "bfloat16"}))
  return sum(2 * int(np.prod(shape)) for _, shape, _ in entries)


def _random(draw, shape):
  """Yields parts along the first axis, with sign and mantissa from random bits."""
  rows = max(1, BLOCK // int(np.prod(shape[1:])))
  for start in range(0, shape[0], rows):
    size = (min(rows, shape[0] - start), *shape[1:])
    bits = np.frombuffer(draw.bytes(2 * int(np.prod(size))), np.uint16)
    yield ((bits & 0x807F) | np.uint16(121 << 7)).view(BF16).reshape(size)


def differing(one: pathlib.Path, two: pathlib.Path, config: DecoderConfig) -> list[str]:
  """Names of the tensors that are not equal bit for bit or exist in one folder only."""
  folders = [tensors.TensorFolder(folder) for folder in (one, two)]
  names = [folder.names() for folder in folders]
  abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[1]
  shapes = {
    tensor: shape
    for name, leaf in mapping.named(abstract)
    for tensor, shape in mapping.tensor_names(families.tensors(config.family), name, leaf.shape)
  }
  bits = lambda folder, name: folder.open(name, shapes[name]).view(np.uint16)
  return sorted(names[0] ^ names[1]) + [
    name for name in sorted(names[0] & names[1]) if not np.array_equal(*(bits(folder, name) for folder in folders))
  ]


class Compilations:
  """Counts and times XLA compilations while it is open."""

  def __enter__(self):
    self.count, self.seconds, self._open = 0, 0.0, True
    jax.monitoring.register_event_duration_secs_listener(self._hear)
    return self

  def _hear(self, event, duration, **_):
    if self._open and event == "/jax/core/compile/backend_compile_duration":
      self.count, self.seconds = self.count + 1, self.seconds + duration

  def __exit__(self, *_):
    self._open = False


def reshard(model: Decoder, devices) -> dict[str, float]:
  """Learner's layout → engine's layout: number of programs compiled, seconds to compile, seconds to run."""
  params = nnx.split(model)[1]
  bring = loader.Caster(model.dtype, model.config, mesh_lib.make(devices, **ENGINE))
  with Compilations() as compiled:
    jax.block_until_ready(bring(params))
  seconds = []
  for _ in range(2):
    start = time.perf_counter()
    jax.block_until_ready(bring(params))
    seconds.append(time.perf_counter() - start)
  return dict(programs=compiled.count, compile_s=compiled.seconds, seconds=min(seconds))


def child(source: pathlib.Path, target: pathlib.Path, also_reshard: bool) -> None:
  """The measured process: prints the name of each stage at its start, and the results at the end."""
  say = lambda **what: print(json.dumps(what), flush=True)
  jax.config.update("jax_num_cpu_devices", 8)
  devices = jax.devices("cpu")
  say(stage="load")
  model, config = weights.load_pretrained(source, dtype=BF16, mesh=mesh_lib.make(devices, **LEARNER))
  jax.block_until_ready(nnx.split(model)[1])
  say(stage="save")
  weights.save_pretrained(model, config, target, shard_bytes=SHARD_BYTES)
  result = None
  if also_reshard:
    say(stage="reshard")
    result = reshard(model, devices)
  say(stage="end", reshard=result)


def watched(source: pathlib.Path, target: pathlib.Path, also_reshard: bool) -> dict:
  """Runs `child` and returns {stage: (seconds, peak bytes of anonymous memory)} and its results."""
  # The child gets the default allocator, because this process's tunables would keep freed memory.
  environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
  process = subprocess.Popen(
    [sys.executable, __file__, "--child", str(source), str(target), *([] if also_reshard else ["--no-reshard"])],
    env=environment | dict(JAX_PLATFORMS="cpu"),
    text=True,
    stdout=subprocess.PIPE,
  )
  stage, peaks, begins, result = "start", {}, {}, {}

  def watch():
    while process.poll() is None:
      if (now := anonymous(process.pid)) > peaks.get(stage, 0):
        peaks[stage] = now
      time.sleep(0.01)

  watcher = threading.Thread(target=watch)
  watcher.start()
  for line in process.stdout:
    said = json.loads(line)
    stage, begins[said["stage"]] = said["stage"], time.perf_counter()
    result = said
  if process.wait():
    raise RuntimeError(f"the loading process ended with {process.returncode}; its error stands above.")
  watcher.join()
  names = list(begins)
  seconds = {name: begins[after] - begins[name] for name, after in zip(names, names[1:])}
  return dict(seconds=seconds, peaks={name: peaks[name] for name in seconds}, reshard=result["reshard"])


def anonymous(pid: int) -> int:
  """The process's anonymous memory in bytes; 0 after its end."""
  try:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
  except (FileNotFoundError, ProcessLookupError):
    return 0
  return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def run(config: DecoderConfig, folder: str | None, also_reshard: bool) -> dict:
  """Runs all stages in a temporary folder in `folder`. Returns seconds, peaks relative to the weights, differences."""
  with tempfile.TemporaryDirectory(dir=folder) as made:
    source, target = pathlib.Path(made) / "in", pathlib.Path(made) / "out"
    start = time.perf_counter()
    size = write(source, config)
    written = time.perf_counter() - start
    result = watched(source, target, also_reshard)
    return dict(
      bytes=size,
      seconds=dict(write=written) | result["seconds"],
      reshard=result["reshard"],
      ratios={name: peak / size for name, peak in result["peaks"].items()},
      differing=differing(source, target, config),
    )


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--shape", default="qwen3-1.7b", choices=SHAPES)
  cli.add_argument("--folder", help="where two copies of the weights have room; the system's by default")
  cli.add_argument("--no-reshard", action="store_true", help="leave out what holds both layouts at once")
  cli.add_argument("--json", default="", help="where to write the figures")
  cli.add_argument("--child", nargs=2, metavar=("SOURCE", "TARGET"), help=argparse.SUPPRESS)
  args = cli.parse_args()
  if args.child:
    child(*map(pathlib.Path, args.child), not args.no_reshard)
    return
  result = dict(shape=args.shape) | run(SHAPES[args.shape], args.folder, not args.no_reshard)
  print(f"{args.shape}: {result['bytes'] / 1e9:.2f} GB of weights in bfloat16")
  for name, seconds in result["seconds"].items():
    ratio = f"  peak {result['ratios'][name]:.3f} × the weights" if name in result["ratios"] else ""
    print(f"  {name:8s}{seconds:8.1f} s{ratio}")
  if result["reshard"]:
    one = result["reshard"]
    print(
      f"  resharding: {one['programs']} programs, {one['compile_s']:.1f} s to compile, {one['seconds']:.2f} s a run"
    )
  if args.json:
    pathlib.Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
  if result["differing"]:
    sys.exit(f"{len(result['differing'])} tensors came back changed, first {result['differing'][0]}.")
  if worst := [f"{name} {result['ratios'][name]:.3f}" for name in ("load", "save") if result["ratios"][name] > AIM]:
    sys.exit(f"more anonymous memory than {AIM} × the weights: {', '.join(worst)}.")


if __name__ == "__main__":
  main()
