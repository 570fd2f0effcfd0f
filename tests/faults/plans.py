"""Draws plans of faults from a seed: what goes wrong, when, and for how long."""

import dataclasses
import random

STEPS, EVERY = 8, 2  # steps of the small run, and of its checkpoints
TOOLS = ("retriever", "judge")
GARBAGE = ("html", "deep", "score", "number", "nan", "bytes", "gzip")
POINTS = ("row", "checkpoint", *TOOLS)
KINDS = {  # kind of fault → its variants
  "kill": ("",), "outage": ("refused", "reset", "silent", "status"), "damage": ("bit", "bit", "cut", "lost"),
  "slow": ("late", "too late", "dribbled"), "term": ("",), "garbage": GARBAGE, "disk": ("full",),
  "half": ("cut", "few", "empty"), "interrupt": ("",), "clock": ("jump",),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fault:
  """One fault. A signal, and damage (which follows a SIGKILL), comes `at` a moment: while a step's "row" or a
  "checkpoint" is written, or while this tool is asked.
  """

  step: int  # it comes after this number of steps
  kind: str  # one of KINDS
  how: str  # one of its variants
  at: str = ""  # for a fault of a tool, the tool
  after: int = 0  # requests to the tool that succeed first
  lasts: float = 0  # for a tool, requests that fail; for "disk", bytes that a file may have; for "clock", seconds
  starts: int = 1  # starts of the run that a tool's fault may end before it is over

  def __str__(self) -> str:
    much = f"{self.lasts:g}" if self.lasts else ""
    said = " ".join(word for word in (self.kind, self.at, self.how, much, f"at {self.step}") if word)
    return said + (f"+{self.after}" if self.after else "")


@dataclasses.dataclass(frozen=True)
class Plan:
  """The faults of one run. ahead: the run's config.rollout.ahead."""

  seed: int
  ahead: int
  faults: tuple[Fault, ...]


def draw(seed: int) -> Plan:
  """The plan of this seed: one to four faults. Any ten consecutive seeds contain every kind."""
  rng, kinds = random.Random(f"faults/{seed}"), list(KINDS)
  chosen = [kinds[seed % len(kinds)], *rng.choices(kinds, k=rng.choice((0, 0, 1, 1, 2, 3)))]
  faults = [_fault(rng, kind) for kind in chosen]
  return Plan(seed, rng.randrange(2), tuple(sorted(faults, key=lambda fault: fault.step)))


def _fault(rng: random.Random, kind: str) -> Fault:
  how, step = rng.choice(KINDS[kind]), rng.randrange(STEPS)
  if kind in ("outage", "garbage", "half", "slow"):
    return Fault(step, kind, how, rng.choice(TOOLS), rng.randrange(4), rng.choice((1, 2, 4, 8, 40)), rng.choice((1, 2)))
  if kind == "disk":
    return Fault(step, kind, how, lasts=rng.choice((1, 1 << 12, 1 << 14, 1 << 16)))
  if kind == "clock":
    return Fault(step, kind, how, lasts=rng.choice((-1, 1)) * rng.choice((60, 86_400, 10**9)))
  if kind == "damage":  # so late that two checkpoints exist
    step = rng.randrange(2 * EVERY + 1, STEPS - 1)
  return Fault(step, kind, how, rng.choice(POINTS), rng.randrange(2))
