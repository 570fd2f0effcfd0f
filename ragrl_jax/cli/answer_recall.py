"""Measures a retriever by answers in its passages, and by gold documents: Recall@k, nDCG@k, MRR@k.

  ragrl recall --data QUESTIONS --index INDEX --top_k 5 [--own_passages] [--only type=bridge]

A passage is relevant if its text contains a right answer, by the rule of DPR's script, which leaves titles out. By
answer, questions whose answer is yes or no are left out: passages contain these words without answering. With --index,
what the index finds is measured, by gold documents too (`gold_…`: the articles of the supporting passages). Without
one, or with --own_passages, a question's own passages are. LEAR's Table 3 has Recall and nDCG by answer for HotpotQA's
bridge questions only: --only type=bridge. With --out, each question's scores and the settings are kept in a folder for
`ragrl tables`.
"""

import json
import pathlib

from absl import app, flags

from ragrl_jax.cli import commands, index_flags
from ragrl_jax.data import readers
from ragrl_jax.evaluation import answer_recall
from ragrl_jax.store import addresses, folders

DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "Folder of predictions.jsonl and metrics.json, for `ragrl tables`.")
ONLY = flags.DEFINE_string("only", "", "COLUMN=VALUE: measure only questions whose rows have this value.")


def main():
  if OUT.value:
    folders.refuse_others(OUT.value, folders.SCORES)
  examples = list(readers.read_examples(DATA.value))
  if ONLY.value:
    column, has_value, value = ONLY.value.partition("=")
    if not has_value:
      raise app.UsageError(f"--only={ONLY.value}: write COLUMN=VALUE.")
    own_fields = {"hops", "source"}  # fields of an example; all other columns of a row are in its meta
    of = lambda example: getattr(example, column) if column in own_fields else example.meta.get(column)
    examples = [example for example in examples if str(of(example)) == value]
    if not examples:
      raise ValueError(f"--only={ONLY.value}: no row of {DATA.value} has this value.")
  own_fields = index_flags.OWN.value if flags.FLAGS["own_passages"].present else not index_flags.INDEX.value
  having = sum(bool(example.passages) for example in examples) if own_fields else 0
  examples = index_flags.with_passages(examples, own=own_fields)
  without = 0 if index_flags.INDEX.value else sum(not example.passages for example in examples)
  if without:  # with an index, a question for which it finds nothing counts as missed
    raise ValueError(f"{without} of {len(examples)} questions have no passages: give a retriever with --index.")
  passages, k = [example.passages for example in examples], index_flags.TOP_K.value
  scores = answer_recall.measured(examples, passages, k)
  index = addresses.without_credentials(index_flags.INDEX.value)
  search_note = [f"searches in {index} for {len(examples) - having} questions"] if having < len(examples) else []
  owned = [f"the own passages of {having} questions"] if having else []
  print(json.dumps(dict(measured=" and ".join(search_note + owned), **scores), indent=1))
  if OUT.value:
    index = dict(index=index, **index_flags.retriever().describe()) if index else None
    options = dict(top_k=k, own_passages=None if own_fields else False, retrieval=index)
    settings = dict(data=DATA.value, only=ONLY.value or None, **options)
    answer_recall.write(pathlib.Path(OUT.value), examples, scores, settings)
