"""Simulates several kinds of machine on one: numbers of threads (by binding processes to cores) and instruction sets.

Each of them splits sums differently, so that weights differ in their last digits. A claim about a training run must not
depend on these. Linux only: other systems cannot bind a process to cores.
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
  """A command for one machine. Its output goes to `log`; the folder of `log` is created."""

  machine: str
  command: Sequence[str | os.PathLike]
  log: pathlib.Path


def wanted() -> list[tuple[int, str]]:
  """(seed, machine) of every run, from --seeds and --machines."""
  return [(seed, machine) for machine in (MACHINES if ALL.value else [FIRST]) for seed in map(int, SEEDS.value)]


def slug(machine: str) -> str:
  """The machine's name in a form for file names."""
  return machine.replace(", ", "_").replace(" ", "_")


def run(jobs: Sequence[Job], *, cwd: pathlib.Path) -> None:
  """Runs all jobs, those with few threads first, and in parallel as far as there are cores for their threads.

  Exit statuses are ignored: a job's output files tell whether it succeeded.

  Raises:
    NotImplementedError: the system is not Linux.
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
  """Waits until one of the processes has ended."""
  while True:
    for process, cores in running:
      try:
        process.wait(timeout=0.5)
      except subprocess.TimeoutExpired:
        continue
      return process, cores
