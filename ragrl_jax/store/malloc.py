"""Limits the heaps (arenas) of the C library (glibc), which keep memory that threads have freed.

A new thread gets one of up to eight heaps per core. A heap keeps the most memory that it has held so far. Orbax starts
some ten threads for each checkpoint, so a run's resident memory would grow until every heap has held a checkpoint's
buffers.
"""

import ctypes
import os
import sys

MOST = 2  # with one heap, threads would wait for each other more often
_M_ARENA_MAX = -8  # malloc.h


def limit() -> bool:
  """Limits this process to MOST heaps. Returns whether it did.

  Call it at the start of a command: heaps that exist already stay. It changes the whole process, so only commands call
  it. A program that uses the library can set MALLOC_ARENA_MAX=2 instead. If the user has set that variable, or
  glibc.malloc.arena_max in GLIBC_TUNABLES, their number stays. With other C libraries nothing changes.
  """
  if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
    return False
  library = _glibc()
  return library is not None and library.mallopt(_M_ARENA_MAX, MOST) == 1


def trim() -> None:
  """Returns freed memory to the operating system. With C libraries other than glibc nothing happens."""
  if (library := _glibc()) is not None:
    library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
  if sys.platform != "linux":
    return None
  library = ctypes.CDLL(None)
  return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
