"""Counts the kernels that a program compiled for a GPU launches, from its text (`Compiled.as_text()`)."""

import dataclasses
import re
from collections.abc import Mapping

from ragrl_jax.plan import aot

# Instructions that launch nothing. Any other instruction outside of a fusion is a kernel or a copy of memory.
FREE = frozenset(
  ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "opt-barrier")
)
INSTRUCTION = re.compile(r"= (?:\(.*?\)|\S+) ([\w\-]+)\(")


@dataclasses.dataclass(frozen=True)
class Launches:
  """Numbers of launches of one call of a program.

  Attributes:
    kernels: number of kernels, copies of memory and collectives. It is a lower bound: a sort counts as one. The body of
      a loop in `host_loops` counts once, or `turns` times if it is an outermost loop.
    host_loops: number of loops with an unknown number of iterations. In each iteration the GPU waits until the host has
      read whether to continue.
    host_branches: number of conditions. At each condition the GPU waits until the host has read which branch to take.
    fewest: `kernels` if every condition takes its shorter branch, as in a step without top-k and top-p.
  """

  kernels: int
  host_loops: int
  host_branches: int
  fewest: int


def launches(text: str, turns: int = 1) -> Launches:
  """Counts the launches of a call of a program. An outermost loop that the host counts has `turns` iterations."""
  bodies, entry = aot.computations(text)
  return _of(bodies, entry, turns)


def _of(bodies: Mapping[str, list[str]], name: str, turns: int) -> Launches:
  kernels = loops = branches = fewest = 0
  for line in bodies[name]:
    kind = _kind(line)
    if kind == "while":
      known = re.search(r"known_trip_count\W+n\W+(\d+)", line)
      body, condition = (_of(bodies, re.search(rf"{part}=%?([\w.\-]+)", line)[1], 1) for part in ("body", "condition"))
      # The host counts if the compiler could not. Then the condition also runs, and its result is copied to the host.
      kernels += int(known[1]) * body.kernels if known else turns * (body.kernels + condition.kernels + 1)
      fewest += int(known[1]) * body.fewest if known else turns * (body.fewest + condition.fewest + 1)
      loops += body.host_loops + (0 if known else 1 + condition.host_loops)
      branches += body.host_branches + (0 if known else condition.host_branches)
    elif kind == "conditional":
      found = [_of(bodies, other, turns) for other in aot.called(line)]
      kernels += 1 + max(one.kernels for one in found)  # the copy of the condition to the host, and the longer branch
      fewest += 1 + min(one.fewest for one in found)
      loops += sum(one.host_loops for one in found)
      branches += 1 + sum(one.host_branches for one in found)
    elif kind in ("call", "async-start"):
      [inside] = (_of(bodies, other, turns) for other in aot.called(line))
      kernels, loops, branches = (kernels + inside.kernels, loops + inside.host_loops, branches + inside.host_branches)
      fewest += inside.fewest
    elif kind and kind not in FREE and not kind.endswith(("-done", "-update")):
      kernels, fewest = kernels + 1, fewest + 1
  return Launches(kernels, loops, branches, fewest)


def _kind(line: str) -> str:
  found = INSTRUCTION.search(re.sub(r"/\*.*?\*/", "", line))
  return found[1] if found else ""
