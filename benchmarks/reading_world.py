"""The made-up world for reading: its questions come with passages, and a model may know some of its facts by heart.

Beside the questions of `data.synthetic` there are comparisons of years, questions for yes or no, and questions that
also ask for the steps to the answer.
"""

import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax.data import synthetic, world as world_lib
from ragrl_jax.data.world import COMPANY, PERSON, RELATIONS, TRAIN, YEAR
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Example

YEARS = {"birth year": (PERSON, YEAR), "founding year": (COMPANY, YEAR)}
COMPARISON, YES_NO = "comparison", "yes_no"


@dataclasses.dataclass(frozen=True)
class Settings(world_lib.Settings):
  """Settings of a world for reading. Comparisons need years."""

  years: bool = setting(False, "give people a birth year and companies a founding year")
  memorised: float = setting(0.0, "of the training part's facts, see `World.memory`", unit="share", least=0, most=1)
  counterfactual: float = setting(0.0, "of these, whose passage contradicts the memory", unit="share", least=0, most=1)


@dataclasses.dataclass(frozen=True)
class Fact:
  """One fact: `relation` of `subject` is `object`."""

  subject: str
  relation: str
  object: str

  def sentence(self, wording: str) -> str:
    """The fact as a sentence; `wording` has {s}, {r} and {o} for subject, relation and object."""
    return wording.format(s=self.subject, r=self.relation, o=self.object)


@dataclasses.dataclass(frozen=True)
class World(world_lib.World):
  """A made-up world of which a model may know some facts by heart.

  Attributes:
    memory: (subject, relation) → the object that a model may know; some differ from the passages.
  """

  memory: Mapping[tuple[str, str], str]

  @functools.cached_property
  def stated(self) -> dict[str, Fact]:
    """Passage id → the fact that it states."""
    facts = [Fact(*key, found) for part in self.parts.values() for key, found in part.facts.items()]
    return {self.passage(fact.subject, fact.relation).id: fact for fact in facts}

  def counterfactual(self, subject: str, relation: str) -> bool:
    """Whether the fact's passage contradicts the memory."""
    known = self.memory.get((subject, relation))
    return known is not None and known != self.stated[self.passage(subject, relation).id].object

  def recall(self) -> Iterator[Fact]:
    """The facts of the memory, for training a model on them without passages."""
    return (Fact(subject, relation, value) for (subject, relation), value in self.memory.items())


def build(settings: Settings | None = None, **overrides) -> World:
  """Draws a world. `build(seed=1, years=True)` is `build(Settings(seed=1, years=True))`."""
  settings = dataclasses.replace(settings or Settings(), **overrides)
  rng = random.Random(f"world/{settings.seed}")
  relations = RELATIONS | (YEARS if settings.years else {})
  parts = world_lib.draw_parts(settings, relations, rng)
  memory = _memory(rng, parts[TRAIN], settings, relations)
  return World(**vars(world_lib.state(settings, parts, relations, rng)), memory=memory)


def _memory(rng: random.Random, part: world_lib.Part, settings: Settings, relations) -> dict[tuple[str, str], str]:
  keys = sorted(part.facts)
  memorised = rng.sample(keys, round(settings.memorised * len(keys)))
  memory = {key: part.facts[key] for key in memorised}
  for key in memorised[: round(settings.counterfactual * len(memorised))]:
    memory[key] = world_lib.draw_other(rng, part.kinds, relations[key[1]][1], key[0], part.facts[key])
  return memory


def questions(
  world: World, count: int, *, part: str = TRAIN, passages: int = 0, difficulty: str = "easy", **options
) -> list[Example]:
  """Draws questions about one part of a world.

  Args:
    passages: passages given with each question, the gold passages among them, shuffled; 0 gives none.
    difficulty: "easy" asks for a name; "hard" also asks for the steps to it, so that answers are sentences.
    options: see `synthetic.questions`. A kind of the mix may be "comparison" (which of two is older; the world needs
      years) or "yes_no", too.

  Raises:
    ValueError: an unknown part, kind or difficulty; fewer passages than golds; a world with too few questions.
  """
  if difficulty not in ("easy", "hard"):
    raise ValueError(f"difficulty={difficulty!r}: use 'easy' or 'hard'.")

  def ask(world: World, part: str, kind: int | str, rng: random.Random) -> dict[str, Any]:
    if kind in (COMPARISON, YES_NO):
      return (_compare if kind == COMPARISON else _yes_no)(world, part, rng)
    item = synthetic.ask_chain(world, part, kind, rng)
    return item if difficulty == "easy" else _with_steps(item)

  def give(example: Example, rng: random.Random) -> Example:
    for step in example.meta["decomposition"]:
      key = step["subject"], step["relation"]
      step.update(memorised=key in world.memory, counterfactual=world.counterfactual(*key))
    return _given(world, example, passages, stating, rng) if passages else example

  stating = list(world.parts[part].facts) if part in world.parts else []
  return synthetic.questions(world, count, part=part, ask=ask, give=give, **options)


def _with_steps(item: Mapping[str, Any]) -> dict[str, Any]:
  reasoning = ", and ".join(f"the {relation} of {subject} is {value}" for subject, relation, value in item["steps"])
  question = item["question"].removesuffix("?") + ", step by step?"
  return dict(item, question=question, gold=reasoning[0].upper() + reasoning[1:] + ".")


def comparison_question(pair: Sequence[str], relation: str, *, earlier: bool) -> str:
  """Asks which of two names has the earlier or later year of this relation."""
  return f"Which has the {'earlier' if earlier else 'later'} {relation}, {pair[0]} or {pair[1]}?"


TRIES = 10_000  # to draw two subjects that differ


def _compare(world: World, part: str, rng: random.Random) -> dict[str, Any]:
  if not world.settings.years:
    raise ValueError("comparison questions need a world with years: build(years=True).")
  kinds, facts = world.parts[part].kinds, world.parts[part].facts
  relation = rng.choice(sorted(YEARS))
  for _ in range(TRIES):
    pair = rng.sample(kinds[world.relations[relation][0]], 2)
    years = [int(facts[name, relation]) for name in pair]
    if years[0] != years[1]:
      break
  else:
    raise ValueError(f"the world's {world.relations[relation][0]} have one year: raise the number of entities.")
  earlier = rng.random() < 0.5
  gold = pair[(years[0] > years[1]) == earlier]
  question = comparison_question(pair, relation, earlier=earlier)
  steps = [(name, relation, facts[name, relation]) for name in pair]
  return dict(type=COMPARISON, question=question, gold=gold, steps=steps)


def _yes_no(world: World, part: str, rng: random.Random) -> dict[str, Any]:
  """A question whether two subjects share an object; the answer is yes with probability 1/2."""
  kinds, facts = world.parts[part].kinds, world.parts[part].facts
  yes = rng.random() < 0.5
  while True:
    relation = rng.choice(sorted(r for r, (_, kind) in world.relations.items() if kind != YEAR))
    subjects = kinds[world.relations[relation][0]]
    first = rng.choice(subjects)
    others = [s for s in subjects if s != first and (facts[s, relation] == facts[first, relation]) == yes]
    if others:
      break
  pair = [first, rng.choice(others)]
  rng.shuffle(pair)
  question = f"Do {pair[0]} and {pair[1]} have the same {relation}?"
  steps = [(name, relation, facts[name, relation]) for name in pair]
  return dict(type=YES_NO, question=question, gold="yes" if yes else "no", steps=steps)


def _given(
  world: World, example: Example, count: int, stating: Sequence[tuple[str, str]], rng: random.Random
) -> Example:
  """The example with its gold passages and distractors, shuffled.

  Distractors are first other passages about the same entities, then random passages of `stating`.
  """
  steps, part = [(step["subject"], step["relation"]) for step in example.meta["decomposition"]], example.meta["part"]
  golds = list(dict.fromkeys(world.where[step] for step in steps))
  if count < len(golds):
    raise ValueError(f"passages={count}: a question with {len(golds)} gold passages needs at least as many.")
  if count > len(stating):
    raise ValueError(f"passages={count}: {part} has too few passages that state a fact: ask for fewer.")
  distractors = [world.where[s, r] for s, _ in steps for r in world.relations if (s, r) in world.parts[part].facts]
  rng.shuffle(distractors)
  places = list(dict.fromkeys([*golds, *distractors]))[:count]
  while len(places) < count:
    where = world.where[rng.choice(stating)]
    if where not in places:
      places.append(where)
  rng.shuffle(places)
  at = {where: place for place, where in enumerate(places)}
  return dataclasses.replace(
    example,
    passages=tuple(world.passages[where] for where in places),
    supporting=tuple(sorted(at[where] for where in golds)),
    evidence=tuple((at[world.where[step]], world.passage(*step).text) for step in steps),
  )
