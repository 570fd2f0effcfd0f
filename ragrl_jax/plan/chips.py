"""Memory and link speeds of TPU chips and GPUs. Sources: Google's and NVIDIA's data sheets."""

import dataclasses

SHARE = 0.92  # usable share of a GPU's memory; CUDA's context and the buffers of NCCL and cuBLAS need the rest
JAX_SHARE = 0.75  # share of a GPU's memory that JAX allocates by default (XLA_PYTHON_CLIENT_MEM_FRACTION)


@dataclasses.dataclass(frozen=True)
class Chip:
  """One kind of TPU chip or GPU.

  Attributes:
    hbm: bytes of memory that programs may use.
    bandwidth: bytes per second of that memory.
    interconnect: bytes per second that the chip sends over all its links to neighbours (ICI, NVLink).
    network: bytes per second of a chip's share of the data centre's network. It connects slices, or hosts of GPUs.
    links: names of the interconnect and of the network.
  """

  hbm: float
  bandwidth: float
  interconnect: float
  network: float
  memory: float
  links: tuple[str, str]


def _tpu(limit: float, **speeds: float) -> Chip:
  return Chip(hbm=limit, memory=limit, links=("ici", "dcn"), **speeds)


def _gpu(memory: float, **speeds: float) -> Chip:
  return Chip(hbm=SHARE * memory, memory=memory, links=("nvlink", "network"), **speeds)


# By the first part of a topology's name. A TPU's memory is the limit in libtpu's message when it refuses a program. A
# GPU's is what CUDA reports. Its network is one adapter of 400 Gbit/s for each GPU, as in DGX and HGX.
CHIPS = {
  "v5e": _tpu(15.75 * 2**30, bandwidth=819e9, interconnect=200e9, network=3.125e9),
  "v5p": _tpu(95.74 * 2**30, bandwidth=2765e9, interconnect=600e9, network=6.25e9),
  "v6e": _tpu(31.25 * 2**30, bandwidth=1640e9, interconnect=448e9, network=12.5e9),
  "h100": _gpu(79.1 * 2**30, bandwidth=3352e9, interconnect=450e9, network=50e9),
  "h200": _gpu(139.7 * 2**30, bandwidth=4800e9, interconnect=450e9, network=50e9),
  "b200": _gpu(178.3 * 2**30, bandwidth=7672e9, interconnect=900e9, network=50e9),
}


def for_topology(topology: str) -> Chip:
  """The chip of a topology such as "v5e:2x4" or "h200:8".

  Raises:
    ValueError: its chip is not in CHIPS.
  """
  kind = topology.split(":")[0]
  if kind not in CHIPS:
    raise ValueError(
      f"topology {topology!r}: its chip must be one of {', '.join(CHIPS)}; for example v5e:2x4, v5p:4x4x4, h200:8."
    )
  return CHIPS[kind]
