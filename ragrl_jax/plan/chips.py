"""What a TPU chip has: memory, and the speeds of its links. Sources: the makers' data sheets."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
  """
  Attributes:
    hbm: bytes of memory that programs may use.
    bandwidth: of HBM, bytes a second.
    interconnect: bytes a second that leave the chip over all its links to neighbours.
    network: bytes a second of a chip's share in the data centre's network, which joins slices.
  """

  hbm: float
  bandwidth: float
  interconnect: float
  network: float


# By the first part of a topology's name. HBM: what libtpu lets a program use (it says so when it refuses one).
CHIPS = {
  "v5e": Chip(hbm=15.75 * 2**30, bandwidth=819e9, interconnect=200e9, network=3.125e9),
  "v5p": Chip(hbm=95.74 * 2**30, bandwidth=2765e9, interconnect=600e9, network=6.25e9),
  "v6e": Chip(hbm=31.25 * 2**30, bandwidth=1640e9, interconnect=448e9, network=12.5e9),
}


def of(topology: str) -> Chip:
  """The chip of a slice, "v5e:2x4".

  Raises:
    ValueError: a kind that is not in CHIPS.
  """
  kind = topology.split(":")[0]
  if kind not in CHIPS:
    raise ValueError(f"topology {topology!r}: its chip must be one of {', '.join(CHIPS)}.")
  return CHIPS[kind]
