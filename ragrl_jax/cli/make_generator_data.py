"""Makes the training and test data of LEAR's generator:

  python launchers/make_generator_data.py --data QUESTIONS --index INDEX --out SFT.jsonl.gz
  python launchers/make_generator_data.py --data QUESTIONS --index INDEX --noturns --out ASKED.jsonl.gz
  python launchers/make_generator_data.py --data QUESTIONS --predictions DIR/predictions.jsonl --out ASKED.jsonl.gz

The first writes transcripts for launchers/sft.py: question and passages, then the answer. The second writes all
questions with their passages, for the row `Full` and the test with random passages. The third writes the questions with
the evidence that launchers/evaluate.py --config configs/lear.py:inference extracted. The last two are for
launchers/evaluate.py. All three are for --config configs/lear.py:generator. --index retrieves passages for questions
without passages. Without it, the transcripts of such questions have no passages, for the closed-book row.
"""

import pathlib

from absl import app, flags

from ragrl_jax.cli import commands, index_flags
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import evidence_rows
from ragrl_jax.evaluation.tables import results
from ragrl_jax.recipes.lear import generator
from ragrl_jax.store import jsonl

DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
PREDICTIONS = flags.DEFINE_string(
  "predictions", "", "Predictions of a finished evaluation; their evidence replaces the passages."
)
TURNS = flags.DEFINE_bool("turns", True, "Write transcripts; --noturns writes only the questions with their passages.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz]")


def main(argv):
  """Runs `ragrl make-lear-generator`."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  writers.refuse_inputs([OUT.value], [*readers.named(DATA.value), *([PREDICTIONS.value] if PREDICTIONS.value else [])])
  examples, turns = list(readers.read_examples(DATA.value)), None
  if PREDICTIONS.value:
    predictions = list(jsonl.read(PREDICTIONS.value))
    by = evidence_rows.digest(predictions, results.read(pathlib.Path(PREDICTIONS.value).parent).metrics["settings"])
    examples = generator.from_evidence(examples, predictions, by)
  else:
    examples = index_flags.with_passages(examples)
    turns = generator.demonstrations(examples) if TURNS.value else None
  writers.write_examples(OUT.value, examples, turns=turns)
  print(f"{OUT.value}: {len(examples)} questions, {sum(bool(e.passages) for e in examples)} of them with passages")


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["data", "out"])
  commands.run(main)
