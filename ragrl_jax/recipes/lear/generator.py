"""Data for the separate generator that answers from the evidence: preset `generator`, trained by SFT on (q, P) → a."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragrl_jax.structs import MODEL, Example, Passage

LENGTHS = ("passage_tokens", "evidence_tokens")  # columns of predictions: tokens of the extractor


def demonstrations(examples: Sequence[Example]) -> list[list[tuple[str, str]]]:
  """One transcript per example: its first gold, as the reply of the preset. SFT trains the generator on them.

  Source: LEAR sec. 4 (LoRA, on a question and its passages; without passages for its closed-book row).
  """
  return [[(MODEL, f"<answer> {example.golds[0]} </answer>")] for example in examples]


def from_evidence(examples: Iterable[Example], predictions: Iterable[Mapping[str, Any]], by: str = "") -> list[Example]:
  """The examples with the extractor's evidence as their only passage. The generator is tested on them.

  Args:
    examples: the questions.
    predictions: rows of evaluate.py's predictions.jsonl for these questions, in any order; `evidence` is read. Rows and
      examples are matched by source and id, because the ids of each FlashRAG set begin at "test_0".
    by: identifies the extraction, in `meta["extraction"]` of each example; with the lengths of passages and evidence.

  Raises:
    ValueError: an example has no prediction, or its prediction no evidence (the recipe writes none, or it failed).
  """
  said = {(row.get("source") or "", str(row["id"])): row for row in predictions}
  found = []
  for example in examples:
    row = said.get((example.source, example.id), {})
    evidence = row.get("evidence")
    if evidence is None:
      raise ValueError(
        f"question {example.id!r} of the source {example.source!r} has no evidence among the predictions: make them by "
        "`ragrl evaluate --config=lear` for these questions."
      )
    if row.get("question", example.question) != example.question:
      raise ValueError(
        f"question {example.id!r} of the source {example.source!r} is {example.question!r}, and its prediction answers "
        f"{row['question']!r}: give the questions of the evaluation (--data)."
      )
    passage = Passage(f"{example.id}-evidence", "", evidence)
    meta = {**example.meta, "extraction": dict(by=by, **{name: row.get(name) for name in LENGTHS})}
    found.append(dataclasses.replace(example, passages=(passage,), supporting=(), evidence=(), meta=meta))
  return found
