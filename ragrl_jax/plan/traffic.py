"""Counts the bytes that the kernels of a GPU program read and write, from its text (`Compiled.as_text()`).

Every kernel is taken to read each operand once and to write each result once. Of an operand from which a kernel only
gathers or slices, it reads what it takes; into one that it updates in place, it writes the update. A kernel that reads
some operand twice moves more, and what stays in a GPU's second-level cache moves less.
"""

import dataclasses
import re
from collections.abc import Mapping

from ragrl_jax.plan import aot, launches

TAKES = ("gather", "dynamic-slice", "slice")
PUTS = ("scatter", "dynamic-update-slice")
SAME = ("bitcast", "reshape", "transpose", "convert", "copy")  # pass on what they are given
PAGED = "paged_attention"  # the kernel that reads pages through a table; its caller knows which
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)")


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


def moved(text: str, turns: int = 1) -> int:
  """Bytes that a call's kernels read and write, where every condition takes its cheaper branch.

  Keys and values that attention reads through a page table are left out: how many there are depends on the lengths.

  Args:
    text: of the compiled program.
    turns: iterations of an outermost loop that the host counts.
  """
  bodies, entry = aot.computations(text)
  return _of({name: _parsed(lines) for name, lines in bodies.items()}, entry, turns)


def _parsed(lines: list[str]) -> dict[str, Instruction]:
  found = {}
  for line in lines:
    plain = re.sub(r"/\*.*?\*/", "", line)
    if match := INSTRUCTION.match(plain):
      name, types, kind, operands = match.groups()
      sizes = tuple(size * width // 8 for size, width in aot.arrays(types))
      found[name] = Instruction(kind, sizes, tuple(re.findall(r"%([\w.\-]+)", operands)), plain)
  return found


def _of(bodies: Mapping[str, dict[str, Instruction]], name: str, turns: int) -> int:
  total, body = 0, bodies[name]
  for one in body.values():
    if one.kind == "while":
      known = re.search(r"known_trip_count\W+n\W+(\d+)", one.line)
      inside = _of(bodies, re.search(r"body=%?([\w.\-]+)", one.line)[1], 1)
      total += inside * (int(known[1]) if known else turns)
    elif one.kind == "conditional":
      total += min(_of(bodies, other, turns) for other in aot.called(one.line))
    elif one.kind in ("call", "async-start"):
      total += sum(_of(bodies, other, turns) for other in aot.called(one.line))
    elif one.kind not in launches.FREE and not one.kind.endswith(("-done", "-update")):
      total += _kernel(bodies, body, one)
  return total


def _kernel(bodies, body: Mapping[str, Instruction], one: Instruction) -> int:
  """Bytes that one kernel reads and writes."""
  given = [body[name].bytes if name in body else 0 for name in one.operands]
  if one.kind == "custom-call" and PAGED in one.line:
    return given[0] + one.bytes  # the queries, and what comes out
  if one.kind in PUTS:
    return 2 * sum(given[1:])
  if one.kind in TAKES:
    return 2 * one.bytes
  if one.kind != "fusion":
    return sum(given) + one.bytes
  inside = bodies[aot.called(one.line)[0]]
  total, kept = 0, list(one.sizes)
  for name, parameter in inside.items():
    if parameter.kind == "parameter":
      read, updated = _read(inside, name)
      total += read
      if updated and parameter.bytes in kept:  # it is a result, too, of which only the update is written
        kept.remove(parameter.bytes)
        total += updated
  return total + sum(kept)


def _read(inside: Mapping[str, Instruction], name: str) -> tuple[int, int]:
  """(bytes that a fusion reads of what `name` gives, bytes of an update in place of it)."""
  read = updated = 0
  for user in (one for one in inside.values() if name in one.operands):
    if user.kind in TAKES and user.operands[0] == name:
      read += user.bytes
    elif user.kind in PUTS and user.operands[0] == name:
      updated += inside[user.operands[-1]].bytes if user.kind == "scatter" else inside[user.operands[1]].bytes
    elif user.kind in SAME:
      more, put = _read(inside, next(key for key, one in inside.items() if one is user))
      read, updated = read + more, updated + put
    else:
      read += inside[name].bytes
  return min(read, inside[name].bytes), updated
