"""Exact search on a CPU against faiss.IndexFlatIP, in one process on the same vectors: time and memory.

    python benchmarks/index_search.py [--passages 1000000] [--dim 768] [--batches 1,16,256]

Vectors are drawn around 1,000 centres, and queries near some of the vectors. Each time is the best of --rounds, in CPU
seconds of one thread, so that other jobs disturb it little. Both sides must find the same ten best vectors of every
query; otherwise the exit status is 1. Memory is that of the vectors in each index. Both indexes are made from a file in
--out, one after the other, so that only one of them is in memory.
"""

import argparse
import gc
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import faiss
import jax
import numpy as np

from ragrl_jax.parallel import cores
from ragrl_jax.retrieval.device import DeviceIndex

K, BLOCK = 10, 1 << 16


def written(path: pathlib.Path, total: int, dim: int) -> np.ndarray:
  """The vectors, memory-mapped; made if they are not there."""
  if not path.is_file():
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((1000, dim), dtype=np.float32)
    partial = path.with_suffix(".partial")
    out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(total, dim))
    for start in range(0, total, BLOCK):
      n = min(BLOCK, total - start)
      built = centres[draw.integers(1000, size=n)] + draw.standard_normal((n, dim), dtype=np.float32)
      out[start : start + n] = built / np.linalg.norm(built, axis=1, keepdims=True)
    out.flush()
    os.replace(partial, path)
  return np.load(path, mmap_mode="r")


def best(function, rounds: int) -> float:
  times = []
  for _ in range(rounds + 1):  # the first one warms up
    begun = time.process_time()
    function()
    times.append(time.process_time() - begun)
  return min(times[1:])


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--passages", type=int, default=1_000_000)
  parser.add_argument("--dim", type=int, default=768)
  parser.add_argument("--batches", default="1,16,256")
  parser.add_argument("--rounds", type=int, default=2)
  parser.add_argument("--dtypes", default="bfloat16,int8")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/index_search"))
  args = parser.parse_args()
  vectors = written(args.out / f"{args.passages}x{args.dim}.npy", args.passages, args.dim)
  draw = np.random.default_rng(1)
  sizes = [int(size) for size in args.batches.split(",")]
  near = vectors[np.sort(draw.choice(args.passages, max(sizes), replace=False))]
  asked = near + np.float32(0.02) * draw.standard_normal(near.shape, dtype=np.float32)
  faiss.omp_set_num_threads(1)
  # FAISS has two methods and chooses by the batch's size. Here both are timed at every size, and the faster one counts.
  rows, answers = [], {}

  def measure(name: str, search, size_gb: float) -> None:
    ms = {}
    for n in sizes:
      queries = asked[:n]
      ms[n] = 1000 * best(lambda queries=queries: search(queries), args.rounds)
    answers[name] = [set(map(int, row)) for row in search(asked)]
    rows.append((name, size_gb, ms))
    ratio = lambda n: f" ({rows[0][2][n] / ms[n]:.2f}x)" if len(rows) > 1 else ""
    print(f"| {name} | {size_gb:.2f} | " + " | ".join(f"{ms[n]:.0f}{ratio(n)}" for n in sizes) + " |", flush=True)

  print(
    f"{args.passages:,} vectors of {args.dim}, the best {K}; CPU ms a batch on one thread (ratio to FAISS's Flat)\n"
  )
  print("| | GB | " + " | ".join(f"{n} queries" for n in sizes) + " |\n|---|---|" + "---|" * len(sizes))
  peer = faiss.IndexFlatIP(args.dim)
  for start in range(0, args.passages, BLOCK):
    peer.add(np.ascontiguousarray(vectors[start : start + BLOCK]))

  def flat(queries):
    faiss.cvar.distance_compute_blas_threshold = 20 if len(queries) < 4 else 1
    return peer.search(queries, K)[1]

  measure("faiss.IndexFlatIP", flat, vectors.nbytes / 1e9)
  del peer
  gc.collect()
  for dtype in args.dtypes.split(","):
    index = DeviceIndex(vectors, max_norm=1.0001, dtype=dtype)
    size = sum(part.nbytes for part in jax.tree.leaves(index._stored)) / 1e9
    measure(f"ours, {dtype}", lambda queries, index=index: [found for _, found in index.search(queries, K)], size)
    del index
    gc.collect()
  same = {
    name: np.mean([a == b for a, b in zip(found, answers["faiss.IndexFlatIP"])]) for name, found in answers.items()
  }
  print("\nqueries with the same ten: " + ", ".join(f"{name} {share:.4f}" for name, share in same.items()))
  print(f"cores of this process: {cores.count()}")
  return int(min(same.values()) < 1.0)


if __name__ == "__main__":
  sys.exit(main())
