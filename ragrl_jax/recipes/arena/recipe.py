"""The recipe: presets, and the parts put together (ARENA, arXiv 2505.13258; README.md). Next: ragrl_jax/train.py."""

from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.arena import play as play_lib
from ragrl_jax.recipes.arena.parser import STOPS, Parser
from ragrl_jax.recipes.arena.prompt import INSTRUCTIONS, SECTIONS, Prompt
from ragrl_jax.recipes.arena.reward import ACCURACY, Reward

PRESETS = {
  "paper": dict(
    instructions="paper",  # "paper", "short", or "none" (question and references alone)
    titles=False,  # show each reference's title
    shape="strict",  # or "repo": see parser.py
    strict_ids=True,  # a JSON list of plain integers; False also takes 1.0 and true for 1
    gold_ids="supporting",  # positions by title; "substring": the first passage that holds an evidence sentence
    reply="cited",  # relevance, analysis, answer; "thought": think, answer; "direct": answer
    accuracy="exact",  # or "f1" or "judge", which the paper tried and found better on MuSiQue only
    bonus=10.0,  # paid when shape, answer and references are all right
    stop_at_answer=True,  # end the turn at </answer>; False: at EOS
  ),
  "repo": dict(shape="repo", strict_ids=False, gold_ids="substring", stop_at_answer=False),
  "f1": dict(accuracy="f1"),
  "judge": dict(accuracy="judge"),
  "no_bonus": dict(bonus=0.0),
  "naive": dict(reply="thought"),
  "direct": dict(reply="direct"),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("arena", PRESETS, variant, switches)
  recipe_lib.choose("instructions", use["instructions"], INSTRUCTIONS)
  recipe_lib.choose("reply", use["reply"], tuple(SECTIONS))
  recipe_lib.choose("shape", use["shape"], ("strict", "repo"))
  recipe_lib.choose("gold_ids", use["gold_ids"], ("supporting", "substring"))
  recipe_lib.choose("accuracy", use["accuracy"], ACCURACY)
  prompt = Prompt(use["instructions"], use["reply"], use["titles"])
  parser = Parser(use["shape"], SECTIONS[use["reply"]])
  reward = Reward(
    parser, gold_ids=use["gold_ids"], strict_ids=use["strict_ids"], bonus=use["bonus"], accuracy=use["accuracy"]
  )
  stops = STOPS if use["stop_at_answer"] else ()
  play = play_lib.build(prompt, parser, stops=stops, judge=use["accuracy"] == "judge")
  return recipe_lib.Recipe(
    name="arena",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=stops,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=use,
    needs_passages=True,
  )
