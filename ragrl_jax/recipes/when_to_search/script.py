"""The turns of a demonstration: answers some questions from memory, and searches with keywords for the others."""

import random
from collections.abc import Sequence

from ragrl_jax.recipes import scripts
from ragrl_jax.structs import Example, Segment

KNOWN = 0.3  # share of the questions that are answered from memory, if the rows do not say which ones are known


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. meta["known"] says whether the answer is known. searches: the most searches."""
  answer, first = scripts.answer(example), len(segments) == 1
  known = example.meta.get("known")
  if first and (not searches or (rng.random() < KNOWN if known is None else known)):
    return f"<think> I know this. </think><reflect> It is {answer}. </reflect><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  seen = scripts.quoted(new, "Doc") or "The results do not say it."
  said = "<think> I do not know this. </think>" if first else f"<reflect> {seen} </reflect>"
  if query:
    return f"{said}<search> {scripts.keywords(query)} </search>"
  return f"{said}<answer> {answer} </answer>"
