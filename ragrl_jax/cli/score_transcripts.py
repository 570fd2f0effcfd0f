r"""Scores transcripts or predictions of other systems:

  ragrl score --system research --transcripts TRANSCRIPTS.jsonl --data QUESTIONS.jsonl.gz \
    --model qwen2.5-7b --out out/research/hotpotqa

A row of TRANSCRIPTS has an "id" or a "question" of QUESTIONS, and the text of the model and its search engine
("transcript", "response", "output", "generation" or "messages"), or only a "prediction". The output folder has the
files of ragrl evaluate. ragrl tables and ragrl compare read it.
"""

from absl import flags

from ragrl_jax.cli import commands
from ragrl_jax.data import readers
from ragrl_jax.evaluation import foreign_transcripts
from ragrl_jax.recipes.released import agents
from ragrl_jax.report import metric_tables

SYSTEM = flags.DEFINE_enum(
  "system", None, list(agents.AGENTS), "The system whose tags the transcripts have.", required=True
)
TRANSCRIPTS = flags.DEFINE_string("transcripts", None, "FILE.jsonl or FILE.json, also with .gz.", required=True)
DATA = commands.data_flag()
MODEL = flags.DEFINE_string("model", None, "Its model as the tables name it, such as qwen2.5-7b or qwen2.5-7b-base.")
RETRIEVER = flags.DEFINE_string(
  "retriever", None, "Its retriever, corpus and top-k in words, which are shown with the scores."
)
OUT = flags.DEFINE_string("out", None, "Folder of predictions.jsonl and metrics.json.", required=True)


def main():
  examples = list(readers.read_examples(DATA.value))
  retriever = RETRIEVER.value or "not known"  # None would say that the system does not search
  facts = dict(data=DATA.value, model=MODEL.value, transcripts=TRANSCRIPTS.value, retrieval=retriever)
  metrics = foreign_transcripts.score(TRANSCRIPTS.value, examples, OUT.value, system=SYSTEM.value, settings=facts)
  print(metric_tables.one(metrics))
  print(f"{OUT.value}/metrics.json")
