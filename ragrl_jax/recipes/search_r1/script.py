"""The turns of a demonstration: searches for the supporting passages, quotes what it finds, answers."""

import random
from collections.abc import Sequence

from ragrl_jax.recipes import scripts
from ragrl_jax.structs import Example, Segment


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. searches: the most searches; without any, it answers at once."""
  del rng  # there is one way to write it
  answer = scripts.answer(example)
  if not searches:
    return f"<think> I remember {answer}. </think><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  first = len(segments) == 1
  seen = "I have to search for this." if first else scripts.quoted(new, "Doc") or "This does not say it."
  if query:
    return f"<think> {seen}{'' if first else ' I search on.'} </think><search> {query} </search>"
  return f"<think> {seen} So the answer is {answer}. </think><answer> {answer} </answer>"
