"""FilCo's filter: an oracle chooses a sentence of the passages, and SFT teaches a model to write it."""

import re
from collections.abc import Sequence

from ragrl_jax.core.metrics import qa
from ragrl_jax.structs import MODEL, Example

ORACLES = ("string_inclusion", "lexical_overlap")
_END = re.compile(r"(?<=[.!?])\s+")


def oracle(example: Example, by: str) -> str | None:
  """The sentence of the example's passages that a filter should keep; None if there is none.

  "string_inclusion": the first sentence that contains a gold as whole words. "lexical_overlap": the sentence with the
  largest F1 with a gold, the first of equal ones; None if no sentence shares a word with a gold.

  Raises:
    ValueError: `by` is not in ORACLES.

  Source: FilCo (arXiv 2311.08377) sec. 3.1, as LEAR sec. 1 describes it. Its third oracle needs probabilities.
  """
  if by not in ORACLES:
    raise ValueError(f"oracle {by!r}: use {' or '.join(ORACLES)}.")
  found = [sentence for passage in example.passages for sentence in _END.split(passage.text.strip()) if sentence]
  if by == "string_inclusion":
    return next((sentence for sentence in found if qa.has_answer(sentence, example.golds)), None)
  best = max(found, key=lambda sentence: qa.f1(sentence, example.golds), default=None)
  return best if best is not None and qa.f1(best, example.golds) else None


def demonstrations(examples: Sequence[Example], by: str) -> list[tuple[Example, list[tuple[str, str]]]]:
  """(example, transcript in the form of the reply `extract`) of each example in which the oracle finds a sentence."""
  kept = [(example, oracle(example, by)) for example in examples]
  return [
    (example, [(MODEL, f"<extract> {sentence} </extract>")]) for example, sentence in kept if sentence is not None
  ]
