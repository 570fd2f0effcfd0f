"""Turns of demonstrations, by script: of rows with supporting passages, and on the made-up world with faults."""

import random
from collections.abc import Callable, Sequence

from ragrl_jax.data.synthetic import World
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.search_agent import NOTICE
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example, Passage, Segment

FAULTS = ("stop", "wrong", "guess", "repeat", "invalid")
# Texts that a tokenizer trained for this format keeps as one piece each.
MARKS = tuple(f"<{slash}{tag}>" for tag in ("think", "search", "information", "answer") for slash in ("", "/"))


def demonstrate(
  example: Example,
  world: World,
  search: Callable[[str], Sequence[Passage]],
  rng: random.Random,
  *,
  fault: float = 0.65,
  kinds: Sequence[str] = ("stop",),
  think_always: bool = False,
) -> list[tuple[str, str]]:
  """Plays one question of `data.synthetic`, correctly or with a fault.

  Args:
    example: with its decomposition in meta.
    world: the world of the question.
    search: query → passages, best first, from the live retriever, so that demonstrations show its results.
    rng: draws the faults.
    fault: share of questions played with a fault.
    kinds: the kinds of fault: "stop" answers with the result of an earlier hop (not for questions of one hop); "wrong"
      searches for another relation and answers with its result; "guess" answers at once with any name of the right
      kind; "repeat" searches twice for everything; "invalid" forgets an opening tag, gets the notice, and tries again.
    think_always: think before every action, as the preset `format` requires; else only at the start.

  Returns:
    ("model" | "environment", text) turns, as `structs.Episode.from_text` takes them.

  Raises:
    ValueError: a kind is not in FAULTS.
  """
  steps = [(hop["subject"], hop["relation"], hop["object"]) for hop in example.meta["decomposition"]]
  fault_kind, hops, answer = scripts.draw_fault(example, kinds, FAULTS, fault, rng)
  asked = steps[: len(hops)]
  if fault_kind == "guess":
    asked, answer = [], rng.choice(_of_same_kind(world, example))
  elif fault_kind == "wrong":
    at = rng.randrange(len(steps))
    others = [r for r in world.relations_of(world.relations[steps[at][1]][0]) if r != steps[at][1]]
    asked = [*steps[:at], (steps[at][0], rng.choice(others), "")]
    answer = None
  elif fault_kind == "repeat":
    asked = [step for step in steps for _ in range(2)]
  return _transcript(steps, asked, answer, world, search, think_always, invalid=fault_kind == "invalid")


def query(subject: str, relation: str) -> str:
  """The query of a demonstration."""
  return f"{relation} {subject}"


def _transcript(steps, asked, answer, world, search, think_always, invalid) -> list[tuple[str, str]]:
  plan = f"<think> {' '.join(relation for _, relation, _ in steps)} </think>"
  turns, thought, found = [], plan, ()
  if invalid:
    turns = [(MODEL, f"{plan} {query(*asked[0][:2])} </search>"), (ENVIRONMENT, NOTICE)]
  for i, (subject, relation, _) in enumerate(asked):
    if i and think_always:
      thought = f"<think> {relation} {subject} </think>"
    turns.append((MODEL, f"{thought}<search> {query(subject, relation)} </search>"))
    found = search(query(subject, relation))
    turns.append((ENVIRONMENT, passages.block(found)))
    thought = ""
  if answer is None:  # the results of the last search
    read = [fact for passage in found for fact in world.stated.get(passage.id, ())]
    answer = read[0].object if read else asked[-1][0]
  if asked and think_always:
    thought = f"<think> {answer} </think>"
  turns.append((MODEL, f"{thought}<answer> {answer} </answer>"))
  return turns


def _of_same_kind(world: World, example: Example) -> Sequence[str]:
  """Possible answers: names of the gold's part and kind, years, or yes and no."""
  gold = example.golds[0]
  if gold in ("yes", "no"):
    return ("yes", "no")
  if gold.isdigit():
    return tuple(str(year) for year in range(1800, 2000) if str(year) != gold)
  for kind, names in world.parts[example.meta["part"]].kinds.items():
    if gold in names:
      return world.parts[example.meta["part"]].kinds[kind]
  return world.parts[example.meta["part"]].names  # a hard question's gold is a sentence, so any name is wrong


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. searches: the most searches; without any, it answers at once."""
  del rng  # there is one way to write it
  answer = scripts.answer(example)
  if not searches:
    return f"<think> I remember {answer}. </think><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  first = len(segments) == 1
  seen = "I have to search for this." if first else scripts.quoted(new, "Doc") or "This does not say it."
  if query:
    return f"<think> {seen}{'' if first else ' I search on.'} </think><search> {query} </search>"
  return f"<think> {seen} So the answer is {answer}. </think><answer> {answer} </answer>"
