"""Costs of an index: GB, build hours, ms per batch, chip- or core-seconds per million queries.

    python benchmarks/retrieval_cost.py [--cells flat:100000,hnsw:100000] [--topologies h200:1,v5e:8x8] [--docs]

Measured cells (0.1M and 1M passages) run on one CPU thread, in CPU seconds of this thread. Each is stored in --out, so
a later run measures only the missing cells. Cells at 21M are computed. "arithmetic" scales the largest measured cell: a
scan and a build grow with N, HNSW's build and search with N log N and log N, IVF's cells with √N. "compiled" is the
shortest possible time of the program that was compiled for the accelerators. Vectors have 768 dimensions and are drawn
around 1,000 centres. Passages for BM25 have 60 words each, drawn from a power law. A batch has 64 queries. Recall is
the share of the exact ten best passages that are found. --docs writes docs/retrieval.md.
"""

import argparse
import json
import math
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import index_search
import jax
import numpy as np

from ragrl_jax.plan import index as index_lib
from ragrl_jax.retrieval import build_index, faiss_index, load_index
from ragrl_jax.retrieval.device import DeviceIndex
from ragrl_jax.structs import Passage

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "retrieval.md"
BEGIN, END = "<!-- cost: python benchmarks/retrieval_cost.py --docs -->", "<!-- cost: end -->"
DIM, BATCH, K, WIKI = 768, 64, 10, 21_015_324
KINDS = dict(
  bm25="BM25", flat="Flat, float32", hnsw="HNSW32, efSearch=128", ivf="IVF-PQ96, nprobe=32", int8="int8, ours"
)
SIZES = (100_000, 1_000_000)


def cpu(function):
  """(result, seconds of CPU time)."""
  begun = time.process_time()
  result = function()
  return result, time.process_time() - begun


def bm25(total: int, out: pathlib.Path) -> dict:
  draw = random.Random(0)
  words = [f"w{int(draw.paretovariate(0.7))}" for _ in range(400_000)]
  passages = (Passage(str(i), "", " ".join(draw.choices(words, k=60))) for i in range(total))
  _, build_s = cpu(lambda: build_index(passages, "bm25", out / f"bm25-{total}", progress=False, overwrite=True))
  index, asked = load_index(out / f"bm25-{total}"), [" ".join(draw.choices(words, k=6)) for _ in range(BATCH)]
  index.search(asked, K)
  _, seconds = cpu(lambda: index.search(asked, K))
  size = sum(path.stat().st_size for path in (out / f"bm25-{total}" / "bm25").iterdir())
  return dict(gb=size / 1e9, build_s=build_s, batch_s=seconds)


def dense(kind: str, total: int, out: pathlib.Path) -> dict:
  vectors = index_search.written(out / f"{total}x{DIM}.npy", total, DIM)
  draw = np.random.default_rng(1)
  near = vectors[np.sort(draw.choice(total, BATCH, replace=False))]
  asked = near + np.float32(0.02) * draw.standard_normal(near.shape, dtype=np.float32)
  exact = faiss_index.Flat(vectors, max_norm=1.0001, threads=1)
  if kind == "flat":
    exact.search(asked, K)
    _, seconds = cpu(lambda: exact.search(asked, K))
    return dict(gb=vectors.nbytes / 1e9, build_s=0.0, batch_s=seconds, recall=1.0)
  truth = [set(rows) for _, rows in exact.search(asked, K)]
  if kind == "int8":
    index, build_s = cpu(lambda: DeviceIndex(vectors, max_norm=1.0001, dtype="int8"))
    size = sum(part.nbytes for part in jax.tree.leaves(index._stored))
  else:
    cells = 2 ** round(math.log2(4 * math.sqrt(total)))
    factory, options = dict(hnsw=("HNSW32", "efSearch=128"), ivf=(f"IVF{cells},PQ96", "nprobe=32"))[kind]
    path = out / f"{kind}-{total}.faiss"
    make = lambda: faiss_index.build(vectors, path, factory=factory, options=options, threads=1, progress=False)
    _, build_s = cpu(make)
    index, size = faiss_index.Approximate(path, vectors, options=options, threads=1), path.stat().st_size
  index.search(asked, K)
  found, seconds = cpu(lambda: index.search(asked, K))
  recall = np.mean([len(want & set(rows)) / K for want, (_, rows) in zip(truth, found)])
  return dict(gb=size / 1e9, build_s=build_s, batch_s=seconds, recall=float(recall))


def at_wiki(kind: str, known: dict, size: int) -> dict:
  """The cell at 21M passages from the one at `size`, by arithmetic."""
  times, log = WIKI / size, math.log(WIKI) / math.log(size)
  build = times * (log if kind == "hnsw" else math.sqrt(times) if kind == "ivf" else 1)
  search = dict(hnsw=log, ivf=math.sqrt(times)).get(kind, times)
  return dict(gb=known["gb"] * times, build_s=known["build_s"] * build, batch_s=known["batch_s"] * search)


def line(name: str, size: int, how: str, cell: dict) -> str:
  recall = f"{cell['recall']:.3f}" if "recall" in cell else ""
  million = 1e6 / BATCH * cell["batch_s"] * cell.get("chips", 1)
  built = f"{cell['build_s'] / 3600:.3f}" if "build_s" in cell else ""
  return (
    f"| {name} | {size / 1e6:.1f}M | {how} | {cell['gb']:.2f} | {built} | {1000 * cell['batch_s']:.1f} "
    f"| {million:,.0f} | {recall} |"
  )


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  every = ",".join(f"{kind}:{size}" for size in SIZES for kind in KINDS)
  parser.add_argument("--cells", default=every, help="kind:size with commas between; '': measure nothing new")
  parser.add_argument("--topologies", default="h200:1,h200:8,v5e:8x8", help="compiled at 21M; '': nothing new")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/index_search"))
  parser.add_argument("--docs", action="store_true", help="write docs/retrieval.md")
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  kept = args.out / "cost.json"
  cells = json.loads(kept.read_text()) if kept.is_file() else {}
  for name in filter(None, args.cells.split(",")):
    kind, _, size = name.partition(":")
    if name not in cells:
      cells[name] = (bm25 if kind == "bm25" else lambda n, out, kind=kind: dense(kind, n, out))(int(size), args.out)
      kept.write_text(json.dumps(cells, indent=1))
      print(name, cells[name], flush=True)
  for topology in filter(None, args.topologies.split(",")):
    for dtype in ("bfloat16", "int8"):
      if (name := f"{dtype}@{topology}") not in cells:
        result = index_lib.alone(index_lib.Index(WIKI, DIM, dtype, BATCH), topology)
        if result.program.error:
          raise RuntimeError(f"{name}: {result.program.error}")
        seconds, bound = index_lib.seconds(topology, result.program)
        size = result.resident * result.devices / 1e9
        more = dict(resident=result.resident, temporaries=result.program.temporaries, left=result.left, bound=bound)
        cells[name] = dict(gb=size, batch_s=seconds, chips=result.devices, recall=1.0, **more)
        kept.write_text(json.dumps(cells, indent=1))
        print(name, cells[name], flush=True)
  lines = ["| index | passages | how known | GB | build hours | ms a batch | seconds a million queries | recall |"]
  lines.append("|" + "---|" * 8)
  missing = []
  for kind, name in KINDS.items():
    have = [size for size in SIZES if f"{kind}:{size}" in cells]
    missing += [f"{name} at {size / 1e6:.1f}M" for size in SIZES if size not in have]
    lines += [line(name, size, "measured", cells[f"{kind}:{size}"]) for size in have]
    if have:
      known = f"arithmetic from {max(have) / 1e6:.1f}M"
      lines.append(line(name, WIKI, known, at_wiki(kind, cells[f"{kind}:{max(have)}"], max(have))))
  mesh = [name for name in cells if "@" in name]
  lines += [line(f"{name.split('@')[0]} on {name.split('@')[1]}", WIKI, "compiled", cells[name]) for name in mesh]
  lines += [
    "",
    "| on the mesh, 21.0M | resident GiB a chip | temporaries GiB | left GiB a chip | bound |",
    "|" + "---|" * 5,
  ]
  for name in mesh:
    gib = [f"{cells[name][part] / 2**30:.2f}" for part in ("resident", "temporaries", "left")]
    lines.append(f"| {name.replace('@', ' on ')} | " + " | ".join(gib) + f" | {cells[name]['bound']} |")
  if missing:
    lines += ["", f"Not run: {', '.join(missing)}."]
  print("\n".join(lines))
  if args.docs:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before.rstrip(), "", BEGIN, "", *lines, "", END]) + after)
  return 0


if __name__ == "__main__":
  sys.exit(main())
