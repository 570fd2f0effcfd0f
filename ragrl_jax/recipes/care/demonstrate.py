"""Replies of demonstrations, by script: of rows with supporting passages, and on the made-up world with faults."""

import random
from collections.abc import Sequence

from ragrl_jax.data.synthetic import World
from ragrl_jax.recipes import scripts
from ragrl_jax.structs import MODEL, Example, Segment

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
  kind, hops, answer = scripts.draw_fault(example, kinds, FAULTS, fault, rng, world)
  steps = [(hop["relation"], hop["subject"], hop["object"], hop["sentence"]) for hop in hops]
  if kind == "misquote":
    names = world.parts[example.meta["part"]].names
    steps = [(r, s, o, sentence.replace(o, rng.choice([n for n in names if n != o]))) for r, s, o, sentence in steps]
  quote = "" if kind == "silent" else " <retrieval> {} </retrieval>"
  thoughts = "".join(f" {r} {s}{quote.replace('{}', sentence)} {o}" for r, s, o, sentence in steps)
  return [(MODEL, f"<think>{thoughts} </think> Answer: {answer}")]


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, which: str) -> str:
  """See `Recipe.script`. which: how the answer is read; with "whole" the reply is the answer alone."""
  del segments, rng  # there is one turn, and one way to write it
  facts, answer = scripts.facts(example), scripts.answer(example)
  if which == "whole":
    return answer
  quotes = " ".join(f"The context says <retrieval> {fact.sentence} </retrieval>" for fact in facts)
  return f"<think> {quotes} So it is {answer}. </think> Answer: {answer}"
