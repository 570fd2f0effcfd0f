"""Memory and link speeds of TPU chips. Sources: Google's data sheets."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
  """One kind of TPU chip.

  Attributes:
    hbm: bytes of memory that programs may use.
    bandwidth: bytes per second of that memory.
    interconnect: bytes per second that the chip sends over all its links to neighbours.
    network: bytes per second of a chip's share of the data centre's network, which connects slices.
  """

  hbm: float
  bandwidth: float
  interconnect: float
  network: float


# By the first part of a topology's name. hbm is the limit in libtpu's message when it refuses a program.
CHIPS = {
  "v5e": Chip(hbm=15.75 * 2**30, bandwidth=819e9, interconnect=200e9, network=3.125e9),
  "v5p": Chip(hbm=95.74 * 2**30, bandwidth=2765e9, interconnect=600e9, network=6.25e9),
  "v6e": Chip(hbm=31.25 * 2**30, bandwidth=1640e9, interconnect=448e9, network=12.5e9),
}


def of(topology: str) -> Chip:
  """The chip of a topology such as "v5e:2x4".

  Raises:
    ValueError: its chip is not in CHIPS.
  """
  kind = topology.split(":")[0]
  if kind not in CHIPS:
    raise ValueError(f"topology {topology!r}: its chip must be one of {', '.join(CHIPS)}.")
  return CHIPS[kind]
