"""LEAR's generator, its training and its test data:

  python launchers/make_generator_data.py --data QUESTIONS --out SFT.jsonl.gz
  python launchers/make_generator_data.py --data QUESTIONS --predictions DIR/predictions.jsonl --out ASKED.jsonl.gz

The first writes transcripts question and passages → answer for launchers/sft.py, the second the questions with the
evidence that launchers/evaluate.py --config configs/lear.py:inference found, for launchers/evaluate.py; both with
--config configs/lear.py:generator.
"""

from absl import app, flags

from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.lear import generator
from ragrl_jax.store import jsonl

DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
PREDICTIONS = flags.DEFINE_string("predictions", "", "Rows of evaluate.py whose evidence takes the passages' place.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz]")


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  examples = list(readers.read_examples(DATA.value))
  if PREDICTIONS.value:
    writers.write_examples(OUT.value, generator.from_evidence(examples, jsonl.read(PREDICTIONS.value)))
  else:
    writers.write_examples(OUT.value, examples, turns=generator.demonstrations(examples))
  print(OUT.value)


if __name__ == "__main__":
  flags.mark_flags_as_required(["data", "out"])
  app.run(main)
