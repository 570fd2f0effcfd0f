"""Replies of demonstrations, by script, of rows with supporting passages."""

import random
from collections.abc import Sequence

from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.arena.prompt import SECTIONS
from ragrl_jax.structs import Example, Segment


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, reply: str) -> str:
  """See `Recipe.script`. reply: a key of SECTIONS."""
  facts, answer = scripts.facts(example), scripts.answer(example)
  thought = " ".join(f"[{fact.number}] says: {fact.sentence}" for fact in facts)
  thought = f"{thought} So the answer is {answer}."
  bodies = dict(relevance=sorted({fact.number for fact in facts}), analysis=thought, think=thought, answer=answer)
  return "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply])
