"""The report on a run's programs on TPUs or GPUs: memory, traffic and time, from compilation or by arithmetic."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ragrl_jax.core.text import aligned
from ragrl_jax.learner import flops
from ragrl_jax.plan import chips, gpus
from ragrl_jax.plan.memory import GRADIENT

LEARNER = "learner"  # prefix of the names of the learner's programs and memory
ENGINE = "engine"  # prefix of the names of the engine's programs and memory
SWITCH = "switch"  # prefix of the names of programs that copy the learner's weights to the engine
CACHE = "engine: cache"
VALUES = "learner critic: values"


@dataclasses.dataclass(frozen=True)
class Program:
  """One program. Memory is in bytes per chip, work and traffic are per chip and call.

  Attributes:
    temporaries, peak: memory beside its arguments, and the largest memory in use with its arguments.
    flops: operations, remat's second forward pass included.
    hbm: lower bound on the bytes read from and written to HBM.
    sent: bytes sent and received in collectives within the slice, or within a host of GPUs.
    dcn: bytes sent or received (the larger number) over the data centre's network.
    collectives: kind → number per call.
    crossing: the same for collectives between hosts of GPUs.
    calls: number of calls in one training step.
    turns: iterations of its outermost loop per call: the tokens that decoding samples for a lane.
    kernels, host_loops, host_branches, fewest: of a call on a GPU, see `plan/gpu_kernels.py`; 0 on TPUs, where a
      program is one launch.
    moved: bytes that the kernels of a call on a GPU read and write, see `plan/gpu_kernels.py`; 0 on TPUs.
    error: why the program does not compile; "" if it compiles.
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
  crossing: dict[str, int] = dataclasses.field(default_factory=dict)
  calls: int = 1
  turns: int = 1
  kernels: int = 0
  host_loops: int = 0
  host_branches: int = 0
  fewest: int = 0
  moved: float = 0.0
  error: str = ""


def peak(topology: str) -> float:
  """The peak of bf16 operations per second of this topology's chips."""
  return dict(flops.PEAKS)[topology.split(":")[0]]


def seconds(topology: str, program: Program) -> tuple[float, str]:
  """(lower bound on the seconds of a call, the resource that bounds it: compute, hbm, or one of `Chip.links`)."""
  chip = chips.for_topology(topology)
  return max(
    (program.flops / peak(topology), "compute"),
    (program.hbm / chip.bandwidth, "hbm"),
    (program.sent / chip.interconnect, chip.links[0]),
    (program.dcn / chip.network, chip.links[1]),
  )


@dataclasses.dataclass(frozen=True)
class Conversation:
  """Memory of a conversation of the mean length in an engine's cache.

  Attributes:
    tokens: capacity of its pages in tokens.
    bytes: bytes of these pages per chip.
    reserved: bytes per chip if a conversation reserved the whole context in bfloat16, for comparison.
    replicas: replicas of the engine.
    most: most conversations of a replica if the kernel limits them; None without a limit.
  """

  tokens: int
  bytes: float
  reserved: float
  replicas: int
  most: int | None = None


@dataclasses.dataclass(frozen=True)
class Report:
  """Memory and work of one run on TPU slices or hosts of GPUs.

  Attributes:
    topology, slices: the topology of a slice, and the number of slices. For GPUs the topology has all of them.
    resident: bytes that stay on a chip for the whole run, by name.
    tokens: assumed number of tokens of a step's episodes.
    together: whether the engine samples while the learner works (config.rollout.ahead). Then both need memory.
    span: hosts per engine.
    fewest: the fewest hosts on which an engine's weights fit beside the train state; None if no number suffices.
    needed_flops: a chip's share of the learner's operations in a step, without remat's second forward pass.
    conversation: memory of a conversation in the cache.
    partial: whether only some of the run's programs were compiled. Memory and time of the others are then unknown.
    base: bytes per chip of those of the engine's weights that adapters leave as they are. It keeps them in all steps.
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
  together: bool
  conversation: Conversation
  span: int = 1
  fewest: int | None = 1
  partial: bool = False
  base: int = 0

  @property
  def chip(self) -> chips.Chip:
    """The kind of chip."""
    return chips.for_topology(self.topology)

  @property
  def needed(self) -> float:
    """Bytes per chip that the larger phase needs.

    The engine's cache and weights, but for the base of adapters, are freed while the learner works, and the gradient
    while the engine works. The cache is allocated after the weights have been copied.
    """
    engine = sum(size for name, size in self.resident.items() if name.startswith(ENGINE))
    gradient, cache = self.resident[GRADIENT], self.resident.get(CACHE, 0)
    stays = sum(self.resident.values()) - engine - gradient
    if self.together:
      return stays + engine + gradient + max(map(self._room, (ENGINE, SWITCH, LEARNER)))
    switching = engine - cache + self._room(SWITCH)
    return stays + max(engine + self._room(ENGINE), switching, self.base + gradient + self._room(LEARNER))

  def _room(self, phase: str) -> float:
    """Largest temporaries of the programs of this phase."""
    return max((program.temporaries for program in self.programs if program.name.startswith(phase)), default=0)

  @property
  def free(self) -> float:
    """Bytes of a chip that are free for the cache while the engine samples."""
    stays = sum(size for name, size in self.resident.items() if name != CACHE)
    if self.together:
      return self.chip.hbm - stays - max(map(self._room, (ENGINE, SWITCH, LEARNER)))
    return self.chip.hbm - (stays - self.resident[GRADIENT]) - self._room(ENGINE)

  @property
  def conversations(self) -> int:
    """Conversations of the mean length that an engine's cache can hold beside the train state."""
    size = self.conversation
    most = max(0, int(self.free // size.bytes))
    return size.replicas * (most if size.most is None else min(most, size.most))

  @property
  def reserved_rows(self) -> int:
    """`conversations` if each conversation reserved the whole context in bfloat16."""
    return self.conversation.replicas * max(0, int(self.free // self.conversation.reserved))

  @property
  def fits(self) -> bool:
    """Whether all programs compile and the memory needed fits on a chip."""
    return not any(program.error for program in self.programs) and self.needed <= self.chip.hbm

  def seconds(self, program: Program) -> tuple[float, str]:
    """See `seconds` of this module."""
    return seconds(self.topology, program)

  @property
  def step_s(self) -> float:
    """Sum of all calls' lower bounds, in seconds: a training step whose calls neither overlap nor wait."""
    return sum(program.calls * self.seconds(program)[0] for program in self.programs)

  def to_json(self) -> dict[str, Any]:
    """The report as JSON values, with the computed properties; without those of a step if the report is partial."""
    result = dataclasses.asdict(self) | dict(
      needed=self.needed,
      capacity=self.chip.hbm,
      fits=self.fits,
      free=self.free,
      conversations=self.conversations,
      reserved_rows=self.reserved_rows,
    )
    if not self.partial:
      per_second = self.tokens / self.step_s if self.step_s else 0.0
      result |= dict(step_s=self.step_s, tokens_per_second=per_second, mfu=self.mfu)
    for row, program in zip(result["programs"], self.programs):
      row["seconds"], row["bound"] = self.seconds(program)
    return result

  @property
  def mfu(self) -> float:
    """Model FLOPs utilisation of the learner at the roofline; remat's second pass and padding do not count as work."""
    learner_programs = [program for program in self.programs if program.name.startswith(LEARNER)]
    seconds = sum(program.calls * self.seconds(program)[0] for program in learner_programs)
    return self.needed_flops / (seconds * peak(self.topology)) if seconds else 0.0


def refuse_unknown(only: Sequence[str], report: Report) -> None:
  """Raises a ValueError if --only names a program that the run does not have."""
  programs = [program.name for program in report.programs]
  if unknown := [name for name in only if name not in programs]:
    raise ValueError(
      f"--only={','.join(only)}: the run has no program {unknown[0]!r}. Names are as in the table without --only, such "
      "as 'learner: accumulate' or 'engine: decode'."
    )


def text(report: Report) -> str:
  """The report as tables."""
  gib = lambda size: f"{size / 2**30:.2f}"
  axes = " · ".join(f"{name} {size}" for name, size in report.mesh.items())
  stays = [
    ("resident on a chip", "GiB"),
    *((name, gib(size)) for name, size in report.resident.items()),
    ("largest temporaries", gib(max(program.temporaries for program in report.programs))),
    ("together", gib(report.needed)),
    ("a chip has", gib(report.chip.hbm)),
  ]
  on_gpus = gpus.is_gpu(report.topology)
  rows = [cells(report, one, on_gpus) for one in report.programs]
  errors = [f"{one.name} does not compile: {one.error}" for one in report.programs if one.error]
  return "\n\n".join(
    [
      f"{report.slices} × {report.topology}, {report.devices} chips, {report.hosts} hosts; {axes}; "
      f"{report.parameters / 1e9:.2f}B parameters; {report.rows} cache rows an engine, on {_hosts(report.span)}",
      aligned.columns(stays, left=1),
      aligned.columns([tuple(rows[0]), *(tuple(row.values()) for row in rows)], left=1),
      *errors,
      held(report),
      f"{'It fits' if report.fits else 'IT DOES NOT FIT'}. {_speed(report)}",
      *(preallocated(report.topology, report.needed) if report.fits else []),
      *too_narrow(report),
    ]
  )


def _speed(report: Report) -> str:
  if report.partial:
    return "Not all programs of a step were compiled (--only): the memory of the others, and its time, are unknown."
  return (
    f"At the roofline a step of {report.tokens} tokens takes {report.step_s:.1f} s: "
    f"{report.tokens / report.step_s:,.0f} tokens/s, the learner's MFU {report.mfu:.0%}."
  )


def held(report: Report) -> str:
  """The number of conversations that the cache can hold, and how it is computed."""
  one = report.conversation
  return (
    f"Beside the train state {report.free / 2**30:.2f} GiB a chip are free for the cache: {report.conversations:,} "
    f"conversations an engine, on {one.replicas} replica{'s' * (one.replicas > 1)}, of the mean length: {one.tokens:,} "
    f"tokens in pages, {one.bytes / 2**20:.1f} MiB a chip. If each reserved the whole context in bfloat16, "
    f"{one.reserved / 2**20:.1f} MiB, there would be room for {report.reserved_rows:,}."
  )


def too_narrow(report: Report) -> list[str]:
  """The number of hosts on which an engine's weights would fit, if they do not fit on its own hosts."""
  if report.fits or report.fewest is not None and report.fewest <= report.span:
    return []
  if report.fewest is None:
    advice = "nor on more of them: a replica has at most as many chips as the model has key-value heads"
  else:
    advice = f"but on {_hosts(report.fewest)}: raise config.rollout.mesh.tensor, so that an engine spans them"
  return [f"Beside the train state, an engine's weights do not fit on {_hosts(report.span)}, {advice}."]


def _hosts(number: int) -> str:
  return f"{number} host{'s' * (number > 1)}"


def cells(report: Report, program: Program, on_gpus: bool) -> dict[str, str]:
  """A program's line of the table, by column."""
  gib = lambda size: f"{size / 2**30:.2f}"
  seconds, bound = report.seconds(program)
  result = {
    "program": program.name,
    "compile s": f"{program.compile_s:.0f}",
    "temporaries GiB": gib(program.temporaries),
    "peak GiB": gib(program.peak),
    "TFLOP": f"{program.flops / 1e12:.2f}",
    "HBM GB": f"{program.hbm / 1e9:.2f}",
    "sent GB": f"{program.sent / 1e9:.2f}",
    f"between {'hosts' if on_gpus else 'slices'} GB": f"{program.dcn / 1e9:.2f}",
    "collectives": ", ".join(collectives(program)) or "-",
  }
  if on_gpus:
    per = "token" if program.turns > 1 else "call"
    result |= {
      "moved GB": f"{program.moved / 1e9:.2f}",
      "kernels": f"{program.fewest / program.turns:,.0f} to {program.kernels / program.turns:,.0f} a {per}",
      "host-read loops": str(program.host_loops),
      "conditions": str(program.host_branches),
    }
  return result | {"least ms": f"{1000 * seconds:.1f}", "bound": bound, "calls a step": str(program.calls)}


def collectives(program: Program) -> list[str]:
  """The numbers of a program's collectives by kind, and how many of them cross hosts of GPUs."""
  crossing = lambda kind: f" ({program.crossing[kind]} between hosts)" if kind in program.crossing else ""
  return [f"{count} {kind}{crossing(kind)}" for kind, count in program.collectives.items()]


def preallocated(topology: str, needed: float) -> list[str]:
  """The setting for programs that fit, but need more bytes of a GPU's memory than JAX allocates by default."""
  chip = chips.for_topology(topology)
  if not gpus.is_gpu(topology) or needed <= chips.JAX_SHARE * chip.memory:
    return []
  return [
    f"JAX allocates {chips.JAX_SHARE:.0%} of a GPU's memory, {chips.JAX_SHARE * chip.memory / 2**30:.2f} GiB: "
    f"start it with XLA_PYTHON_CLIENT_MEM_FRACTION={chips.SHARE}."
  ]
