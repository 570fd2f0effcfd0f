"""Evaluates every recipe and every baseline on the shared sets, and makes each paper's tables of the results:

    python benchmarks/real_tables.py [--minutes 60] [--questions 200] [--only search_r1] [--docs]

The papers' tables determine the evaluations (`real_cells.py`). A tiny reader (`real_reader.py`) answers through the
local engine; in rows of trained models, it is first trained for one step. BM25 searches the sets' corpora, and judges
compare words. So the benchmark tests that all tables can be filled; the numbers themselves are those of a tiny model.

Every question must have a row, and none may fail; otherwise the exit status is 1. Finished evaluations are not
repeated, and a killed evaluation continues with its next question. --minutes ends the benchmark early; cells without a
run show the command that fills them. --docs writes docs/real.md, and all tables to
benchmarks/real_tables.md.gz. Needs the folder of questions and corpora: RAGRL_DATA, or
../shared/data beside this repository.
"""

import dataclasses
import gzip
import json
import os
import pathlib
import re
import sys
import time

import real_cells
import real_reader
from absl import app, flags, logging
from tqdm import tqdm

from ragrl_jax import config as config_lib, retrieval
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import answer_files, records
from ragrl_jax.evaluation.tables import filling, papers, writing
from ragrl_jax.jobs import evaluate, sft, train
from ragrl_jax.run import prepared
from ragrl_jax.store import compile_cache, folders, jsonl

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "real.md"
ARCHIVE = ROOT / "benchmarks" / "real_tables.md.gz"
OUT = flags.DEFINE_string("out", "out/real", "Folder of indexes, runs, evaluations and tables.")
QUESTIONS = flags.DEFINE_integer("questions", 200, "Questions per evaluation; fewer if the set has fewer.")
MINUTES = flags.DEFINE_float("minutes", 0.0, "No evaluation begins after this many minutes; 0: no limit.")
ONLY = flags.DEFINE_string("only", "", "Only evaluations whose name matches this regular expression.")
DOCS = flags.DEFINE_bool("docs", False, "Write docs/real.md and benchmarks/real_tables.md.gz.")
TOLD = """The answers are those of a tiny model with 2 layers and width 64. One minute of training taught it the reply
formats, and to answer yes or no. So the numbers show that the tables can be filled, and say nothing about the methods.
`make real` (`benchmarks/real_tables.py --docs`) asked {questions} questions of each shared set, through the local
engine, with BM25 over the set's passages and judges that compare words. Training for a row took one step. If rows
differ only in the model, the number is in the first of them. A cell without a number has → and the number of the
command that fills it. `benchmarks/real_tables.md.gz` has the tables; `out/real/tables/` also has the commands."""


def main(_):
  logging.set_verbosity(logging.WARNING)
  location = os.environ.get("RAGRL_DATA")
  data = pathlib.Path(location) if location else ROOT.parent / "shared" / "data"
  if not (data / "qa").is_dir():
    print(f"skipped: no real questions at {location or '../shared/data'}; set RAGRL_DATA to the folder that holds qa/")
    return
  compile_cache.keep()
  os.chdir(ROOT)  # so that the paths of files in the results begin in the repository, wherever the data are
  out = pathlib.Path(OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  if (out / "data").resolve() != data.resolve():
    (out / "data").unlink(missing_ok=True)
    (out / "data").symlink_to(data.resolve())
  reader = real_reader.model(out, out / "data")
  prepare(out)

  start, lost = time.monotonic(), []
  wanted = real_cells.evaluations()
  left = [one for one in wanted if re.search(ONLY.value, one.name) and not finished(one, out)]
  print(f"{len(left)} of {len(wanted)} evaluations are not finished yet", flush=True)
  with tqdm(left, unit="evaluation") as bar:
    for one in bar:
      if MINUTES.value and time.monotonic() - start > 60 * MINUTES.value:
        break
      bar.set_description(one.name)
      answered(one, out, reader, lambda done, of: bar.set_postfix_str(f"{done}/{of} questions"))
  done = [one for one in wanted if finished(one, out)]
  for one in done:
    metrics = json.loads((place(one, out) / answer_files.METRICS).read_text())
    if metrics["n"] != asked_for(one, out) or metrics["failed"]:
      lost.append(f"{one.name}: {metrics['n']} of {asked_for(one, out)} scored, {metrics['failed']} failed")
  print(
    f"{len(done)} of {len(wanted)} evaluations are finished, of {total(done, out)} questions; {len(lost)} lost some"
  )
  print("\n".join(lost))
  tables(wanted, done, lost, out)
  sys.exit(bool(lost))


def prepare(out: pathlib.Path) -> None:
  """Makes the indexes of the corpora, and the questions with retrieved passages for LEAR's test with noise."""
  for corpus in sorted({corpus for _, corpus in real_cells.FILES.values()}):
    retrieval.build_index(out / "data" / "corpora" / f"{corpus}.jsonl.gz", "bm25", out / "indexes" / corpus)
  for dataset in real_cells.NOISY:
    path = out / f"{dataset}_asked.jsonl.gz"
    if not path.is_file():
      file, corpus = real_cells.FILES[dataset]
      examples = list(readers.read_examples(out / "data" / "qa" / f"{file}.jsonl.gz", max_examples=400))
      results = retrieval.load_index(out / "indexes" / corpus).search([example.question for example in examples], 5)
      writers.write_examples(
        path, [dataclasses.replace(e, passages=tuple(p), supporting=(), evidence=()) for e, p in zip(examples, results)]
      )


def answered(one: real_cells.Evaluation, out: pathlib.Path, reader: pathlib.Path, progress) -> None:
  """Evaluates the policy, which is trained first if needed."""
  checkpoint = reader if one.training is None else trained(one.training, out, reader)
  config = real_cells.asked(one, out, QUESTIONS.value)
  evaluate.evaluate(config, checkpoint, str(real_cells.data(one, out)), place(one, out), progress=progress)


def trained(training: real_cells.Training, out: pathlib.Path, reader: pathlib.Path) -> pathlib.Path:
  """The folder of a trained policy's run, which is trained if needed."""
  workdir = out / "runs" / training.name
  if (workdir / "model").is_dir():
    return workdir
  folders.empty(workdir)
  config = real_cells.trained(training, out, reader)
  if training.supervised:
    path = workdir.with_suffix(".jsonl.gz")
    recipe = prepared.recipe(config_lib.validate(config, training=False))
    examples = real_reader.examples(out / "data", f"sft/{training.name}", 16, whole=recipe.needs_passages)
    config.data.train = str(path)
    built = [real_reader.with_turns(recipe, example) for example in examples]
    writers.write_examples(path, built, turns=[example.meta["turns"] for example in built])
  config_lib.validate(config)
  for _ in sft.sft(config, workdir) if training.supervised else train.train(config, workdir):
    pass
  return workdir


def place(evaluation: real_cells.Evaluation, out: pathlib.Path) -> pathlib.Path:
  """The folder of an evaluation."""
  return out / "evaluations" / evaluation.name


def finished(evaluation: real_cells.Evaluation, out: pathlib.Path) -> bool:
  """Whether the evaluation has metrics of as many questions as are wanted now."""
  path = place(evaluation, out) / answer_files.METRICS
  return path.is_file() and json.loads(path.read_text())["settings"]["questions"] == asked_for(evaluation, out)


def asked_for(evaluation: real_cells.Evaluation, out: pathlib.Path) -> int:
  """The number of questions of an evaluation: --questions, or as many as the set has."""
  return min(QUESTIONS.value, real_cells.count(real_cells.data(evaluation, out)))


def total(done: list, out: pathlib.Path) -> int:
  """The total number of questions of these evaluations."""
  return sum(asked_for(one, out) for one in done)


def tables(wanted, done, lost: list[str], out: pathlib.Path) -> None:
  """Writes every paper's tables in all formats, and prints how many of their cells have a number."""
  (out / "tables").mkdir(exist_ok=True)
  counts, read = {}, {one: records.read(place(one, out)) for one in done if wanted[one]}
  for name, paper in papers.PAPERS.items():
    filled = filling.fill(paper, [read[one] for one in read if name in wanted[one]], any_model=True)
    for kind, ending in (("markdown", "md"), ("csv", "csv"), ("latex", "tex"), ("html", "html")):
      with jsonl.whole(out / "tables" / f"{name}.{ending}") as part:
        part.write_text(writing.FORMATS[kind](paper, filled), encoding="utf-8")
    cells = [cell for one in filled for cells in one.cells for cell in cells]
    counts[name] = sum(cell.value is not None for cell in cells), len(cells)
    print(f"{paper.title}: {counts[name][0]} of {counts[name][1]} cells have a number of ours")
  if DOCS.value:
    _page(counts, wanted, done, lost, out)


def _page(counts, wanted, done, lost: list[str], out: pathlib.Path) -> None:
  """Writes docs/real.md, and the tables of all papers into one compressed file."""
  texts, lines = [], ["| Paper | Cells with a number of ours | Cells | Evaluations |", "|---|---|---|---|"]
  for name, paper in papers.PAPERS.items():
    text = (out / "tables" / f"{name}.md").read_text(encoding="utf-8")
    for commands in writing.COMMANDS:  # left out, because they are long; the files in --out have them
      text = re.sub(rf"\n\*\*{commands}\*\*\n\n(\d+\. .*\n)+", "", text)
    texts.append(text)
    of_paper = sum(name in wanted[one] for one in done)
    lines.append(f"| {paper.title} | {counts[name][0]} | {counts[name][1]} | {of_paper} |")
  ARCHIVE.write_bytes(gzip.compress("\n".join(texts).encode(), mtime=0))
  message = (
    f"The tables have {len(done)} of {len(wanted)} evaluations, with {total(done, out)} questions in all. "
    f"{len(lost)} evaluations lost a question."
  )
  told = TOLD.format(questions=QUESTIONS.value)
  PAGE.write_text(f"# Real questions\n\n{told}\n\n{message}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
