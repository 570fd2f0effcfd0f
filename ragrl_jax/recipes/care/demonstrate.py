"""Scripted demonstrations with quotes on the made-up world, with faults, for the SFT warm start."""

import random
from collections.abc import Sequence

from ragrl_jax.data.synthetic import World
from ragrl_jax.recipes import faults
from ragrl_jax.structs import MODEL, Example

FAULTS = ("stop", "wrong", "misquote", "silent")
# Texts that a tokenizer trained for this format keeps as one piece each.
MARKS = ("<think>", "</think>", "<retrieval>", "</retrieval>", "Answer:")


def demonstrate(
  example: Example, world: World, rng: random.Random, *, fault: float = 0.65, kinds: Sequence[str] = ("stop",)
) -> list[tuple[str, str]]:
  """Answers one question of `data.synthetic` that has passages, correctly or with a fault.

  Args:
    example: with passages, and its decomposition in meta.
    world: the world of the question.
    rng: draws the faults.
    fault: share of questions answered with a fault.
    kinds: the kinds of fault: "stop" quotes and answers an earlier hop (not for questions of one hop); "wrong" quotes
      and answers a random passage; "misquote" changes a name in each quote; "silent" quotes nothing.

  Returns:
    One ("model", text) turn, as for `structs.Episode.from_text`.

  Raises:
    ValueError: a kind is not in FAULTS.
  """
  kind, hops, answer = faults.drawn(example, kinds, FAULTS, fault, rng, world)
  steps = [(hop["relation"], hop["subject"], hop["object"], hop["sentence"]) for hop in hops]
  if kind == "misquote":
    names = world.parts[example.meta["part"]].names
    steps = [(r, s, o, sentence.replace(o, rng.choice([n for n in names if n != o]))) for r, s, o, sentence in steps]
  quote = "" if kind == "silent" else " <retrieval> {} </retrieval>"
  thoughts = "".join(f" {r} {s}{quote.replace('{}', sentence)} {o}" for r, s, o, sentence in steps)
  return [(MODEL, f"<think>{thoughts} </think> Answer: {answer}")]
