"""Compiler targets for NVIDIA GPUs that this machine lacks.

JAX's CUDA plugin (the extra `gpu-check`) contains the whole compiler. It compiles for a GPU from a description of it.
"""

import dataclasses
import os
import re

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import topologies

from ragrl_jax.plan import chips

MOST = 8  # most GPUs per host
CUDNN = 91_000  # the target's dnn_version as a number


@dataclasses.dataclass(frozen=True)
class Gpu:
  """Properties of a GPU that the compiler needs. Memory and bandwidth are in `chips.CHIPS`.

  Attributes:
    capability: the major number of its compute capability.
    cores: number of streaming multiprocessors.
    l2: bytes of the level 2 cache.
    clock_ghz: the highest clock of the multiprocessors.
    pcie: bytes per second to the host.
  """

  name: str
  capability: int
  cores: int
  l2: int
  clock_ghz: float
  pcie: int


# Sources: NVIDIA's data sheets, and what `cudaGetDeviceProperties` reports.
GPUS = {
  "h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 50 * 2**20, 1.98, 32 * 2**30),
  "h200": Gpu("NVIDIA H200", 9, 132, 50 * 2**20, 1.98, 32 * 2**30),
  "b200": Gpu("NVIDIA B200", 10, 148, 132_644_864, 1.965, 64 * 2**30),
}

# XLA's GpuTargetConfigProto. The limits of a block and of a multiprocessor are those of compute capabilities 9.0 and
# 10.0. The accelerated features are instructions that only this generation has, such as wgmma. It names no version of
# CUB: for a sort by CUB the compiler would load the CUDA runtime. So sorts are XLA's own here.
TARGET = """gpu_device_info {{
  name: "{gpu.name}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {gpu.capability} feature_extension: ACCELERATED_FEATURES }}
  core_count: {gpu.cores}
  fpus_per_core: 128
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth}
  l2_cache_size: {gpu.l2}
  pcie_bandwidth: {gpu.pcie}
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  device_address_bits: 64
  ecc_enabled: true
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{gpu.name}"
"""


def is_gpu(topology: str) -> bool:
  """Whether the topology names GPUs, such as "h200:8"."""
  return topology.partition(":")[0] in GPUS


def hosts(topology: str) -> tuple[int, int]:
  """(number of hosts, GPUs a host): (1, 8) for "h200:8" and (2, 8) for "h200:2x8".

  Raises:
    ValueError: the topology says something else, or more than `MOST` GPUs a host.
  """
  match = re.fullmatch(r"\w+:(?:([1-9]\d*)x)?([1-9]\d*)", topology)
  if not match or int(match[2]) > MOST:
    kind = topology.partition(":")[0]
    raise ValueError(
      f"topology {topology!r}: it must be {kind}:N with 1 to {MOST} GPUs of one host, or {kind}:HxN for H such hosts."
    )
  return int(match[1] or 1), int(match[2])


class CompilerMissing(NotImplementedError):
  """The compiler for these devices is not installed: libtpu, or JAX's CUDA plugin."""


def target(kind: str) -> str:
  """The compiler's description of one GPU, as text; `kind` is a key of `GPUS`."""
  chip = chips.CHIPS[kind]
  return TARGET.format(gpu=GPUS[kind], memory=round(chip.memory), bandwidth=round(chip.bandwidth))


def devices(topology: str) -> list[jax.Device]:
  """The GPUs of a topology, to make a mesh of and compile for; those of a host are neighbours.

  Raises:
    CompilerMissing: the CUDA plugin is not installed.
    ValueError: not a topology of GPUs.
  """
  number, each = hosts(topology)
  os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # the compiler needs none of CUDA's libraries
  _without_cudnn()
  try:
    # Partitions × hosts of a partition × GPUs a host. NVLink joins the GPUs of one host only.
    description = topologies.get_topology_desc(
      platform="cuda", topology=f"{number}x1x{each}", target_config=target(topology.partition(":")[0])
    )
  except jax.errors.JaxRuntimeError:
    raise
  except (ImportError, RuntimeError) as error:
    raise CompilerMissing(
      "compiling for GPUs needs JAX's CUDA plugin in JAX's version: "
      f"pip install 'ragrl_jax[gpu-check]' jax-cuda12-plugin=={jax.__version__}."
    ) from error
  return list(description.devices)


def _without_cudnn() -> None:
  """Lets JAX lower cuDNN's attention where cuDNN is not installed. XLA compiles it from the target's version alone.

  JAX asks the GPU that is there for its generation; all of GPUS have what it asks for.
  """
  if jax.default_backend() != "gpu":
    cudnn.check_compute_capability = lambda capability: True
  try:
    cudnn.check_cudnn_version()
  except RuntimeError:
    cudnn.check_cudnn_version = lambda: CUDNN
