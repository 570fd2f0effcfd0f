"""Executes one plan: starts the small search run, causes the plan's faults, restarts the run, checks how it ends."""

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import child
import plans
import record
import servers
import tiny_world
from forks import FORKS

from ragrl_jax.retrieval import corpus

SIGNALS = dict(kill=signal.SIGKILL, damage=signal.SIGKILL, term=signal.SIGTERM, interrupt=signal.SIGINT)
SPOILS = ("outage", "garbage", "half", "slow")  # faults of a tool's requests
OWN = ("disk", "clock")  # faults that child.py causes
# What the last line of a failed start must contain, by tool or by kind of fault.
WORDS = dict(retriever="retriev|search", judge="judge", disk="disk|space|too large|write")
HANGS_S = 1800.0  # a longer start counts as hung, even on a busy machine
MAX_STARTS = 16


@dataclasses.dataclass
class Live:
  """An active fault of the plan."""

  fault: plans.Fault
  came: bool = False
  over: bool = False
  passed: int = 0  # requests since its step began
  struck: int = 0  # requests that it has made fail
  ended: int = 0  # starts that ended because of it


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a plan ended."""

  plan: plans.Plan
  missed: tuple[plans.Fault, ...]  # those whose moment never came
  story: tuple[str, ...]  # how each start ended
  problem: str  # what went wrong against expectation, or ""
  seconds: float


@dataclasses.dataclass(frozen=True)
class Scene:
  """What all runs share: the folder of the tiny world, and the tools by name."""

  world: pathlib.Path
  tools: dict[str, servers.Tool]


@contextlib.contextmanager
def scene(folder: pathlib.Path) -> Iterator[Scene]:
  """Makes the world in `folder`, and runs both tools while the block runs."""
  folder.mkdir(parents=True)
  tiny_world.make(folder)
  passages = list(corpus.read_passages(folder / "corpus.jsonl"))
  with servers.Tool("retriever", servers.retrieve(passages)) as one, servers.Tool("judge", servers.judge) as two:
    yield Scene(folder, dict(retriever=one, judge=two))


class Run:
  """The small search run under a plan, in `folder`. flags: additional flags of `ragrl train`."""

  def __init__(self, plan: plans.Plan, scene: Scene, folder: pathlib.Path, *flags: str):
    self.plan, self.scene, self.folder, self.workdir = plan, scene, folder, folder / "run"
    self.folder.mkdir(parents=True, exist_ok=True)  # a start may end before it has made the folder
    self.live = [Live(fault) for fault in plan.faults]
    self.process: FORKS.Process | None = None
    self.sent: list[tuple[signal.Signals, bool]] = []  # the signal to this start; whether the run had begun its steps
    self.asks, self.step, self.starts, self.lock = False, 0, 0, threading.RLock()
    self.damaged: object = None  # the mark of a checkpoint, see record.mark
    port = {name: tool.port for name, tool in scene.tools.items()}
    config = f"--config={pathlib.Path(__file__).with_name('small_search.py')}:{scene.world}"
    self.flags = [config, f"--workdir={self.workdir}", f"--config.judge.cache={folder / 'verdicts.db'}"]
    self.flags += [f"--config.retrieval.index=http://127.0.0.1:{port['retriever']}"]
    self.flags += [f"--config.judge.endpoint=http://127.0.0.1:{port['judge']}/v1"]
    self.flags += [f"--config.rollout.ahead={plan.ahead}", *flags]

  def start(self, **own: object) -> tuple[int | None, str, str]:
    """Runs one start to its end: (exit code or None if it hung, stdout, stderr). own: arguments of `child.main`."""
    self.sent, self.asks, self.starts = [], False, self.starts + 1
    faults = [live.fault for live in self.live if live.fault.kind in OWN and not live.over]
    own |= {fault.kind: (fault.step, fault.lasts) for fault in faults}
    (out, said), (err, errors) = FORKS.Pipe(duplex=False), FORKS.Pipe(duplex=False)
    self.process = FORKS.Process(target=child.main, args=(self.flags, own, said, errors))
    self.process.start()
    for tool in self.scene.tools.values():
      tool.faults = self.request
    said.close()
    errors.close()
    with futures.ThreadPoolExecutor(2) as threads:
      texts = [threads.submit(text_of, pipe) for pipe in (out, err)]
      until = time.monotonic() + HANGS_S
      try:
        while self.process.is_alive() and time.monotonic() < until:
          self.look()
          self.process.join(0.01)
        hung = self.process.is_alive()
      finally:  # the threads wait for its pipes
        self.process.kill()
        self.process.join()
      said, errors = (text.result() for text in texts)
    (self.folder / f"stderr.{self.starts}").write_text(errors)
    self.after()
    return None if hung else self.process.exitcode, said, errors

  def request(self, tool: str, asks: bool) -> plans.Fault | None:
    """The fault that this request meets, if any. Sends the signals that wait for a request."""
    with self.lock:
      self.asks |= asks
      self.look(tool)
      for live in self.due(SPOILS):
        if live.fault.at == tool:
          live.passed += 1
          if live.passed > live.fault.after:
            live.came, live.struck = True, live.struck + 1
            live.over = live.fault.how == "refused" or live.struck >= live.fault.lasts
            return live.fault
    return None

  def look(self, tool: str = "") -> None:
    """Reads which step the run has reached, and sends the signals that are due."""
    with self.lock:
      self.step = max(self.step, record.steps_made(self.workdir))
      for live in self.due(SIGNALS):
        at = live.fault.at
        live.passed += at == tool
        if {"row": True, "checkpoint": tiny_world.unfinished(self.workdir)}.get(at, live.passed > live.fault.after):
          with contextlib.suppress(ProcessLookupError):  # the process has just ended
            os.kill(self.process.pid, SIGNALS[live.fault.kind])
            live.came = live.over = True
            self.sent.append((SIGNALS[live.fault.kind], self.asks))

  def due(self, kinds) -> list[Live]:
    return [live for live in self.live if live.fault.kind in kinds and not live.over and self.step >= live.fault.step]

  def after(self) -> None:
    """Updates the faults after the end of a start."""
    self.step = max(self.step, record.steps_made(self.workdir))
    for live in self.live:
      fault = live.fault
      if fault.kind == "damage" and live.came and not live.ended and len(tiny_world.checkpoints(self.workdir)) > 1:
        rng = random.Random(f"faults/{self.plan.seed}/damage")
        self.damaged = record.damage(self.workdir, fault.how, rng)
      if fault.kind in OWN and self.step >= fault.step:
        live.came = live.over = True
      live.ended += live.came
      live.over |= live.ended >= fault.starts

  def expected(self) -> int:
    """The first step of the next start: the one after the newest undamaged checkpoint."""
    sound = [step for step in tiny_world.checkpoints(self.workdir) if record.mark(self.workdir, step) != self.damaged]
    return max(sound, default=0) + 1

  def wrong(self, code: int | None, errors: str) -> str:
    """What is wrong with how a start ended, or ""."""
    last, sent = last_line(errors), [number for number, _ in self.sent]
    if code is None:
      return f"still running after {HANGS_S:g} s"
    if code == 0 or (code == -signal.SIGKILL and signal.SIGKILL in sent):
      return ""
    if any(code in (128 + number, -number) for number in sent):
      # The first signal lets the run save its step. A second one, or one before the first step, ends the run at once.
      return "" if code > 0 or len(sent) > 1 or not self.sent[0][1] else f"it died of {sent[0].name}, and saved nothing"
    if code < 0 or not re.match(r"error: .", last) or "Traceback" in errors:
      return f"exit code {code}, and {last!r} as the last line"
    came = [live.fault for live in self.live if live.came]
    words = {words for fault in came for name, words in WORDS.items() if name in (fault.at, fault.kind)}
    # On a busy machine, a tool may time out without a fault of the plan.
    if not re.search("|".join([*words, "timed out", "timeout", "within"]), last, re.IGNORECASE):
      return f"exit code {code}, and a last line that names none of what came: {last}"
    return ""


def undisturbed(ahead: int, scene: Scene, folder: pathlib.Path) -> dict[str, str]:
  """What the run makes without faults."""
  patient = [f"--config.{tool}.timeout_s=300" for tool in ("retrieval", "judge")]  # the machine may be busy
  run = Run(plans.Plan(0, ahead, ()), scene, folder, *patient)
  code, _, errors = run.start()
  if code != 0:
    raise RuntimeError(f"the undisturbed run ended with exit code {code}:\n{errors[-4000:]}")
  return record.made(run.workdir)


def play(plan: plans.Plan, scene: Scene, folder: pathlib.Path, undisturbed: dict[str, str]) -> Outcome:
  """Starts the run until it ends well. It must then have made everything that the undisturbed run made."""
  run, story, problem, begin = Run(plan, scene, folder), [], "", time.monotonic()
  while not problem:
    expected = run.expected()
    code, said, errors = run.start()
    first = re.search(r"first step (\d+)", said)
    story.append(f"exit {code}" + (f" ({last_line(errors)[:160]})" if "error: " in errors else ""))
    problem = run.wrong(code, errors)
    if not problem and first and int(first[1]) != expected:
      problem = f"start {run.starts} went on with step {first[1]}, where a sound checkpoint lets it with {expected}"
    if code == 0 or problem:
      break
    if run.starts == MAX_STARTS:
      problem = f"not at its end after {MAX_STARTS} starts"
  if not problem and (name := record.difference(undisturbed, record.made(run.workdir))):
    problem = f"{name} is not the undisturbed run's"
  missed = tuple(live.fault for live in run.live if not live.came)
  return Outcome(plan, missed, tuple(story), problem, time.monotonic() - begin)


def last_line(errors: str) -> str:
  """The last line that is not blank, as a terminal shows it."""
  lines = [line.rpartition("\r")[2].strip() for line in errors.splitlines()]
  return next((line for line in reversed(lines) if line), "")


def text_of(pipe) -> str:
  """What a pipe holds until its end."""
  with pipe:
    return b"".join(iter(lambda: os.read(pipe.fileno(), 1 << 16), b"")).decode(errors="replace")
