"""What a run's programs need and take on a slice: compiled, or by arithmetic."""

import dataclasses
from typing import Any

from ragrl_jax.learner import flops
from ragrl_jax.plan import chips


@dataclasses.dataclass(frozen=True)
class Program:
  """One compiled program; memory in bytes a chip, work and traffic a call.

  Attributes:
    temporaries, peak: what it needs beside its arguments, and the most that lives at once with them.
    flops: a chip's share of what is computed, remat's second forward pass included.
    hbm: bytes a chip reads and writes at least.
    sent: bytes a chip sends and receives in collectives, within its slice.
    dcn: bytes a chip sends or receives, whichever is more, over the data centre's network.
    collectives: kind → how many a call.
    calls: in one training step.
    error: why it does not compile; "" if it does.
  """

  name: str
  compile_s: float
  temporaries: int = 0
  peak: int = 0
  flops: float = 0.0
  hbm: float = 0.0
  sent: float = 0.0
  dcn: float = 0.0
  collectives: dict[str, int] = dataclasses.field(default_factory=dict)
  calls: int = 1
  error: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
  """What a slice has to hold and do for one run.

  Attributes:
    devices, hosts: of the slice.
    mesh: its axes' sizes.
    parameters: of the model.
    resident: what stays on a chip for the whole run, by name, in bytes.
    programs: all of them.
    rows: cache rows of a host.
    tokens: of one step's episodes, as they were assumed.
    needed_flops: a chip's share of the learner's work in a step, remat's second pass left out.
  """

  topology: str
  slices: int
  devices: int
  hosts: int
  mesh: dict[str, int]
  parameters: int
  resident: dict[str, int]
  programs: tuple[Program, ...]
  rows: int
  tokens: int
  needed_flops: float

  @property
  def chip(self) -> chips.Chip:
    return chips.of(self.topology)

  @property
  def peak(self) -> float:
    """bf16 operations a second of a chip."""
    return dict(flops.PEAKS)[self.topology.split(":")[0]]

  @property
  def needed(self) -> float:
    """Bytes a chip: all that is resident, and the temporaries of the program that needs most."""
    return sum(self.resident.values()) + max(program.temporaries for program in self.programs)

  @property
  def fits(self) -> bool:
    return not any(program.error for program in self.programs) and self.needed <= self.chip.hbm

  def seconds(self, program: Program) -> tuple[float, str]:
    """(the least a call can take, what bounds it)."""
    chip = self.chip
    return max(
      (program.flops / self.peak, "compute"),
      (program.hbm / chip.bandwidth, "hbm"),
      (program.sent / chip.interconnect, "ici"),
      (program.dcn / chip.network, "dcn"),
    )

  @property
  def step_s(self) -> float:
    """The least a training step can take: nothing overlaps, nothing waits."""
    return sum(program.calls * self.seconds(program)[0] for program in self.programs)

  def to_json(self) -> dict[str, Any]:
    found = dataclasses.asdict(self) | dict(
      needed=self.needed,
      capacity=self.chip.hbm,
      fits=self.fits,
      step_s=self.step_s,
      tokens_per_second=self.tokens / self.step_s,
      mfu=self.mfu,
    )
    for row, program in zip(found["programs"], self.programs):
      row["seconds"], row["bound"] = self.seconds(program)
    return found

  @property
  def mfu(self) -> float:
    """Of the learner's programs at the roofline: remat's second pass and rows' padding are work nobody asked for."""
    mine = [program for program in self.programs if program.name.startswith("learner")]
    seconds = sum(program.calls * self.seconds(program)[0] for program in mine)
    return self.needed_flops / (seconds * self.peak) if seconds else 0.0
