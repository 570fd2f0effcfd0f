"""Several kinds of machine on one: a number of threads and an instruction set, by binding processes to cores.

Sums are cut differently on each, so that weights differ in their last digits; what is claimed of a training run must
not hang on those. Linux only: elsewhere nothing binds a process to cores.
"""

import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Sequence

from absl import flags

SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Which seeds.")
ALL = flags.DEFINE_bool("machines", False, "Every seed on every machine of MACHINES, not only on the first.")

# name → (threads, XLA_FLAGS)
MACHINES = {"2 threads": (2, ""), "1 thread": (1, ""), "1 thread, AVX2": (1, "--xla_cpu_max_isa=AVX2")}
FIRST = next(iter(MACHINES))


@dataclasses.dataclass(frozen=True)
class Job:
  """A command on one machine. Its output goes to `log`, whose folder is made."""

  machine: str
  command: Sequence[str | os.PathLike]
  log: pathlib.Path


def wanted() -> list[tuple[int, str]]:
  """(seed, machine) of every run that --seeds and --machines ask for."""
  return [(seed, machine) for machine in (MACHINES if ALL.value else [FIRST]) for seed in map(int, SEEDS.value)]


def slug(machine: str) -> str:
  """Its name as a part of a file's."""
  return machine.replace(", ", "_").replace(" ", "_")


def run(jobs: Sequence[Job], *, cwd: pathlib.Path) -> None:
  """Runs all jobs, those of few threads first, as many beside each other as there are cores for their threads.

  A job's exit status is not looked at: what it was to make tells whether it did.

  Raises:
    NotImplementedError: no Linux.
  """
  if not hasattr(os, "sched_setaffinity"):
    raise NotImplementedError(
      "this system cannot bind a process to cores, which is how a number of threads is set here: run it on Linux."
    )
  waiting = sorted(jobs, key=lambda job: MACHINES[job.machine][0])
  running, cores = [], sorted(os.sched_getaffinity(0))
  while waiting or running:
    threads = MACHINES[waiting[0].machine][0] if waiting else len(cores) + 1
    if waiting and (threads <= len(cores) or not running):
      taken, cores = cores[:threads], cores[threads:]
      running.append((_start(waiting.pop(0), taken, cwd), taken))
      continue
    done = _first_done(running)
    running.remove(done)
    cores = sorted(cores + done[1])


def _start(job: Job, cores: list[int], cwd: pathlib.Path) -> subprocess.Popen:
  flags = f"{os.environ.get('XLA_FLAGS', '')} {MACHINES[job.machine][1]}".strip()
  job.log.parent.mkdir(parents=True, exist_ok=True)
  print(f"{job.log.stem}: began", flush=True)
  with open(job.log, "w") as log:
    return subprocess.Popen(
      list(map(str, job.command)),
      cwd=cwd,
      env=os.environ | dict(XLA_FLAGS=flags),
      stdout=log,
      stderr=subprocess.STDOUT,
      preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def _first_done(running):
  """Waits until one of them has ended."""
  while True:
    for process, cores in running:
      try:
        process.wait(timeout=0.5)
      except subprocess.TimeoutExpired:
        continue
      return process, cores
