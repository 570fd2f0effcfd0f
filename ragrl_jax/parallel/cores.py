"""The cores of this process."""

import concurrent.futures
import contextlib
import os
import pathlib

QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")  # a container's: "150000 100000" is one and a half cores, "max …" all


def visible() -> int:
  """The cores of the machine, or of the process's affinity: XLA starts a thread for each."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count() -> int:
  """The cores that this process may use: the visible ones, or its container's quota, rounded up, where it is less."""
  with contextlib.suppress(OSError, ValueError):  # there is no quota
    quota, period = map(int, QUOTA.read_text(encoding="ascii").split())
    return min(visible(), -(-quota // period))
  return visible()


def threads() -> int:
  """The threads that XLA starts on the CPU."""
  return int(os.environ.get("PJRT_NPROC") or os.environ.get("NPROC") or visible())


def pool() -> concurrent.futures.ThreadPoolExecutor:
  """A few threads that read and hash: hashing releases Python's lock."""
  return concurrent.futures.ThreadPoolExecutor(min(8, count()))
