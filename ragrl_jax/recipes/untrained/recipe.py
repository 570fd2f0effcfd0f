"""Untrained baselines: see README.md."""

from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.untrained import play as play_lib
from ragrl_jax.recipes.untrained.parser import Parser
from ragrl_jax.recipes.untrained.prompt import INSTRUCTIONS, METHODS, Prompt
from ragrl_jax.recipes.untrained.reward import Reward

PRESETS = {
  "paper": dict(
    method="rag",  # see README.md
    instructions="paper",  # "paper", "short", or "none" (the bare question)
    max_searches=1,  # by iter_retgen and the like: how often at most
    max_passage_tokens=None,  # a longer passage is cut
  ),
  "closed_book": dict(method="closed_book", max_searches=0),
  "cot": dict(method="cot", max_searches=0),
  "ircot": dict(method="ircot", max_searches=4),
  "iter_retgen": dict(method="iter_retgen", max_searches=2),
  "self_ask": dict(method="self_ask", max_searches=4),
  "skr": dict(method="skr"),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("untrained", PRESETS, variant, switches)
  recipe_lib.choose("method", use["method"], METHODS)
  recipe_lib.choose("instructions", use["instructions"], INSTRUCTIONS)
  recipe_lib.whole("max_searches", use["max_searches"], 0)
  if use["max_passage_tokens"] is not None:
    recipe_lib.whole("max_passage_tokens", use["max_passage_tokens"], 1)
  prompt, parser = Prompt(use["method"], use["instructions"]), Parser(use["method"])
  reward = Reward(parser)
  play = play_lib.build(prompt, parser, max_searches=use["max_searches"], max_passage_tokens=use["max_passage_tokens"])
  return recipe_lib.Recipe(
    name="untrained",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=parser.stops,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=use,
    searches=use["max_searches"] > 0,
  )
