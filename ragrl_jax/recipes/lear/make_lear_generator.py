"""Makes the training and test data of LEAR's generator:

  ragrl make-lear-generator --data QUESTIONS --index INDEX --out SFT.jsonl.gz
  ragrl make-lear-generator --data QUESTIONS --index INDEX --noturns --out ASKED.jsonl.gz
  ragrl make-lear-generator --data QUESTIONS --predictions DIR/predictions.jsonl --out ASKED.jsonl.gz

The first writes transcripts for ragrl sft: question and passages, then the answer. The second writes all
questions with their passages, for the row `Full` and the test with random passages. The third writes the questions with
the evidence that ragrl evaluate --config lear:inference extracted. The last two are for
ragrl evaluate. All three are for --config lear:generator. --index retrieves passages for questions
without passages. Without it, the transcripts of such questions have no passages, for the closed-book row.
"""

import pathlib

from absl import app, flags

from ragrl_jax.cli import commands, index_flags
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import answer_files, episode_rows
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.lear import sft_data
from ragrl_jax.store import jsonl

DATA = commands.data_flag()
PREDICTIONS = flags.DEFINE_string(
  "predictions", "", "Predictions of a finished evaluation; their evidence replaces the passages."
)
TURNS = flags.DEFINE_bool("turns", True, "Write transcripts; --noturns writes only the questions with their passages.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz]", required=True)


def main():
  if PREDICTIONS.value and (unused := commands.given(TURNS, index_flags.INDEX, index_flags.OWN, index_flags.TOP_K)):
    raise app.UsageError(f"{unused} with --predictions: only their evidence is shown. Leave them out.")
  writers.refuse_inputs([OUT.value], [*readers.named(DATA.value), *([PREDICTIONS.value] if PREDICTIONS.value else [])])
  examples, turns = list(readers.read_examples(DATA.value)), None
  if PREDICTIONS.value:
    predictions = list(jsonl.read(PREDICTIONS.value))
    by = episode_rows.digest(predictions, answer_files.finished(pathlib.Path(PREDICTIONS.value).parent)["settings"])
    examples = sft_data.from_evidence(examples, predictions, by)
  else:
    examples = index_flags.with_passages(examples)
    turns = scripts.answer_directly(examples) if TURNS.value else None
  writers.write_examples(OUT.value, examples, turns=turns)
  print(f"{OUT.value}: {len(examples)} questions, {sum(bool(e.passages) for e in examples)} of them with passages")
