"""Compares `qa.has_answer` with the rule of DPR's evaluation script: python benchmarks/answer_rule.py [--out FOLDER]

For nine sets of questions it prints recall@1, @5 and @20 of BM25 by both rules, and recall in the questions' own
passages. Every decision must be the same: the command fails with the first pair that is not. The reference is written
from the script's facts (arXiv 2004.04906): tokens of Unicode's NFD by categories, in lower case, one by one. Needs the
folder of questions and corpora: RAGRL_DATA, or ../shared/data beside this repository.
"""

import argparse
import functools
import os
import pathlib
import tempfile
import unicodedata

import regex

from ragrl_jax import retrieval
from ragrl_jax.core.metrics import qa
from ragrl_jax.data import readers

ROOT = pathlib.Path(__file__).parents[1]
SETS = {  # questions → the corpus that BM25 searches
  "hotpotqa_dev": "hotpotqa", "2wikimultihopqa_dev": "2wikimultihopqa", "2wikimultihopqa_open": "2wiki_6119",
  "musique_dev": "musique", "nq_open_dev": "nq", "nqswap": "nq", "popqa_passages": "popqa", "squad_train": "squad",
  "msmarco_sample": "msmarco_sample",
}  # fmt: skip
DEPTHS = (1, 5, 20)
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


@functools.lru_cache(maxsize=100_000)
def tokens(text: str) -> tuple[str, ...]:
  """The tokens of DPR's tokenizer in lower case."""
  return tuple(found.lower() for found in _TOKEN.findall(unicodedata.normalize("NFD", text)))


def holds(text: str, golds) -> bool:
  """DPR's rule: some gold's tokens follow each other in the text."""
  words = tokens(text)
  return any(
    words[at : at + len(gold)] == gold for gold in map(tokens, golds) for at in range(len(words) - len(gold) + 1)
  )


def compared(name: str, data: pathlib.Path, out: pathlib.Path) -> str:
  """The table's row of a set. Raises ValueError for a passage on which the rules differ."""
  examples = list(readers.read_examples(data / "qa" / f"{name}.jsonl.gz"))
  index = retrieval.build_index(data / "corpora" / f"{SETS[name]}.jsonl.gz", "bm25", out / SETS[name], progress=False)
  results = retrieval.load_index(index).search([example.question for example in examples], max(DEPTHS))
  ranks = []  # of the first passage with an answer, from 1: in the search, and among the question's own
  for example, passages in zip(examples, results):
    for group in (passages, example.passages):
      right = [holds(passage.text, example.golds) for passage in group]
      for passage, theirs in zip(group, right):
        if qa.has_answer(passage.text, example.golds) is not theirs:
          raise ValueError(f"{name}: DPR's rule says {theirs} of {example.golds} in {passage.text!r}.")
      ranks.append(right.index(True) + 1 if True in right else None)
  recall = [sum(rank is not None and rank <= k for rank in ranks[::2]) / len(examples) for k in DEPTHS]
  own = [rank is not None for rank, example in zip(ranks[1::2], examples) if example.passages]
  return "  ".join([f"{name:22}{len(examples):6}", *(f"{one:8.4f}" for one in (*recall, sum(own) / max(len(own), 1)))])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", help="folder of the indexes; a temporary one if not given")
  args = parser.parse_args()
  data = pathlib.Path(os.environ.get("RAGRL_DATA") or ROOT.parent / "shared" / "data")
  if not (data / "corpora").is_dir():
    raise SystemExit(f"no real corpora at {data}: set RAGRL_DATA to the folder that holds corpora/")
  print(f"{'set':22}{'n':>6}  " + "  ".join(f"{name:>8}" for name in (*(f"recall@{k}" for k in DEPTHS), "own")))
  with tempfile.TemporaryDirectory() as folder:
    for name in SETS:
      print(compared(name, data, pathlib.Path(args.out or folder)), flush=True)
  print("all decisions are those of DPR's rule")


if __name__ == "__main__":
  main()
