"""Faults of scripted demonstrations on the made-up world, for the SFT warm start."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.data.world import World
from ragrl_jax.structs import Example


def drawn(
  example: Example,
  kinds: Sequence[str],
  known: Sequence[str],
  share: float,
  rng: random.Random,
  world: World | None = None,
) -> tuple[str, Sequence[Mapping[str, Any]], str]:
  """(a fault, the hops that a demonstration reads, its answer). Two faults change hops and answer here.

  "stop": the answer is the object of an earlier hop, the last one read (not for questions of one hop). "wrong", with a
  `world`: what a random passage states is the only hop.

  Args:
    example: with its decomposition in meta.
    kinds: the faults to draw from. The fault is "" except for a share of questions.
    known: the recipe's faults.
    share: share of questions with a fault.
    rng: draws.
    world: the world of an example with passages.

  Raises:
    ValueError: one of the kinds is not in `known`.
  """
  for kind in kinds:
    if kind not in known:
      raise ValueError(f"fault kind {kind!r}: use {', '.join(known)}.")
  fault = rng.choice(list(kinds)) if rng.random() < share else ""
  hops, answer = list(example.meta["decomposition"]), example.golds[0]
  if fault == "stop" and len(hops) > 1:
    hops = hops[: rng.randint(1, len(hops) - 1)]
    answer = hops[-1]["object"]
  elif fault == "wrong" and world is not None:
    read = rng.choice([passage.id for passage in example.passages if world.stated[passage.id]])
    fact, answer = world.stated[read][0], world.stated[read][0].object
    sentence = world.sentences[read][0]
    hops = [dict(passage=read, subject=fact.subject, relation=fact.relation, object=answer, sentence=sentence)]
  return fault, hops, answer
