"""Speed of search, as ratios to the underlying libraries, measured in the same run on the same vectors.

    python benchmarks/retrieval.py [--passages 100000] [--dim 384]

Exact search is compared with faiss.IndexFlatIP and with a NumPy product and a partial sort. Approximate search is
compared with exact search, with the share of its top 10 that is found. BM25 is compared with bm25s's own `retrieve` on
the same index. The device's figure is XLA's on the devices that JAX finds (a CPU, if there is no accelerator). Times
are per query, the best of five rounds.
"""

import argparse
import contextlib
import io
import pathlib
import random
import tempfile
import time

import faiss
import numpy as np

from ragrl_jax.parallel import cores
from ragrl_jax.retrieval import build_index, faiss_index, load_index
from ragrl_jax.retrieval.device import DeviceIndex
from ragrl_jax.structs import Passage

K = 10


def best(function, queries: int) -> float:
  """Milliseconds per query, the best of five rounds after one warm-up round."""
  function()
  times = []
  for _ in range(5):
    start = time.perf_counter()
    function()
    times.append(time.perf_counter() - start)
  return 1000 * min(times) / queries


def clustered(n: int, dim: int, seed: int) -> np.ndarray:
  draw = np.random.default_rng(seed)
  centres = np.random.default_rng(0).normal(size=(256, dim))
  vectors = centres[draw.integers(256, size=n)] + 0.5 * draw.normal(size=(n, dim))
  return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def plain(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
  scores = queries @ vectors.T
  top = np.argpartition(-scores, K, axis=1)[:, :K]
  order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1)
  return np.take_along_axis(top, order, axis=1)


def dense(n: int, dim: int) -> None:
  vectors = clustered(n, dim, 1)
  exact, peer = faiss_index.Flat(vectors, max_norm=1.0001), faiss.IndexFlatIP(dim)
  peer.add(vectors)
  device = DeviceIndex(vectors, max_norm=1.0001)
  print(f"\n{n} vectors of {dim}: ms a query (ratio to faiss.IndexFlatIP; above 1 is faster)")
  for size in (1, 256):
    queries = clustered(size, dim, 2)
    base = best(lambda queries=queries: peer.search(queries, K), size)
    print(f"  batch {size}: faiss.IndexFlatIP {base:.3f}", end="")
    for name, run in (("ours", exact.search), ("device", device.search), ("numpy", None)):
      seconds = best(lambda run=run, queries=queries: run(queries, K) if run else plain(vectors, queries), size)
      print(f" · {name} {seconds:.3f} ({base / seconds:.2f}x)", end="")
    print(flush=True)
  queries = clustered(256, dim, 2)
  truth = [set(rows) for _, rows in exact.search(queries, K)]
  base = best(lambda: exact.search(queries, K), 256)
  for factory, options in (("HNSW32", "efSearch=64"), ("IVF512,Flat", "nprobe=8"), ("IVF512,PQ48", "nprobe=8")):
    with tempfile.TemporaryDirectory() as folder:
      path, start = pathlib.Path(folder) / "i", time.perf_counter()
      faiss_index.build(vectors, path, factory=factory, progress=False)
      built, size = time.perf_counter() - start, path.stat().st_size / 2**20
      index = faiss_index.Approximate(path, vectors, options=options)
      found = np.mean([len(want & set(rows)) / K for want, (_, rows) in zip(truth, index.search(queries, K))])
      seconds = best(lambda index=index: index.search(queries, K), 256)
    print(
      f"  {factory} {options}: {seconds:.3f} ({base / seconds:.1f}x exact), finds {found:.3f} of its top {K}; built in "
      f"{built:.1f} s, {size:.0f} MiB",
      flush=True,
    )


def lexical(n: int) -> None:
  draw = random.Random(0)
  words = [f"w{int(draw.paretovariate(0.7))}" for _ in range(400_000)]
  passages = [Passage(str(i), draw.choice(words), " ".join(draw.choices(words, k=60))) for i in range(n)]
  asked = [" ".join(draw.choices(words, k=6)) for _ in range(256)]
  with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    build_index(passages, "bm25", folder, progress=False)
    built = time.perf_counter() - start
    ours = load_index(folder)
    tokens = [ours._words(text) for text in asked]

    def peer():
      with contextlib.redirect_stderr(io.StringIO()):
        return ours._index.retrieve(tokens, k=K, show_progress=False, backend_selection="numpy")

    base, seconds = best(peer, len(asked)), best(lambda: ours.search(asked, K), len(asked))
    print(
      f"\nBM25, {n} passages of 61 words, built in {built:.1f} s: bm25s {base:.3f} · ours {seconds:.3f} "
      f"({base / seconds:.2f}x; words, ties by row and the passages themselves included)"
    )


def hashed(n: int) -> None:
  draw = random.Random(0)
  passages = []
  for i in range(n):
    name, other = f"name{i % 5000}", f"name{draw.randrange(5000)}"
    passages.append(Passage(str(i), name, f"The relation{i % 9} of {name} is {other}."))
  with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    build_index(passages, "hashing", folder, progress=False)
    built = time.perf_counter() - start
    index, asked = load_index(folder), [f"relation{i % 9} name{i}" for i in range(256)]
    together, alone = best(lambda: index.search(asked, 1), 256), best(lambda: index.search(asked[:1], 1), 1)
  print(
    f"\nhashing encoder, {n} facts: built in {built:.1f} s; ms a query in a batch of 256 {together:.3f}, "
    f"alone {alone:.3f}"
  )


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--passages", type=int, default=100_000)
  parser.add_argument("--dim", type=int, default=384)
  given = parser.parse_args()
  print(f"{cores.count()} cores")
  hashed(min(given.passages, 13_000))
  lexical(given.passages)
  dense(given.passages, given.dim)
