"""Scores transcripts or predictions of other systems:

  python launchers/score_transcripts.py --system research --transcripts TRANSCRIPTS.jsonl --data QUESTIONS.jsonl.gz \
    --model qwen2.5-7b --out out/research/hotpotqa

A row of TRANSCRIPTS has an "id" or a "question" of QUESTIONS, and the text of the model and its search engine
("transcript", "response", "output", "generation" or "messages"), or only a "prediction". The output folder has the
files of launchers/evaluate.py. launchers/tables.py and launchers/compare.py read it.
"""

from absl import app, flags

from ragrl_jax.cli import commands
from ragrl_jax.data import readers
from ragrl_jax.evaluation.transcripts import foreign_rows
from ragrl_jax.prompting import agent_tags
from ragrl_jax.report import metric_tables

SYSTEM = flags.DEFINE_enum("system", None, list(agent_tags.AGENTS), "The system whose tags the transcripts have.")
TRANSCRIPTS = flags.DEFINE_string("transcripts", None, "FILE.jsonl or FILE.json, also with .gz.")
DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
MODEL = flags.DEFINE_string("model", None, "Its model as the tables name it, such as qwen2.5-7b or qwen2.5-7b-base.")
RETRIEVER = flags.DEFINE_string(
  "retriever", None, "Its retriever, corpus and top-k in words, which are shown with the scores."
)
OUT = flags.DEFINE_string("out", None, "Folder of predictions.jsonl and metrics.json.")


def main(argv):
  """Runs `ragrl score`."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}: everything is given as --flag=value.")
  examples = list(readers.read_examples(DATA.value))
  retriever = RETRIEVER.value or "not known"  # None would say that the system does not search
  said = dict(data=DATA.value, model=MODEL.value, transcripts=TRANSCRIPTS.value, retrieval=retriever)
  metrics = foreign_rows.score(TRANSCRIPTS.value, examples, OUT.value, system=SYSTEM.value, settings=said)
  print(metric_tables.one(metrics))
  print(f"{OUT.value}/metrics.json")


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["system", "transcripts", "data", "out"])
  commands.run(main)
