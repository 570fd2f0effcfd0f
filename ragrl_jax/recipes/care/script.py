"""The reply of a demonstration: quotes a sentence of each supporting passage in the thinking, then answers."""

import random
from collections.abc import Sequence

from ragrl_jax.recipes import scripts
from ragrl_jax.structs import Example, Segment


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, which: str) -> str:
  """See `Recipe.script`. which: how the answer is read; with "whole" the reply is the answer alone."""
  del segments, rng  # there is one turn, and one way to write it
  facts, answer = scripts.facts(example), scripts.answer(example)
  if which == "whole":
    return answer
  quotes = " ".join(f"The context says <retrieval> {fact.sentence} </retrieval>" for fact in facts)
  return f"<think> {quotes} So it is {answer}. </think> Answer: {answer}"
