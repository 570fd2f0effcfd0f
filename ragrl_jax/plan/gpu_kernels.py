"""Counts the kernels of a GPU program and the bytes that they move, from its text (`Compiled.as_text()`).

Every kernel is taken to read each operand once and to write each result once. Of an operand from which a kernel only
gathers or slices, it reads what it takes; into one that it updates in place, it writes the update. A kernel that reads
some operand twice moves more, and what stays in a GPU's second-level cache moves less.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping

from ragrl_jax.plan import aot

# Instructions that launch nothing. Any other instruction outside of a fusion is a kernel or a copy of memory.
FREE = frozenset("parameter constant tuple get-tuple-element bitcast after-all add-dependency opt-barrier".split())
TAKES = ("gather", "dynamic-slice", "slice")
PUTS = ("scatter", "dynamic-update-slice")
# Pass on what they are given, number by number: of an operand they read as much as is read of their result.
SAME = frozenset(
  "bitcast reshape transpose reverse pad convert copy negate exponential add subtract multiply divide maximum minimum "
  "select compare and or".split()
)
PAGED = "paged_attention"  # reads some of its second operand's pages, its caller knows which, and writes new tokens
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)")


@dataclasses.dataclass(frozen=True)
class Counts:
  """What one call of a program launches and moves.

  Attributes:
    kernels: number of kernels, copies of memory and collectives. It is a lower bound: a sort counts as one. The body of
      a loop in `host_loops` counts once, or `turns` times if it is an outermost loop.
    host_loops: number of loops with an unknown number of iterations. In each iteration the GPU waits until the host has
      read whether to continue.
    host_branches: number of conditions. At each condition the GPU waits until the host has read which branch to take.
    fewest: `kernels` if every condition takes its shorter branch, as in a step without top-k and top-p.
    moved: bytes that the kernels read and write if every condition takes its cheaper branch. Keys and values that
      attention reads through a page table are left out: how many there are depends on the lengths.
  """

  kernels: int = 0
  host_loops: int = 0
  host_branches: int = 0
  fewest: int = 0
  moved: int = 0

  def __add__(self, other: "Counts") -> "Counts":
    """Both, one after the other."""
    return Counts(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other))))

  def times(self, number: int) -> "Counts":
    """This many iterations of a loop, whose loops and conditions are the same ones."""
    repeated = {name: number * getattr(self, name) for name in ("kernels", "fewest", "moved")}
    return dataclasses.replace(self, **repeated)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """A line of a computation.

  Attributes:
    kind: what it computes, such as "fusion".
    sizes: bytes of its results.
    operands: names of the instructions whose results it reads, in order.
    line: all of it.
  """

  kind: str
  sizes: tuple[int, ...]
  operands: tuple[str, ...]
  line: str

  @property
  def bytes(self) -> int:
    """Bytes of all its results."""
    return sum(self.sizes)


def counted(text: str, turns: int = 1) -> Counts:
  """Counts a call of a compiled program. An outermost loop that the host counts has `turns` iterations."""
  bodies, entry = _parsed(text)
  return _counted(bodies, entry, turns)


def _counted(bodies: Mapping[str, Mapping[str, Instruction]], name: str, turns: int) -> Counts:
  total = Counts()
  for one in bodies[name].values():
    if one.kind == "while":
      body, condition = (_counted(bodies, _named(part, one.line), 1) for part in ("body", "condition"))
      if known := re.search(r"known_trip_count\W+n\W+(\d+)", one.line):
        total += body.times(int(known[1]))
      else:  # the host counts: then the condition also runs, and its result is copied to the host
        asked = dataclasses.replace(condition, moved=0) + Counts(kernels=1, host_loops=1, fewest=1)
        total += (body + asked).times(turns)
    elif one.kind == "conditional":
      branches = [_counted(bodies, other, turns) for other in aot.called(one.line)]
      either = lambda pick, name, branches=branches: pick(getattr(branch, name) for branch in branches)
      total += Counts(  # the copy of the condition to the host, and a branch
        kernels=1 + either(max, "kernels"),
        host_loops=either(sum, "host_loops"),
        host_branches=1 + either(sum, "host_branches"),
        fewest=1 + either(min, "fewest"),
        moved=either(min, "moved"),
      )
    elif one.kind in ("call", "async-start"):
      [other] = aot.called(one.line)
      total += _counted(bodies, other, turns)
    elif one.kind not in FREE and not one.kind.endswith(("-done", "-update")):
      total += Counts(kernels=1, fewest=1, moved=_kernel(bodies, bodies[name], one))
  return total


def _named(part: str, line: str) -> str:
  """The computation that is a part of a loop, such as "body"."""
  match = re.search(rf"{part}=%?([\w.\-]+)", line)
  assert match is not None
  return match[1]


def _parsed(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
  """(computation → name → instruction, the entry's name)."""
  computations, entry = aot.computations(text)
  bodies: dict[str, dict[str, Instruction]] = {name: {} for name in computations}
  for body, lines in computations.items():
    for line in lines:
      plain = re.sub(r"/\*.*?\*/", "", line)
      if match := INSTRUCTION.match(plain):
        name, types, kind, operands = match.groups()
        if kind == "fusion-start":  # newer XLA's, of which the type is ((operands), result, context)
          kind, types = "fusion", re.sub(r"^\(\(.*?\), (.*), u32\[\]\)$", r"\1", types)
        sizes = tuple(size * width // 8 for size, width in aot.arrays(types))
        bodies[body][name] = Instruction(kind, sizes, tuple(re.findall(r"%([\w.\-]+)", operands)), plain)
  return bodies, entry


def _kernel(bodies, body: Mapping[str, Instruction], one: Instruction) -> int:
  """Bytes that one kernel reads and writes."""
  given = [body[name].bytes if name in body else 0 for name in one.operands]
  if one.kind == "custom-call" and PAGED in one.line:
    return given[0] + sum(size for size in one.sizes if size not in given[1:])  # without pages that it writes in place
  if one.kind in PUTS:
    return 2 * sum(given[1:])
  if one.kind in TAKES:
    return 2 * one.bytes
  if one.kind != "fusion":
    return sum(given) + one.bytes
  inside = bodies[aot.called(one.line)[0]]
  total, sizes = 0, list(one.sizes)
  for name, parameter in inside.items():
    if parameter.kind == "parameter":
      read, updated = _read(inside, name)
      total += read
      if updated and parameter.bytes in sizes:  # it is a result, too, of which only the update is written
        sizes.remove(parameter.bytes)
        total += updated
  return total + sum(sizes)


def _read(inside: Mapping[str, Instruction], name: str) -> tuple[int, int]:
  """(bytes that a fusion reads of what `name` gives, bytes of an update in place of it)."""
  users: dict[str, list[str]] = {}
  for key, instruction in inside.items():
    for operand in dict.fromkeys(instruction.operands):
      users.setdefault(operand, []).append(key)

  @functools.cache  # paths that part and meet again are followed once
  def of(name: str) -> tuple[float, int]:
    read, updated = 0.0, 0
    for key in users.get(name, ()):
      user = inside[key]
      if user.kind in TAKES and user.operands[0] == name:
        read += user.bytes
      elif user.kind in PUTS and user.operands[0] == name:
        updated += inside[user.operands[-1]].bytes if user.kind == "scatter" else inside[user.operands[1]].bytes
      elif user.kind in SAME and key in users:
        more, put = of(key)
        read, updated = read + more * inside[name].bytes / max(user.bytes, 1), updated + put
      else:
        read += inside[name].bytes
    return min(read, inside[name].bytes), updated

  read, updated = of(name)
  return round(read), updated
