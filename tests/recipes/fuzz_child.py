"""Scores made-up transcripts, without the tests' type checks, which take most of the time: fuzz_child.py RECIPE COUNT.

Prints how many were right, and how many had a term that could not be scored. Any other output is a fault.
"""

import json
import random
import sys

from ragrl_jax import recipes
from ragrl_jax.prompting import passages
from ragrl_jax.prompting.search_turns import NOTICE
from ragrl_jax.structs import Episode, Example, Passage

EXAMPLE = Example("1", "Who founded Oslo?", ("Harald III", "Harald Hardrada"))
BLOCKS = (passages.block([Passage("1", "Oslo", "Harald III founded it.")]), passages.block([]))
TAGS = ("think", "search", "answer", "information", "reflect")
PIECES = (
  *(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")), *(f"<{tag}> Oslo </{tag}>" for tag in TAGS),
  "<answer> Harald III </answer>", "<think> Harald III </think>", "<search> Oslo founder </search>", " Harald III ",
  " Oslo ", "\n", "<", "é", "the", "<|im_end|>", "<<think>>", "{0}%s", "\x00", BLOCKS[0])


def transcripts(count, seed=0):
  draw = random.Random(seed)
  for _ in range(count):
    yield [("environment", draw.choice((*BLOCKS, NOTICE, "x"))) if draw.random() < 0.35
           else ("model", "".join(draw.choices(PIECES, k=int(6 * draw.random()))))
           for _ in range(int(5 * draw.random()))]


def main(name, count):
  presets = [recipes.get(name, preset) for preset in recipes.RECIPES[name].PRESETS]
  right = unknown = 0
  for number, turns in enumerate(transcripts(count)):
    recipe = presets[number % len(presets)]
    episode = Episode.from_text(recipe, EXAMPLE, turns)
    terms = recipe.score(EXAMPLE, episode)
    for term, value in terms.items():
      if value is not None and not -1.0 <= value <= 1.0:
        raise SystemExit(f"{recipe.name} {term}={value} of {turns!r}")
    right += recipe.outcome(EXAMPLE, episode)
    unknown += None in terms.values()
  print(json.dumps(dict(right=right, unknown=unknown)))


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]))
