"""The cores of this process."""

import contextlib
import os
import pathlib

QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")  # a container's: "150000 100000" is one and a half cores, "max …" all


def count() -> int:
  """The cores that this process may use: of the machine, of its affinity, and of its container's quota rounded up."""
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  with contextlib.suppress(OSError, ValueError):  # there is no quota
    quota, period = map(int, QUOTA.read_text(encoding="ascii").split())
    cores = min(cores, -(-quota // period))
  return cores
