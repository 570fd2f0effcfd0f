"""CARE (EMNLP 2025): see README.md."""

from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.care import curriculum
from ragrl_jax.recipes.care import play as play_lib
from ragrl_jax.recipes.care.parser import Parser
from ragrl_jax.recipes.care.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.care.reward import Reward

PRESETS = {
  "paper": dict(
    instructions="paper",  # "paper", "short", or "none" (context and question alone)
    system="",  # the model's own system prompt, to stand before ours
    titles=True,  # show each passage's title
    answer="last",  # the last "Answer:" behind the thinking; "first": the first anywhere
    accuracy="f1",  # SQuAD's F1; "set_f1": over sets of raw words
    retrieval="strict",  # all quotes, or nothing; "mean": the share of real ones; "repo": see reward.py
    accuracy_weight=0.7,
    format_weight=0.1,
    retrieval_weight=0.2,
    easy_rate=1.0,  # η of the share of easy questions, max(easy_floor, 1 - easy_rate * step / easy_steps)
    easy_floor=0.0,
    easy_steps=350,
  ),
  "repo": dict(answer="first", accuracy="set_f1", retrieval="repo", easy_rate=0.5, easy_floor=0.5, easy_steps=10_000),
  "mean": dict(retrieval="mean"),
  "no_retrieval": dict(retrieval_weight=0.0),
  "easy_only": dict(easy_rate=0.0),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("care", PRESETS, variant, switches)
  recipe_lib.choose("instructions", use["instructions"], tuple(INSTRUCTIONS))
  recipe_lib.choose("answer", use["answer"], ("last", "first"))
  recipe_lib.choose("accuracy", use["accuracy"], ("f1", "set_f1"))
  recipe_lib.choose("retrieval", use["retrieval"], ("strict", "mean", "repo"))
  recipe_lib.whole("easy_steps", use["easy_steps"], 1)
  prompt, parser = Prompt(use["instructions"], use["system"], use["titles"]), Parser(use["answer"])
  weights = {term: use[f"{term}_weight"] for term in ("accuracy", "format", "retrieval")}
  reward = Reward(prompt, parser, accuracy=use["accuracy"], retrieval=use["retrieval"], weights=weights)
  return recipe_lib.Recipe(
    name="care",
    prompt=prompt,
    parser=parser,
    play=play_lib.build(prompt),
    stops=(),
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=use,
    evidence=reward.evidence,
    mixture=curriculum.build(rate=use["easy_rate"], floor=use["easy_floor"], total=use["easy_steps"]),
    needs_passages=True,
  )
