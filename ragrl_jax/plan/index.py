"""Memory and time of exact dense search on TPUs or GPUs that this machine lacks.

The program of `retrieval/device.py` is compiled ahead of time. Nothing runs.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.plan import aot, chips, gpu_kernels, gpus
from ragrl_jax.plan.summary import Program, preallocated, seconds
from ragrl_jax.retrieval import device
from ragrl_jax.settings.fields import Checked, setting

VECTORS = "index: vectors"  # name of the vectors in the report's resident memory
SEARCH = "engine: search"  # name of the search, which runs while the engine samples


@dataclasses.dataclass(frozen=True)
class Index(Checked):
  """A dense index on the accelerators, and its searches."""

  passages: int = setting(dataclasses.MISSING, "number of its vectors", least=1)
  dim: int = setting(768, "length of a vector", least=1)
  dtype: str = setting("int8", "dtype of the vectors on the chips", choices=device.DTYPES)
  queries: int = setting(64, "queries per batch", least=1)
  top_k: int = setting(10, "passages per query; of bfloat16 and int8 four times as many are fetched", least=1)

  def shape(self, devices: list[jax.Device]) -> tuple[int, int]:
    """(rows on each of these chips, parts that they are in)."""
    parts, rows, *_ = device.cut(self.passages, devices)
    return parts * rows, parts

  def bytes(self, devices: list[jax.Device]) -> int:
    """Bytes on each of these chips."""
    scale = 4 if self.dtype == "int8" else 0
    return self.shape(devices)[0] * (self.dim * jnp.dtype(self.dtype).itemsize + scale)

  @property
  def candidates(self) -> int:
    """Number of candidates that the devices find for a query in the first search."""
    count = max(self.top_k + 8, 4 * self.top_k * (self.dtype != "float32"))
    return 1 << (count - 1).bit_length()


def search(index: Index, devices: list[jax.Device], *, calls: int = 1) -> Program:
  """The compiled search of one batch of queries, with the vectors split over these devices."""
  mesh, (parts, part, chunk, block) = Mesh(np.array(devices), (device.AXIS,)), device.cut(index.passages, devices)
  shape = lambda kind, axes, *size: jax.ShapeDtypeStruct(size, kind, sharding=NamedSharding(mesh, PartitionSpec(*axes)))
  share, total, rows = parts * part, part * len(devices), (device.AXIS,)
  halves = 2 if index.dtype == "int8" else 1  # of a query, see `device.DeviceIndex`
  lowered = device.scan_of(mesh, chunk=chunk, block=block, total=index.passages).lower(
    [shape(jnp.dtype(index.dtype), rows, total, index.dim)] * parts,
    [shape(jnp.float32, rows, total)] * parts if index.dtype == "int8" else None,
    shape(jnp.dtype(index.dtype), (), halves * index.queries, index.dim),
    shape(jnp.float32, (), halves * index.queries) if index.dtype == "int8" else None,
    shape(jnp.int32, (), index.candidates),
  )
  scores = 2 * 4 * halves * index.queries * share  # written by the product and read by the maxima
  flops, hbm = 2.0 * halves * index.dim * index.queries * share, float(index.bytes(devices) + scores)
  return program_of(SEARCH, lowered, devices, flops=flops, hbm=hbm, calls=calls)


@dataclasses.dataclass(frozen=True)
class Alone:
  """An index on chips that hold nothing else.

  Attributes:
    resident: bytes of vectors per chip.
    program: the compiled search.
  """

  index: Index
  topology: str
  devices: int
  resident: int
  program: Program

  @property
  def left(self) -> float:
    """Free bytes of a chip, beside vectors and temporaries."""
    return chips.for_topology(self.topology).hbm - self.resident - self.program.temporaries

  @property
  def fits(self) -> bool:
    """Whether the search compiles, and vectors and temporaries fit on a chip."""
    return not self.program.error and self.left >= 0

  def to_json(self) -> dict[str, Any]:
    """The report as JSON values."""
    time_s, bound = seconds(self.topology, self.program)
    return dataclasses.asdict(self) | dict(left=self.left, fits=self.fits, seconds=time_s, bound=bound)

  def text(self) -> str:
    """The report as lines."""
    job, asked, gib = self.program, self.index, 2.0**30
    time_s, bound = seconds(self.topology, job)
    kernels = f"; {job.kernels} kernels" if gpus.is_gpu(self.topology) else ""
    counts = ", ".join(f"{count} {kind}" for kind, count in job.collectives.items()) or "none"
    return "\n".join(
      [
        f"{asked.passages:,} vectors of {asked.dim} in {asked.dtype} on {self.topology}, {self.devices} chips; "
        f"{asked.queries} queries a batch, {asked.candidates} candidates each",
        f"resident on a chip   {self.resident / gib:8.2f} GiB",
        f"temporaries          {job.temporaries / gib:8.2f} GiB",
        f"left on a chip       {self.left / gib:8.2f} GiB of {chips.for_topology(self.topology).hbm / gib:.2f}",
        f"least ms a batch     {1000 * time_s:8.2f} ({bound})",
        f"{'It fits' if self.fits else 'IT DOES NOT FIT'}; compiled in {job.compile_s:.0f} s{kernels}; "
        f"collectives: {counts}.",
        *([f"{job.name} does not compile: {job.error}"] if job.error else []),
        *(preallocated(self.topology, self.resident + job.temporaries) if self.fits else []),
      ]
    )


def alone(index: Index, topology: str) -> Alone:
  """Memory and time of an index on these chips if they hold nothing else.

  Raises:
    ValueError: the topology is unknown.
    gpus.CompilerMissing: the compiler is not installed.
  """
  chips.for_topology(topology)
  devices = aot.devices(topology)
  return Alone(index, topology, len(devices), index.bytes(devices), search(index, devices))


def program_of(name: str, lowered, devices: list[jax.Device], *, flops: float, hbm: float, calls: int = 1) -> Program:
  """The compiled program, measured; or with the reason for which the compiler refuses it."""
  start = time.perf_counter()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    refused = aot.refused(error)
    return Program(name, time.perf_counter() - start, flops=flops, hbm=hbm, calls=calls, error=refused)
  compile_s, text = time.perf_counter() - start, compiled.as_text()
  counts = dataclasses.asdict(gpu_kernels.counted(text)) if devices[0].platform == "gpu" else {}
  fields = aot.measured(compiled, aot.collectives(text))
  return Program(name, compile_s, flops=flops, hbm=hbm, calls=calls, **fields, **counts)
