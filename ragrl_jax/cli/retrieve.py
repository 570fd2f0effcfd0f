"""Attaches an index's passages to questions: rows for the recipes whose prompts show passages (ARENA, CARE, LEAR, RAG).

  ragrl retrieve --data QUESTIONS --index INDEX --top_k 5 --out ASKED.jsonl.gz [--noown_passages]

Questions that have passages keep them; --noown_passages replaces them. `supporting` marks the retrieved passages that
the row knows as gold: by `gold_ids`, or else by the articles of the supporting passages that it loses. Other rows have
no marks, because a passage with the answer need not support it; ARENA cannot score such rows.
"""

from absl import app, flags

from ragrl_jax.cli import commands, index_flags
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import answer_recall
from ragrl_jax.run import questions

DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz]", required=True)


def main():
  if not index_flags.INDEX.value:
    raise app.UsageError("--index is missing (--help shows an example).")
  writers.refuse_inputs([OUT.value], readers.named(DATA.value))
  examples = list(readers.read_examples(DATA.value))
  with_own = [bool(index_flags.OWN.value and example.passages) for example in examples]
  loaded = index_flags.with_passages(examples)
  examples = [example if kept else questions.marked(example) for example, kept in zip(loaded, with_own, strict=True)]
  writers.write_examples(OUT.value, examples)
  by_answer = [answer_recall.answer_scores(one, one.passages, max(len(one.passages), 1)) for one in examples]
  right = sum(scores is not None and scores["recall"] > 0 for scores in by_answer)  # yes and no are in no passage
  print(
    f"{OUT.value}: {len(examples)} questions, {sum(bool(e.passages) for e in examples)} with passages, {right} with an "
    f"answer in a passage ({right / max(len(examples), 1):.1%}), {sum(bool(e.supporting) for e in examples)} with "
    "marked supporting passages"
  )
