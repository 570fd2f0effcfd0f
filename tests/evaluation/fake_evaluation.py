"""Makes the folders of two made-up evaluations of VERITAS, the second one better: for the tests of their page."""

import pathlib
import random
import sys

import played

from ragrl_jax import recipes, structs
from ragrl_jax.evaluation import harness

PEOPLE = ("Oda Kelmut", "Ravi Sund", "Ilse Varro", "Tam Bask", "Nele Ostrow", "Jun Hael")
TOWNS = ("Velmar", "Tosk", "Brennau", "Ulm-on-Lake", "Osterra")
SETS = ("nq", "hotpotqa", "musique")
RECIPE = recipes.get("veritas")


def example(i):
  question = f"In which town was {PEOPLE[i % len(PEOPLE)]}, the founder of guild {i}, born?"
  golds, more = (TOWNS[i % len(TOWNS)], TOWNS[i % len(TOWNS)].upper()), dict(source=SETS[i % len(SETS)], hops=1 + i % 3)
  return structs.Example(f"q{i}", question, golds, meta={"gold_ids": [f"p{i}"]}, **more)


def episode(example, skill, rng, filler=""):
  """A search or two, a thought that quotes and cites, and an answer."""
  i = int(example.id[1:])
  town = example.golds[0]
  fact = f"{PEOPLE[i % len(PEOPLE)]} was born in {town} to a family of weavers."
  found = (
    structs.Passage(f"p{i}", f"Guild {i}", f"{fact} The guild had {i} members.{filler}", 12.5),
    structs.Passage(f"x{i}", "Weaving <b>of old</b>", f"Looms are older than guilds.{filler}", 3.25),
  )
  right = rng.random() < skill
  said = town if right else TOWNS[(i + 1) % len(TOWNS)]
  quote = fact if right else f"{PEOPLE[i % len(PEOPLE)]} was certainly never born in {said} at all."
  block = "\n".join(f"Doc {n}(Title: {one.title}) {one.text}" for n, one in enumerate(found, 1))
  model = lambda text, stop: structs.Segment(structs.MODEL, (1,) * (len(text) // 4), text, (), stop)
  query = f"founder of guild {i}"
  thought = f"<think> Doc 1 says: <quote>{quote}</quote> So the answer is {said}. </think>"
  turns = [
    model(f"<think> I look for the founder. </think>\n<search> {query} </search>", "</search>"),
    structs.Segment(structs.ENVIRONMENT, (1,) * 40, f"<information>{block}</information>", (), "", query, found),
    model(f"{thought}\n<answer> {said} </answer>", "</answer>"),
  ]
  prompt = structs.Segment(structs.ENVIRONMENT, (1,) * 90, f"Answer by searching.\nQuestion: {example.question}\n")
  verdict = 1.0 if right else 0.0
  facts = dict(information_think=(verdict,), think_answer=(1.0,))
  failed = dict(ended="failed", failure="the index at http://x is down") if i % 50 == 49 else dict(ended="answer")
  return structs.Episode((prompt, *turns), facts=facts, example_id=example.id, **failed)


def evaluation(folder, skill, number=150, seed=0, filler="", asked=None):
  rng = random.Random(seed)
  play = played.by_example(lambda example: episode(example, skill, rng, filler))
  settings = dict(
    checkpoint=f"/data/me/out/run/checkpoints/{int(100 * skill)}", data="nq,hotpotqa,musique", recipe="veritas",
    preset="paper", switches=dict(RECIPE.switches), sampling="greedy",
    retrieval=dict(index="out/index", kind="bm25", top_k=3),
  )  # fmt: skip
  cost = dict(devices="1 x NVIDIA H100", price_per_hour=1e6)
  harness.evaluate(asked or [*map(example, range(number))], play, RECIPE, folder, settings=settings, **cost)
  return folder


def make(folder, number=150, filler=""):
  folder = pathlib.Path(folder)
  skills = dict(before=0.35, after=0.7)
  return [evaluation(folder / name, skill, number, seed, filler) for seed, (name, skill) in enumerate(skills.items())]


if __name__ == "__main__":
  long = " ".join(f"Further words on guild number {n}." for n in range(20)) if len(sys.argv) > 3 else ""
  print(*make(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 150, long))
