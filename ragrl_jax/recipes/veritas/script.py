"""The turns of a demonstration: each thought says what the results said, or what to search for; answers from them."""

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
  seen = (
    [scripts.quoted(new, "Doc")]
    if new
    else [
      f"Doc 1 is about {segment.found[0].title}, and no result says it." if segment.found else "Nothing was found."
      for segment in segments[-1:]
      if segment.found is not None
    ]
  )
  if query:
    thought = " ".join([*seen, f"I need to find out: {query}"])
    return f"<think> {thought} </think><search> {query} </search>"
  return f"<think> {seen[0]} So the answer is {answer}. </think><answer> {answer} </answer>"
