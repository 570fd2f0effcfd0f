"""The table "Unearned reward" of a recipe's README, executed: what each transcript earns, and what is logged of it."""

import itertools
import pathlib
import re

from ragrl_jax import recipes
from ragrl_jax.structs import Episode

HEAD = "| Unearned reward"


def rows(name):
  """[(transcript, preset, earned, earned when guarded, trick)]: every row of the table in a recipe's README."""
  text = (pathlib.Path(recipes.RECIPES[name].__file__).parent / "README.md").read_text(encoding="utf-8")
  _, _, *lines = text[text.index(HEAD) :].splitlines()
  found = []
  for line in itertools.takewhile(lambda line: line.startswith("|"), lines):
    told, preset, paid, guarded, logged = (cell.strip() for cell in line.strip("|").split("|"))
    found.append((re.fullmatch("`(.*)`", told)[1], preset.strip("`"), float(paid), float(guarded), logged.strip("`")))
  return found


def earned(name, preset, example, text, **switches):
  """(the reward of this reply, {trick: whether it does it})."""
  recipe = recipes.get(name, preset, **switches)
  episode = Episode.from_text(recipe, example, [("model", text)])
  return recipe.reward(recipe.score(example, episode), 0), recipe.unearned(example, episode)
