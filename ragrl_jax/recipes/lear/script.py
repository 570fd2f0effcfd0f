"""The reply of a demonstration: names the supporting passages, extracts a sentence of each, answers; and the probes."""

import random
from collections.abc import Sequence

from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.lear.play import ASK
from ragrl_jax.recipes.lear.prompt import SECTIONS
from ragrl_jax.structs import Example, Segment


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, reply: str) -> str:
  """See `Recipe.script`. reply: a key of SECTIONS."""
  del rng  # there is one way to write it
  facts, answer = scripts.facts(example), scripts.answer(example)
  if segments[-1].text.endswith(ASK):  # a probe
    return f" {answer} </answer>"
  seen = " ".join(
    f"Passage {fact.number}{f', {fact.title},' * bool(fact.title)} helps with {scripts.keywords(fact.question)}."
    for fact in facts
  )
  reason, evidence = f"{seen} It is {answer}.", " ".join(fact.sentence for fact in facts)
  bodies = dict(reason=reason, extract=evidence, answer=answer)
  return "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply]) or f"{evidence} {reason}"
