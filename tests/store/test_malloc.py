"""Few heaps of the C library, and freed memory that goes back to the system. Needs glibc."""

import os
import pathlib
import platform
import subprocess
import sys

import numpy as np
import pytest

from ragrl_jax.store import checkpoint, malloc

CHILD, ROOT = pathlib.Path(__file__).with_name("heaps_child.py"), pathlib.Path(__file__).parents[2]
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of glibc")


def child(folder, *words, **environment) -> list[float]:
  """(whether it was limited, heaps, resident MB before and after trim) of heaps_child.py."""
  kept = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
  command = [sys.executable, str(CHILD), str(folder), *words]
  done = subprocess.run(
    command,
    env=kept | dict(PYTHONPATH=str(ROOT)) | environment,
    capture_output=True,
    text=True,
    timeout=250,
    check=True,
  )
  return [float(word) for word in done.stdout.split()]


@glibc
def test_simultaneous_threads_share_two_heaps(tmp_path):
  limited, found, *_ = child(tmp_path, "limit")
  assert limited and found == malloc.MOST
  limited, found, *_ = child(tmp_path)
  assert not limited and found > malloc.MOST  # each of six threads has a heap


@glibc
def test_the_users_number_of_heaps_holds(tmp_path):
  for environment in (dict(MALLOC_ARENA_MAX="3"), dict(GLIBC_TUNABLES="glibc.malloc.arena_max=3")):
    limited, found, *_ = child(tmp_path, "limit", **environment)
    assert not limited and found == 3


@glibc
def test_trim_returns_freed_memory(tmp_path):
  _, _, before, after = child(tmp_path)
  assert before - after > 100  # MB; 2,000 blocks of 64 KB are 125 MB


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
