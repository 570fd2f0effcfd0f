"""LEAR's generator, its training and its test data:

  python launchers/make_generator_data.py --data QUESTIONS --index INDEX --out SFT.jsonl.gz
  python launchers/make_generator_data.py --data QUESTIONS --index INDEX --noturns --out ASKED.jsonl.gz
  python launchers/make_generator_data.py --data QUESTIONS --predictions DIR/predictions.jsonl --out ASKED.jsonl.gz

The first writes transcripts question and passages → answer for launchers/sft.py; the second all the questions with
their passages, as `Full` and the test with random passages ask them; the third the questions with the evidence that
launchers/evaluate.py --config configs/lear.py:inference found. Both of these are for launchers/evaluate.py, and
everything is for --config configs/lear.py:generator. --index finds the passages of questions that bring none; without
it transcripts of such questions are question → answer, for the closed-book row.
"""

import commands
import index_flags
from absl import app, flags

from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.lear import generator
from ragrl_jax.store import jsonl

DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
PREDICTIONS = flags.DEFINE_string("predictions", "", "Rows of evaluate.py whose evidence takes the passages' place.")
TURNS = flags.DEFINE_bool("turns", True, "Write transcripts; --noturns: the questions with their passages alone.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz]")


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  examples, turns = list(readers.read_examples(DATA.value)), None
  if PREDICTIONS.value:
    examples = generator.from_evidence(examples, jsonl.read(PREDICTIONS.value))
  else:
    examples = index_flags.with_passages(examples)
    turns = generator.demonstrations(examples) if TURNS.value else None
  writers.write_examples(OUT.value, examples, turns=turns)
  print(f"{OUT.value}: {len(examples)} questions, {sum(bool(e.passages) for e in examples)} of them with passages")


if __name__ == "__main__":
  flags.mark_flags_as_required(["data", "out"])
  commands.run(main)
