"""Transcripts for SFT: of the study of evidence, of the generator that answers from it, and of FilCo."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragrl_jax.chat.client import Chat
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import tags
from ragrl_jax.data import transcripts as transcripts_lib
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.lear.prompt import SECTIONS, Parser, Prompt
from ragrl_jax.structs import MODEL, Example, Passage

# File of the study → the kind of reply that it teaches. The rationale is the rational model's own reason.
ARMS = {"vanilla": "extract", "rational": "reason_extract"}
LENGTHS = ("passage_tokens", "evidence_tokens")  # columns of predictions: tokens of the extractor
ORACLES = ("string_inclusion", "lexical_overlap")
_END = re.compile(r"(?<=[.!?])\s+")


async def taught(examples: Sequence[Example], teacher: Chat, *, instructions: str = "paper", **options: Any):
  """The teacher's replies, in the recipe's own format. `options` is passed to `data.transcripts.make`.

  Args:
    examples: with passages and golds.
    instructions: of this prompt, as the recipe's switch: "paper" or file:PATH.

  Fates: "kept"; "no passages" (not asked); "no answer" (none, asked twice); "out of shape";
  "wrong answer".

  Source: LEAR sec. 2.2 (DeepSeek-R1, 1,000 NQ questions, of which about 620 were kept).
  """
  parser, prompt = Parser(), Prompt(instructions)

  async def one(example: Example):
    if not example.passages:
      return "no passages", None
    reply = await teacher.ask(prompt.messages(example))
    said = parts.spoken(reply.content)  # without a reasoning model's own thoughts
    # Headings, code fences and remarks around the sections are left out.
    text = "\n".join(f"<{pair.name}>{pair.body}</{pair.name}>" for pair in tags.pairs(said, parser.sections))
    if not parser.in_shape(text):
      return "out of shape", None
    if not qa.exact_match(parser.answer(text) or "", example.golds):
      return "wrong answer", None
    return "kept", [(MODEL, text)]

  return await transcripts_lib.make(examples, one, **options)


def arm(turns: transcripts_lib.Turns, reply: str) -> transcripts_lib.Turns:
  """The same transcript with only the sections of this reply (a key of SECTIONS)."""
  ((_, text),) = turns
  return [(MODEL, "\n".join(f"<{name}> {Parser().section(text, name)} </{name}>" for name in SECTIONS[reply]))]


def answerable(examples: Sequence[Example], recall: str = "words") -> list[Example]:
  """Examples with a passage that contains a gold, as words or letters (`qa.CONTAINS`); the study is tested on these."""
  contains = qa.CONTAINS[recall]
  return [e for e in examples if any(contains(passage.text, e.golds) for passage in e.passages)]


def from_evidence(examples: Iterable[Example], predictions: Iterable[Mapping[str, Any]], by: str = "") -> list[Example]:
  """The examples with the extractor's evidence as their only passage. The generator is tested on them.

  Args:
    predictions: rows of evaluate.py's predictions.jsonl for these questions, in any order; `evidence` is read. Rows and
      examples are matched by source and id, because the ids of each FlashRAG set begin at "test_0".
    by: identifies the extraction, in `meta["extraction"]` of each example; with the lengths of passages and evidence.

  Raises:
    ValueError: an example has no prediction, or its prediction no evidence (the recipe writes none, or it failed).
  """
  by_id = {(row.get("source") or "", str(row["id"])): row for row in predictions}
  result = []
  for example in examples:
    row = by_id.get((example.source, example.id), {})
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
    result.append(dataclasses.replace(example, passages=(passage,), supporting=(), evidence=(), meta=meta))
  return result


def find_oracle(example: Example, by: str) -> str | None:
  """The sentence of the example's passages that a filter should keep; None if there is none.

  "string_inclusion": the first sentence that contains a gold as whole words. "lexical_overlap": the sentence with the
  largest F1 with a gold, the first of equal ones; None if no sentence shares a word with a gold.

  Raises:
    ValueError: `by` is not in ORACLES.

  Source: FilCo (arXiv 2311.08377) sec. 3.1, as LEAR sec. 1 describes it. Its third oracle needs probabilities.
  """
  if by not in ORACLES:
    raise ValueError(f"oracle {by!r}: use {' or '.join(ORACLES)}.")
  sentences = [sentence for passage in example.passages for sentence in _END.split(passage.text.strip()) if sentence]
  if by == "string_inclusion":
    return next((sentence for sentence in sentences if qa.has_answer(sentence, example.golds)), None)
  scores = {sentence: qa.f1(sentence, example.golds) for sentence in sentences}
  best = max(scores, key=scores.__getitem__, default=None)
  return best if best is not None and scores[best] else None


def demonstrate_filter(examples: Sequence[Example], by: str) -> list[tuple[Example, list[tuple[str, str]]]]:
  """(example, transcript in the form of the reply `extract`) of each example in which the oracle finds a sentence."""
  pairs = [(example, find_oracle(example, by)) for example in examples]
  return [
    (example, [(MODEL, f"<extract> {sentence} </extract>")]) for example, sentence in pairs if sentence is not None
  ]
