"""A made-up world: people, companies and towns, one object for each (subject, relation), and passages that state them.

Names consist of consonant-vowel-consonant syllables. A small SentencePiece model finds these syllables, so that a
language model can copy names it has never seen. The world has a training part, a held-out part and optionally a
development part. No fact connects two parts. Names of the other parts never occur in the training part, not even inside
a word.

Everything is drawn by `random.Random` from the seed, so that the world is the same on every platform.
"""

import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping, Sequence

from ragrl_jax.structs import Passage

TRAIN, HELD_OUT, DEVELOPMENT = "train", "held_out", "development"
PERSON, COMPANY, TOWN, YEAR = "person", "company", "town", "year"

# relation → (kind of its subject, kind of its object)
RELATIONS = {
  "lawyer": (PERSON, PERSON),
  "mentor": (PERSON, PERSON),
  "employer": (PERSON, COMPANY),
  "birthplace": (PERSON, TOWN),
  "founder": (COMPANY, PERSON),
  "rival": (COMPANY, COMPANY),
  "seat": (COMPANY, TOWN),
  "mayor": (TOWN, PERSON),
  "port": (TOWN, TOWN),
}
YEARS = {"birth year": (PERSON, YEAR), "founding year": (COMPANY, YEAR)}
WORDINGS = ("The {r} of {s} is {o}.", "{o} is the {r} of {s}.", "{s} has {o} as {r}.")
# Relation and object are adjacent: with this wording small models learn sooner to read several passages.
BESIDE = "{s} has the {r} {o}."
FILLERS = (
  "{s} was in the news last week.",
  "Nobody wrote down what {s} was like in those days.",
  "Of {s} there are many stories, and few agree.",
  "A picture of {s} hangs in the hall.",
)


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
class Settings:
  """Settings of a world.

  Attributes:
    seed: seed of the whole world.
    entities: entities in the training part: half people, a quarter companies, a quarter towns.
    held_out: entities in the held-out part, divided likewise.
    development: entities in the development part, which serves decisions such as when to stop training; 0 for none.
    syllables: number of different syllables in names.
    facts_per_passage: most facts, all of one subject, in one passage.
    wordings: sentences with {s}, {r} and {o} for subject, relation and object; one is drawn for each fact.
    years: give people a birth year and companies a founding year (needed for comparisons).
    memorised: share of the training part's facts that a model may know by heart (`World.memory`).
    counterfactual: share of the memorised facts whose passage contradicts the memory.
    noise: passages that name an entity and state no fact, as a share of all entities.
  """

  seed: int = 0
  entities: int = 4000
  held_out: int = 120
  development: int = 0
  syllables: int = 48
  facts_per_passage: int = 1
  wordings: tuple[str, ...] = WORDINGS
  years: bool = False
  memorised: float = 0.0
  counterfactual: float = 0.0
  noise: float = 0.0

  def __post_init__(self):
    for name in ("entities", "held_out"):
      if getattr(self, name) < 8:
        raise ValueError(f"{name}={getattr(self, name)}: a world needs at least 8 entities in each part.")
    if self.development and self.development < 8:
      raise ValueError(f"development={self.development}: a part needs at least 8 entities; 0 leaves it out.")
    if self.facts_per_passage < 1:
      raise ValueError(f"facts_per_passage={self.facts_per_passage}: it must be at least 1.")
    for wording in self.wordings or ("",):
      if not all(slot in wording for slot in ("{s}", "{r}", "{o}")):
        raise ValueError(f"wordings={self.wordings}: there must be one or more; each must hold {{s}}, {{r}} and {{o}}.")
    for name in ("memorised", "counterfactual", "noise"):
      if not 0.0 <= getattr(self, name) <= 1.0:
        raise ValueError(f"{name}={getattr(self, name)}: it is a share, from 0 to 1.")
    if not 8 <= self.syllables <= len(_SYLLABLES):
      raise ValueError(f"syllables={self.syllables}: it must be from 8 to {len(_SYLLABLES)}.")
    if self.entities + self.held_out + self.development > self.syllables**3 // 2:
      raise ValueError(
        f"{self.entities} + {self.held_out} + {self.development} names do not fit into {self.syllables} syllables: "
        "raise syllables."
      )


@dataclasses.dataclass(frozen=True)
class Part:
  """One part of the world.

  Attributes:
    kinds: kind → names.
    facts: (subject, relation) → object, as the passages state it.
  """

  kinds: Mapping[str, tuple[str, ...]]
  facts: Mapping[tuple[str, str], str]

  @property
  def names(self) -> tuple[str, ...]:
    """All names of the part."""
    return tuple(name for names in self.kinds.values() for name in names)


@dataclasses.dataclass(frozen=True)
class World:
  """A made-up world and its corpus.

  Attributes:
    settings: the settings that it was drawn from.
    parts: TRAIN, HELD_OUT and, if the settings ask for it, DEVELOPMENT → the part.
    passages: the corpus: passages of all parts, and noise.
    stated: passage id → the facts that it states, in order; empty for noise.
    sentences: passage id → its sentences, in the same order.
    where: (subject, relation) → position in `passages` of the passage that states it.
    noise: name → position of the passage that names it and states no fact.
    memory: (subject, relation) → the object that a model may know by heart; some differ from the passages.
    relations: relation → (kind of its subject, kind of its object).
  """

  settings: Settings
  parts: Mapping[str, Part]
  passages: tuple[Passage, ...]
  stated: Mapping[str, tuple[Fact, ...]]
  sentences: Mapping[str, tuple[str, ...]]
  where: Mapping[tuple[str, str], int]
  noise: Mapping[str, int]
  memory: Mapping[tuple[str, str], str]
  relations: Mapping[str, tuple[str, str]]

  def passage(self, subject: str, relation: str) -> Passage:
    """The passage that states this relation of this subject."""
    return self.passages[self.where[subject, relation]]

  def relations_of(self, kind: str) -> tuple[str, ...]:
    """The relations whose subjects are of this kind."""
    return tuple(relation for relation, (subject, _) in self.relations.items() if subject == kind)

  def counterfactual(self, subject: str, relation: str) -> bool:
    """Whether the fact's passage contradicts the memory."""
    known = self.memory.get((subject, relation))
    return known is not None and known != self._fact(subject, relation)

  def recall(self) -> Iterator[Fact]:
    """The facts of the memory, for training a model on them without passages."""
    return (Fact(subject, relation, value) for (subject, relation), value in self.memory.items())

  def _fact(self, subject: str, relation: str) -> str:
    return next(part.facts[subject, relation] for part in self.parts.values() if (subject, relation) in part.facts)


# No syllable ends in n or r, or begins with p. Otherwise names would contain "ent", "ort" or "emp". Small tokenizers
# learn these pieces from "mentor", "port" and "employer" before the syllables, and would split names at them.
_SYLLABLES = tuple(a + v + b for a in "bdfgklmrstvz" for v in "aeiou" for b in "lskm" if a != b)


@functools.cache
def syllables(count: int) -> tuple[str, ...]:
  """The first `count` syllables of names, the same for all worlds."""
  return tuple(random.Random("syllables").sample(_SYLLABLES, count))


def build(settings: Settings | None = None, **overrides) -> World:
  """Draws a world. `build(seed=1, entities=400)` is `build(Settings(seed=1, entities=400))`."""
  settings = dataclasses.replace(settings or Settings(), **overrides)
  rng = random.Random(f"world/{settings.seed}")
  relations = RELATIONS | (YEARS if settings.years else {})
  unseen = draw_names(rng, syllables(settings.syllables), settings.held_out + settings.development)
  train = draw_names(rng, syllables(settings.syllables), settings.entities, avoid=unseen)
  parts = {TRAIN: _part(rng, train, relations), HELD_OUT: _part(rng, unseen[: settings.held_out], relations)}
  if settings.development:
    parts[DEVELOPMENT] = _part(rng, unseen[settings.held_out :], relations)
  memory = _memory(rng, parts[TRAIN], settings, relations)
  passages, stated, sentences, where, noise = [], {}, {}, {}, {}
  for part in parts.values():
    for facts in _grouped(part, settings.facts_per_passage):
      identity, texts = f"p{len(passages)}", tuple(fact.sentence(rng.choice(settings.wordings)) for fact in facts)
      where.update({(fact.subject, fact.relation): len(passages) for fact in facts})
      stated[identity], sentences[identity] = facts, texts
      passages.append(Passage(identity, facts[0].subject, " ".join(texts)))
  names = [name for part in parts.values() for name in part.names]
  for name in rng.sample(names, round(settings.noise * len(names))):
    identity, texts = f"p{len(passages)}", rng.choice(FILLERS).format(s=name)
    stated[identity], sentences[identity], noise[name] = (), (texts,), len(passages)
    passages.append(Passage(identity, name, texts))
  return World(settings, parts, tuple(passages), stated, sentences, where, noise, memory, relations)


def chain_question(relations: Sequence[str], start: str, kind: str) -> str:
  """A question that follows these relations, one after the other, from `start`. `kind` is the answer's. No "?"."""
  return f"{'Who' if kind == PERSON else 'What'} is the {' of the '.join(reversed(relations))} of {start}"


def comparison_question(pair: Sequence[str], relation: str, *, earlier: bool) -> str:
  """Asks which of two names has the earlier or later year of this relation."""
  return f"Which has the {'earlier' if earlier else 'later'} {relation}, {pair[0]} or {pair[1]}?"


def draw_names(rng: random.Random, syllables: Sequence[str], count: int, avoid: Sequence[str] = ()) -> list[str]:
  """`count` different names of two or three syllables. No name of `avoid` equals one of them or is a part of one."""
  names, used, avoided = [], set(avoid), frozenset(avoid)
  while len(names) < count:
    parts = [rng.choice(syllables) for _ in range(rng.choice((2, 3, 3)))]
    name = "".join(parts).capitalize()
    within = ["".join(parts[:2]).capitalize(), "".join(parts[1:]).capitalize()] if len(parts) == 3 else []
    if name in used or any(part in avoided for part in within):
      continue
    used.add(name)
    names.append(name)
  return names


def _part(rng: random.Random, names: list[str], relations: Mapping[str, tuple[str, str]]) -> Part:
  half, quarter = len(names) // 2, len(names) // 4
  kinds = {
    PERSON: tuple(names[:half]),
    COMPANY: tuple(names[half : half + quarter]),
    TOWN: tuple(names[half + quarter :]),
  }
  facts = {}
  for relation, (subjects, objects) in relations.items():
    for subject in kinds[subjects]:
      facts[subject, relation] = _other(rng, kinds, objects, subject)
  return Part(kinds, facts)


def _other(rng: random.Random, kinds: Mapping[str, Sequence[str]], kind: str, *excluded: str) -> str:
  """A random entity or year of this kind that is not excluded."""
  if kind != YEAR and not set(kinds[kind]) - set(excluded):
    raise ValueError(f"the world has only {len(kinds[kind])} of the kind {kind!r}: raise the number of entities.")
  while True:
    choice = str(rng.randrange(1800, 2000)) if kind == YEAR else rng.choice(kinds[kind])
    if choice not in excluded:
      return choice


def _memory(rng: random.Random, part: Part, settings: Settings, relations) -> dict[tuple[str, str], str]:
  keys = sorted(part.facts)
  memorised = rng.sample(keys, round(settings.memorised * len(keys)))
  memory = {key: part.facts[key] for key in memorised}
  for key in memorised[: round(settings.counterfactual * len(memorised))]:
    memory[key] = _other(rng, part.kinds, relations[key[1]][1], key[0], part.facts[key])
  return memory


def _grouped(part: Part, size: int) -> Iterator[tuple[Fact, ...]]:
  """The facts in groups of at most `size`, each group about one subject."""
  of_subject: dict[str, list[Fact]] = {}
  for (subject, relation), value in part.facts.items():
    of_subject.setdefault(subject, []).append(Fact(subject, relation, value))
  for facts in of_subject.values():
    for at in range(0, len(facts), size):
      yield tuple(facts[at : at + size])
