"""ARENA (arXiv 2505.13258): see README.md."""

from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.arena import play as play_lib
from ragrl_jax.recipes.arena.parser import STOPS, Parser
from ragrl_jax.recipes.arena.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.arena.reward import Reward

PRESETS = {
  "paper": dict(
    instructions="paper",      # "paper", "short", or "none" (question and references alone)
    titles=False,              # show each reference's title
    shape="strict",            # or "repo": see parser.py
    strict_ids=True,           # a JSON list of plain integers; False also takes 1.0 and true for 1
    gold_ids="supporting",     # positions by title; "substring": the first passage that holds an evidence sentence
    accuracy="exact",          # or "f1", which the paper tried and found better on MuSiQue only
    bonus=10.0,                # paid when shape, answer and references are all right
    stop_at_answer=True,       # end the turn at </answer>; False: at EOS
  ),
  "repo": dict(shape="repo", strict_ids=False, gold_ids="substring", stop_at_answer=False),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  use = recipe_lib.settings("arena", PRESETS, variant, switches)
  recipe_lib.choose("instructions", use["instructions"], tuple(INSTRUCTIONS))
  recipe_lib.choose("shape", use["shape"], ("strict", "repo"))
  recipe_lib.choose("gold_ids", use["gold_ids"], ("supporting", "substring"))
  recipe_lib.choose("accuracy", use["accuracy"], ("exact", "f1"))
  prompt, parser = Prompt(use["instructions"], use["titles"]), Parser(use["shape"])
  reward = Reward(
    parser, gold_ids=use["gold_ids"], strict_ids=use["strict_ids"], bonus=use["bonus"], accuracy=use["accuracy"])
  stops = STOPS if use["stop_at_answer"] else ()
  return recipe_lib.Recipe(
    name="arena", prompt=prompt, parser=parser, play=play_lib.build(prompt, stops=stops), stops=stops,
    score=reward.score, weights=reward.weights, outcome=reward.outcome, switches=use)
