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
from collections.abc import Mapping, Sequence

from ragrl_jax.settings.fields import Checked, Rules, setting
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
WORDINGS = ("The {r} of {s} is {o}.", "{o} is the {r} of {s}.", "{s} has {o} as {r}.")
# Relation and object are adjacent: with this wording small models learn sooner to read several passages.
BESIDE = "{s} has the {r} {o}."
# No syllable ends in n or r, or begins with p. Otherwise names would contain "ent", "ort" or "emp". Small tokenizers
# learn these pieces from "mentor", "port" and "employer" before the syllables, and would split names at them.
_SYLLABLES = tuple(a + v + b for a in "bdfgklmrstvz" for v in "aeiou" for b in "lskm" if a != b)


@dataclasses.dataclass(frozen=True)
class Settings(Checked):
  """Settings of a world. Entities are half people, a quarter companies, a quarter towns."""

  seed: int = 0
  entities: int = setting(4000, "in the training part", least=8)
  held_out: int = setting(120, "in the held-out part", least=8)
  development: int = setting(0, "in the part that serves decisions such as when to stop training; 0 for none")
  syllables: int = setting(48, "number of different syllables in names", least=8, most=len(_SYLLABLES))
  wordings: tuple[str, ...] = setting(WORDINGS, "sentences with {s}, {r} and {o}; one is drawn for each fact")

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield not 0 < self.development < 8, f"development={self.development}: a part needs at least 8 entities, or 0."
    slots = all(slot in wording for wording in self.wordings or ("",) for slot in ("{s}", "{r}", "{o}"))
    yield slots, f"wordings={self.wordings}: there must be one or more; each must hold {{s}}, {{r}} and {{o}}."
    yield (
      self.entities + self.held_out + self.development <= self.syllables**3 // 2,
      f"{self.entities} + {self.held_out} + {self.development} names do not fit into {self.syllables} syllables: "
      "raise syllables.",
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
    passages: the corpus: a passage of one sentence for each fact of all parts.
    where: (subject, relation) → position in `passages` of the passage that states it.
    relations: relation → (kind of its subject, kind of its object).
  """

  settings: Settings
  parts: Mapping[str, Part]
  passages: tuple[Passage, ...]
  where: Mapping[tuple[str, str], int]
  relations: Mapping[str, tuple[str, str]]

  def passage(self, subject: str, relation: str) -> Passage:
    """The passage that states this relation of this subject."""
    return self.passages[self.where[subject, relation]]

  def relations_of(self, kind: str) -> tuple[str, ...]:
    """The relations whose subjects are of this kind."""
    return tuple(relation for relation, (subject, _) in self.relations.items() if subject == kind)


@functools.cache
def syllables(count: int) -> tuple[str, ...]:
  """The first `count` syllables of names, the same for all worlds."""
  return tuple(random.Random("syllables").sample(_SYLLABLES, count))


def build(settings: Settings | None = None, **overrides) -> World:
  """Draws a world. `build(seed=1, entities=400)` is `build(Settings(seed=1, entities=400))`."""
  settings = dataclasses.replace(settings or Settings(), **overrides)
  rng = random.Random(f"world/{settings.seed}")
  return state(settings, draw_parts(settings, RELATIONS, rng), RELATIONS, rng)


def draw_parts(settings: Settings, relations: Mapping[str, tuple[str, str]], rng: random.Random) -> dict[str, Part]:
  """The names and facts of each part."""
  unseen = draw_names(rng, syllables(settings.syllables), settings.held_out + settings.development)
  train = draw_names(rng, syllables(settings.syllables), settings.entities, avoid=unseen)
  parts = {TRAIN: _part(rng, train, relations), HELD_OUT: _part(rng, unseen[: settings.held_out], relations)}
  if settings.development:
    parts[DEVELOPMENT] = _part(rng, unseen[settings.held_out :], relations)
  return parts


def state(
  settings: Settings, parts: Mapping[str, Part], relations: Mapping[str, tuple[str, str]], rng: random.Random
) -> World:
  """The world whose passages state the facts of these parts, subject by subject."""
  passages, where = [], {}
  for part in parts.values():
    for subject, relation in ((name, relation) for name in part.names for relation in relations):
      if (subject, relation) in part.facts:
        text = rng.choice(settings.wordings).format(s=subject, r=relation, o=part.facts[subject, relation])
        where[subject, relation] = len(passages)
        passages.append(Passage(f"p{len(passages)}", subject, text))
  return World(settings, parts, tuple(passages), where, relations)


def chain_question(relations: Sequence[str], start: str, kind: str) -> str:
  """A question that follows these relations, one after the other, from `start`. `kind` is the answer's. No "?"."""
  return f"{'Who' if kind == PERSON else 'What'} is the {' of the '.join(reversed(relations))} of {start}"


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
      facts[subject, relation] = draw_other(rng, kinds, objects, subject)
  return Part(kinds, facts)


def draw_other(rng: random.Random, kinds: Mapping[str, Sequence[str]], kind: str, *excluded: str) -> str:
  """A random entity or year of this kind that is not excluded."""
  if kind != YEAR and not set(kinds[kind]) - set(excluded):
    raise ValueError(f"the world has only {len(kinds[kind])} of the kind {kind!r}: raise the number of entities.")
  while True:
    choice = str(rng.randrange(1800, 2000)) if kind == YEAR else rng.choice(kinds[kind])
    if choice not in excluded:
      return choice
