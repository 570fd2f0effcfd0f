"""Search-R1 (arXiv 2503.09516): see README.md."""

from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.search_r1 import play as play_lib
from ragrl_jax.recipes.search_r1.parser import STOPS, Parser
from ragrl_jax.recipes.search_r1.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.search_r1.reward import Reward

PRESETS = {
  "paper": dict(
    instructions="paper",  # "paper", "short", or "none" (the bare question)
    max_searches=4,  # turns before the forced answer; NQ's quick start has 2
    max_passage_tokens=166,  # a longer passage is cut: three of them make the authors' 500
    action="last",  # or "first", of several complete pairs in one turn
    format=False,  # score the shape, too
    structure_weight=0.2,
    final_share=0.5,  # 0.1 of 0.2
    retrieval_weight=0.0,
  ),
  "grpo": {},  # the algorithms differ in their configs, not in rules
  "ppo": {},
  "format": dict(format=True),
  "repo": dict(action="first"),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("search_r1", PRESETS, variant, switches)
  recipe_lib.choose("instructions", use["instructions"], tuple(INSTRUCTIONS))
  recipe_lib.choose("action", use["action"], ("last", "first"))
  recipe_lib.whole("max_searches", use["max_searches"], 0)
  if use["max_passage_tokens"] is not None:
    recipe_lib.whole("max_passage_tokens", use["max_passage_tokens"], 1)
  prompt, parser = Prompt(use["instructions"]), Parser(use["action"])
  reward = Reward(
    parser,
    use_format=use["format"],
    structure_weight=use["structure_weight"],
    final_share=use["final_share"],
    retrieval_weight=use["retrieval_weight"],
  )
  play = play_lib.build(prompt, parser, max_searches=use["max_searches"], max_passage_tokens=use["max_passage_tokens"])
  return recipe_lib.Recipe(
    name="search_r1",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=STOPS,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=use,
    searches=use["max_searches"] > 0,
  )
