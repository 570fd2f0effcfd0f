"""Audits the real corpora on the real questions: python benchmarks/real_audit.py [--docs] [--out out/real_audit]

Each set of questions is audited on its own corpus with BM25, as `ragrl audit` does. Sets without their own passages are
audited on all corpora together. The last line is the speed of the audit: it searches for the answers and gold documents
of all questions in a stream of --passages passages, which repeats the corpora with changed words. --docs writes the
tables to docs/corpus_audits.md. Needs the folder of questions and corpora: RAGRL_DATA, or ../shared/data beside this
repository.
"""

import itertools
import os
import pathlib
import re
import time

from absl import app, flags

from ragrl_jax import retrieval
from ragrl_jax.data import readers
from ragrl_jax.evaluation import corpus_audit
from ragrl_jax.retrieval.corpus import read_passages
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Passage

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "corpus_audits.md"
OUT = flags.DEFINE_string("out", "out/real_audit", "Folder of the indexes.")
DOCS = flags.DEFINE_bool("docs", False, "Write docs/corpus_audits.md.")
PASSAGES = flags.DEFINE_integer("passages", 500_000, "Passages of the timed stream; 0: no timing.")
CORPORA = {  # corpus → its sets of questions
  "hotpotqa": ("hotpotqa_dev", "hotpotqa_fullwiki_dev"),
  "2wikimultihopqa": ("2wikimultihopqa_dev",),
  "2wiki_6119": ("2wikimultihopqa_open",),
  "musique": ("musique_dev", "musique_unanswerable"),
  "nq": ("nq_open_dev", "nqswap"),
  "popqa": ("popqa_passages", "popqa_test"),
  "squad": ("squad_train", "xquad_en_dev"),
  "msmarco_sample": ("msmarco_sample",),
}
ALL = "all of these"  # all corpora joined, for questions without their own corpus
OPEN = ("nq_open_dev", "triviaqa_dev", "popqa_test", "bamboogle_test", "webquestions_test")
TOP_K = 5


def main(_):
  named = os.environ.get("RAGRL_DATA")
  data = pathlib.Path(named) if named else ROOT.parent / "shared" / "data"
  if not (data / "corpora").is_dir():
    print(f"skipped: no real corpora at {named or '../shared/data'}; set RAGRL_DATA to the folder that holds corpora/")
    return
  out = pathlib.Path(OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  write_all(data, out / "all.jsonl")
  blocks = []
  for name, sets in (*CORPORA.items(), (ALL, OPEN)):
    path = out / "all.jsonl" if name == ALL else data / "corpora" / f"{name}.jsonl.gz"
    summary = audited(path, [data / "qa" / f"{one}.jsonl.gz" for one in sets], out / name.replace(" ", "_"))
    blocks.append(f"Corpus: {name}\n\n{corpus_audit.text(summary)}")
    print(f"\n{blocks[-1]}", flush=True)
  if PASSAGES.value:
    blocks.append(timed(data, PASSAGES.value))
    print(f"\n{blocks[-1]}")
  if DOCS.value:
    block = re.compile(r"(<!-- audits -->\n).*?(<!-- end -->\n)", re.DOTALL)
    whole = "\n\n".join(blocks)
    text = block.sub(lambda match: f"{match[1]}\n```\n{whole}\n```\n\n{match[2]}", PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")


def write_all(data: pathlib.Path, path: pathlib.Path) -> None:
  """Writes the corpora as one, with each corpus's name before its ids."""
  if path.exists():
    return
  passages = (
    dict(id=f"{name}/{passage.id}", title=passage.title, text=passage.text)
    for name in CORPORA
    for passage in read_passages(data / "corpora" / f"{name}.jsonl.gz")
  )
  jsonl.write(path, passages)


def audited(path: pathlib.Path, questions: list[pathlib.Path], folder: pathlib.Path) -> dict:
  """The summary of a corpus's audit, with BM25 over it."""
  retrieval.build_index(path, "bm25", folder)
  index = retrieval.load_index(folder)
  examples = list(readers.read_examples(",".join(map(str, questions))))
  held = corpus_audit.holdings(examples, read_passages(path))
  results = index.search([example.question for example in examples], TOP_K)
  return corpus_audit.audited(examples, held, results, k=TOP_K)[0]


def timed(data: pathlib.Path, count: int) -> str:
  """The time that one process takes to audit a stream of so many passages."""
  questions = sorted((data / "qa").glob("*.jsonl.gz"))
  examples = list(readers.read_examples(",".join(map(str, questions))))
  known = [p for name in CORPORA for p in read_passages(data / "corpora" / f"{name}.jsonl.gz")]
  # Later copies have changed words, so that not every phrase is found again at once.
  turn = lambda passage, number: Passage(passage.id, passage.title, passage.text.replace(" the ", f" the {number} "))
  stream = (turn(passage, number) for number in itertools.count() for passage in known)
  start, cpu = time.perf_counter(), time.process_time()
  held = corpus_audit.holdings(examples, itertools.islice(stream, count))
  seconds, used = time.perf_counter() - start, time.process_time() - cpu
  minutes = 21e6 * used / count / 60
  return (
    f"Speed: {count} passages, {len(examples)} questions, {len(held.phrases)} phrases to look for:\n"
    f"{seconds:.0f} s in one process, {1e6 * used / count:.0f} us of processor time each; "
    f"21 million take {minutes:.0f} minutes of it."
  )


if __name__ == "__main__":
  app.run(main)
