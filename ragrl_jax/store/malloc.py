"""Settings of the C library's memory (glibc's): one heap, which keeps what is freed in it.

XLA's programs on CPUs allocate their working memory anew at every call. glibc would return large blocks to the system,
and the system would fill new ones with zeros: a fifth of a learner's step at 135M parameters. Each thread would also
get a heap of its own, up to eight per core. A heap keeps the most memory that it has held so far, and Orbax starts some
ten threads for each checkpoint, so a run's resident memory would grow until every heap has held a checkpoint's buffers.
"""

import ctypes
import os
import sys

SETTINGS = dict(arena_max=(-8, 1), mmap_max=(-4, 0), trim_threshold=(-1, -1))  # glibc's names; malloc.h's numbers


def limit() -> bool:
  """Makes this process use one heap, and keep freed memory in it. Returns whether every setting was made.

  Call it at the start of a command: heaps that exist already stay. It changes the whole process, so only commands call
  it. A program that uses the library can set GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:
  glibc.malloc.trim_threshold=100000000000 instead. What the user has set in that variable, or by MALLOC_ARENA_MAX,
  MALLOC_MMAP_MAX_ or MALLOC_TRIM_THRESHOLD_, stays. With other C libraries nothing changes.
  """
  library, tuned = _glibc(), os.environ.get("GLIBC_TUNABLES", "")
  if library is None:
    return False
  free = lambda name: (
    f"malloc.{name}" not in tuned and not any(x.startswith(f"MALLOC_{name.upper()}") for x in os.environ)
  )
  return all([free(name) and library.mallopt(*values) == 1 for name, values in SETTINGS.items()])


def trim() -> None:
  """Returns freed memory to the operating system. With C libraries other than glibc nothing happens."""
  if (library := _glibc()) is not None:
    library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
  if sys.platform != "linux":
    return None
  library = ctypes.CDLL(None)
  return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
