"""Scores made-up transcripts without the tests' type checks, which take most of the time: fuzz_child.py RECIPE COUNT.

Uses every preset in turn. Prints the numbers of right episodes, of episodes with the full reward, and of episodes with
a term that cannot be scored. Any other output is a fault.
"""

import json
import random
import sys

from ragrl_jax import recipes
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.search_agent import NOTICE
from ragrl_jax.structs import Episode, Example, Passage

FOUND = Passage("1", "Oslo", "Harald III founded it.")
EXAMPLE = Example(
  "1",
  "Who founded Oslo?",
  ("Harald III", "Harald Hardrada"),
  (FOUND, Passage("2", "Rome", "Rome lies {0} <answer>.")),
  supporting=(0,),
  evidence=((0, FOUND.text),),
)
BLOCKS = (passages.block([FOUND]), passages.block([]))
TAGS = ("think", "search", "answer", "information", "reflect")
COMMON = (
  "<answer> Harald III </answer>",
  "<think> Harald III </think>",
  " Harald III ",
  " Oslo ",
  "\n",
  "<",
  "é",
  "the",
  "<|im_end|>",
  "<<think>>",
  "{0}%s",
  "\x00",
)
pairs = lambda *names: tuple(f"<{slash}{name}>" for name in names for slash in ("", "/"))
SEARCHING = (
  *COMMON,
  *pairs(*TAGS),
  *(f"<{tag}> Oslo </{tag}>" for tag in TAGS),
  "<search> Oslo founder </search>",
  BLOCKS[0],
)
PIECES = {
  "arena": (
    *COMMON,
    *pairs("relevance", "analysis", "think", "answer"),
    "[1]",
    "[1, 2]",
    "[[[[",
    "1e999",
    "<relevance>[1]</relevance>",
    "<analysis> a < b </analysis>",
    "<relevance>[1]</relevance>\n<analysis>1</analysis>\n<answer>Harald III</answer>",
    BLOCKS[0],
  ),
  "care": (
    *COMMON,
    *pairs("think", "retrieval"),
    "Answer:",
    FOUND.text,
    "Harald III found it.",
    f"<think><retrieval>{FOUND.text}</retrieval></think> Answer: Harald III",
    f"<retrieval>{FOUND.text}</retrieval>",
    BLOCKS[0],
  ),
  "lear": (
    *COMMON,
    *pairs("reason", "extract", "answer"),
    "<reason> Oslo </reason>",
    "<extract> Oslo </extract>",
    "<reason>r</reason><extract>e</extract><answer>Harald III</answer>",
    BLOCKS[0],
  ),
}


def transcripts(count, seed=0, pieces=SEARCHING):
  draw = random.Random(seed)
  for _ in range(count):
    yield [
      ("environment", draw.choice((*BLOCKS, NOTICE, "x")))
      if draw.random() < 0.35
      else ("model", "".join(draw.choices(pieces, k=int(6 * draw.random()))))
      for _ in range(int(5 * draw.random()))
    ]


def facts(name, draw):
  """Facts as models would have answered, sometimes incomplete, and lengths of 0."""
  if name != "lear":
    return {}
  answers = ("Harald III", "Oslo", "", None)
  return dict(
    reason_tokens=draw.randrange(9),
    evidence_tokens=draw.randrange(9),
    passage_tokens=draw.randrange(9),
    reason_answer=draw.choice(answers),
    extract_answer=draw.choice(answers),
  )


def main(name, count):
  presets = [recipes.get(name, preset) for preset in recipes.RECIPES[name].PRESETS]
  draw, right, full, unknown = random.Random(0), 0, 0, 0
  for number, turns in enumerate(transcripts(count, pieces=PIECES.get(name, SEARCHING))):
    recipe = presets[number % len(presets)]
    episode = Episode.from_text(recipe, EXAMPLE, turns, facts=facts(name, draw))
    terms = recipe.score(EXAMPLE, episode)
    least = -1.0 if name == "when_to_search" else 0.0
    for term, value in terms.items():
      if value is not None and not least <= value <= 1.0:
        raise SystemExit(f"{recipe.name} {term}={value} of {turns!r}")
    right += recipe.outcome(EXAMPLE, episode) or 0.0
    full += all(value == 1.0 for value in terms.values())
    unknown += None in terms.values()
  print(json.dumps(dict(right=right, full=full, unknown=unknown)))


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]))
