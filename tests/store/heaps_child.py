"""Threads that allocate at the same time, then memory that is freed: python heaps_child.py [limit]

Prints whether the number of heaps was limited, the number of heaps, and the resident MB before and after `trim`.
"""

import ctypes
import pathlib
import sys
import threading

import psutil

from ragrl_jax.store import malloc

THREADS, BLOCKS, BYTES = 6, 2000, 64 << 10  # a block is smaller than what glibc gets from the system by itself

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.fopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]


def count(folder: pathlib.Path) -> int:
  """The number of heaps."""
  file = libc.fopen(str(folder / "heaps.xml").encode(), b"w")
  libc.malloc_info(0, file)
  libc.fclose(file)
  return (folder / "heaps.xml").read_text().count("<heap ")


def resident() -> float:
  return psutil.Process().memory_info().rss / 2**20


def main(folder: str, *words: str):
  limited = malloc.limit() if words else False
  together = threading.Barrier(THREADS)

  def work():
    block = libc.malloc(1000)
    together.wait()  # no heap is free before all threads have one
    libc.free(block)

  threads = [threading.Thread(target=work) for _ in range(THREADS)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  blocks = [libc.malloc(BYTES) for _ in range(BLOCKS)]
  for block in blocks:
    ctypes.memset(block, 1, BYTES)
  for block in blocks[:-1]:  # the last one keeps the heap from shrinking
    libc.free(block)
  before = resident()
  malloc.trim()
  print(int(limited), count(pathlib.Path(folder)), f"{before:.1f} {resident():.1f}")


if __name__ == "__main__":
  main(*sys.argv[1:])
