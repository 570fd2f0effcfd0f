"""Audits a corpus: whether it contains the answers and gold documents of questions, and whether the index finds them.

  ragrl audit --index INDEX --data QUESTIONS [--data …] [--top_k 5] [--out DIR]
  ragrl audit --corpus FILE.jsonl.gz --data QUESTIONS

Prints for each set the share of questions with an answer in some passage (no retriever can find the others), the share
of the gold documents in the corpus (by id, title and text), and with an index the share of questions with an answer
among the first passages. Answers of yes or no cannot be searched as strings. The corpus is streamed once; that of an
index is read by several processes. --out writes audit.json and audit.jsonl (one row per question). If they are in an
evaluation's folder, `ragrl tables` prints the audit under its tables.
"""

import pathlib
from typing import Any

from absl import app, flags
from tqdm import tqdm

from ragrl_jax import retrieval
from ragrl_jax.cli import commands
from ragrl_jax.data import digests, readers
from ragrl_jax.evaluation import answer_files, corpus_audit
from ragrl_jax.parallel import cores
from ragrl_jax.retrieval import corpus
from ragrl_jax.store import folders, jsonl

INDEX = flags.DEFINE_string("index", "", "Folder of an index, or the address of a retriever or a database.")
CORPUS = flags.DEFINE_string(
  "corpus", "", "Corpus: files or a folder; not needed with an index's folder.", allow_overwrite=False
)
DATA = flags.DEFINE_multi_string("data", None, "Questions: file, folder, glob or hf:NAME/SUBSET/SPLIT.", required=True)
TOP_K = flags.DEFINE_integer("top_k", 5, "Passages that the index finds per question.", lower_bound=1)
OUT = flags.DEFINE_string("out", "", "Folder for audit.json and audit.jsonl, such as an evaluation's.")
WORKERS = flags.DEFINE_integer("workers", cores.count(), "Processes that read an index's corpus.", lower_bound=1)
TRAIN = flags.DEFINE_multi_string(
  "train", [], "Questions that a model is trained on: those of --data among them are told."
)


def main():
  folder = pathlib.Path(INDEX.value) / "corpus"
  if INDEX.value and not retrieval.is_served(INDEX.value) and not pathlib.Path(INDEX.value).exists():
    raise app.UsageError(f"--index={INDEX.value}: no index here. Name a folder of `ragrl index`, or an address.")
  is_stored = bool(INDEX.value) and folder.is_dir()
  if not CORPUS.value and not is_stored:
    raise app.UsageError("give --index=FOLDER, or --corpus=FILE and optionally the --index of a remote retriever.")
  if OUT.value:
    folders.refuse_others(OUT.value, folders.EVALUATION, folders.SCORES)
  examples = list(readers.read_examples(",".join(DATA.value)))
  trained = digests.also_in(examples, readers.read_examples(",".join(TRAIN.value))) if TRAIN.value else []
  index = retrieval.load_index(INDEX.value) if INDEX.value else None  # errors show before the corpus is read
  if is_stored and not CORPUS.value:
    holdings = corpus_audit.of_folder(examples, folder, WORKERS.value)
  else:
    passages = tqdm(corpus.read_passages(CORPUS.value), unit=" passages")
    holdings = corpus_audit.holdings(examples, passages)
  questions = [example.question for example in examples]
  rankings = None if index is None else commands.searched(index, questions, TOP_K.value)
  summary, rows = corpus_audit.audited(examples, holdings, rankings, k=TOP_K.value)
  description: dict[str, Any] = dict(index.describe()) if index is not None else dict(corpus=CORPUS.value)
  summary |= dict(trained_on=len(trained)) if TRAIN.value else {}
  summary = dict(data=DATA.value, retrieval=description, **summary)
  if OUT.value:
    jsonl.write(pathlib.Path(OUT.value) / corpus_audit.ROWS, rows)
    answer_files.write_json(pathlib.Path(OUT.value) / corpus_audit.AUDIT, summary)
  print(corpus_audit.text(summary))
  if TRAIN.value:
    such = f", such as {trained[0].question!r}" if trained else ""
    print(f"{len(trained)} of the {len(examples)} questions are also in --train{such}.")
