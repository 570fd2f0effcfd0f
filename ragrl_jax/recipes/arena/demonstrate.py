"""Replies of demonstrations, by script: of rows with supporting passages, and on the made-up world with faults."""

import random
from collections.abc import Sequence

from ragrl_jax.data.synthetic import World
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.arena.prompt import SECTIONS
from ragrl_jax.structs import MODEL, Example, Segment

FAULTS = ("stop", "wrong")


def demonstrate(
  example: Example,
  world: World,
  rng: random.Random,
  *,
  reply: str = "cited",
  fault: float = 0.65,
  kinds: Sequence[str] = ("stop",),
) -> list[tuple[str, str]]:
  """Answers one question of `data.synthetic` that has passages, correctly or with a fault.

  Args:
    example: with passages, and its decomposition in meta.
    world: the world of the question.
    rng: draws the faults.
    reply: a key of SECTIONS.
    fault: share of questions answered with a fault.
    kinds: the kinds of fault: "stop" cites and answers an earlier hop (not for questions of one hop); "wrong" cites and
      answers a random passage.

  Returns:
    One ("model", text) turn, as for `structs.Episode.from_text`.

  Raises:
    ValueError: a kind that is not in FAULTS, or an unknown reply.
  """
  if reply not in SECTIONS:
    raise ValueError(f"reply={reply!r}: use {', '.join(SECTIONS)}.")
  place = {passage.id: number for number, passage in enumerate(example.passages, 1)}
  _, hops, answer = scripts.draw_fault(example, kinds, FAULTS, fault, rng, world)
  steps = [(place[hop["passage"]], hop["relation"], hop["object"]) for hop in hops]
  cited = sorted({number for number, _, _ in steps})
  analysis = " ".join(f"[{number}] {relation} {found}." for number, relation, found in steps)
  thought = " ".join(f"{relation} {found}." for _, relation, found in steps)
  bodies = dict(relevance=cited, analysis=analysis, think=thought, answer=answer)
  return [(MODEL, "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply]))]


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, reply: str) -> str:
  """See `Recipe.script`. reply: a key of SECTIONS."""
  del segments, rng  # there is one turn, and one way to write it
  facts, answer = scripts.facts(example), scripts.answer(example)
  thought = " ".join(f"[{fact.number}] says: {fact.sentence}" for fact in facts)
  thought = f"{thought} So the answer is {answer}."
  bodies = dict(relevance=sorted({fact.number for fact in facts}), analysis=thought, think=thought, answer=answer)
  return "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply])
