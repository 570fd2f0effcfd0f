"""Few heaps of the C library, and freed memory that goes back to the system. Needs glibc."""

import os
import pathlib
import platform
import subprocess
import sys

import numpy as np
import pytest

from ragrl_jax.store import checkpoint, malloc

ROOT = pathlib.Path(__file__).parents[2]
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of glibc")

# Six threads allocate at the same time; then 125 MB are allocated and freed in blocks that glibc keeps.
CHILD = """
import ctypes, sys, threading, psutil
from ragrl_jax.store import malloc

libc, resident = ctypes.CDLL(None), lambda: psutil.Process().memory_info().rss / 2**20
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
limited, together = len(sys.argv) > 1 and malloc.limit(), threading.Barrier(6)

def work():
  block = libc.malloc(1000)
  together.wait()  # no heap is free before all threads have one
  libc.free(block)

threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
  thread.start()
for thread in threads:
  thread.join()
blocks = [libc.malloc(64 << 10) for _ in range(2000)]
for block in blocks:
  ctypes.memset(block, 1, 64 << 10)
for block in blocks[:-1]:  # the last one keeps the heap from shrinking
  libc.free(block)
before = resident()
malloc.trim()
print(int(limited), before - resident(), flush=True)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def child(*words, **environment):
  """(whether it was limited, heaps, MB that `trim` returned) of CHILD."""
  kept = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
  command, environment = [sys.executable, "-c", CHILD, *words], kept | dict(PYTHONPATH=str(ROOT)) | environment
  done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=True)
  limited, trimmed, *_ = done.stdout.split()
  return int(limited), done.stdout.count("<heap "), float(trimmed)


@glibc
def test_simultaneous_threads_share_two_heaps_or_the_users_number_and_trim_returns_freed_memory():
  assert child("limit")[:2] == (1, malloc.MOST)
  limited, heaps, trimmed = child()
  assert not limited and heaps > malloc.MOST  # each of six threads has a heap
  assert trimmed > 100
  assert child("limit", MALLOC_ARENA_MAX="3")[:2] == (0, 3)
  assert child("limit", GLIBC_TUNABLES="glibc.malloc.arena_max=3")[:2] == (0, 3)


def test_a_checkpoint_returns_what_it_freed(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(malloc, "trim", lambda: calls.append(kept.latest()))
  kept = checkpoint.Checkpoints(tmp_path, keep=1)
  kept.save(1, dict(a=np.zeros(3, np.float32)), {})
  assert calls == [1]


def test_other_systems_are_left_alone(monkeypatch):
  monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
  monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
  monkeypatch.setattr(sys, "platform", "darwin")
  assert not malloc.limit()
  malloc.trim()
