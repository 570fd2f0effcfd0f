"""A made-up world: people, companies and towns, one object a (subject, relation), and the passages that say so.

Names are built of consonant-vowel-consonant syllables, so that a small sentencepiece model finds the syllables and a
model can copy names it never saw. The world has a training part, a held-out part and, if asked for, a development part;
no fact leads from one to another, and no name of the latter two occurs, even as a part of a word, in the training part.

Everything is drawn by `random.Random` from the seed: the same world on every platform.
"""

import dataclasses
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
# What is asked for stands beside what it leads to: small models learn sooner to read several passages.
BESIDE = "{s} has the {r} {o}."
FILLERS = (
  "{s} was in the news last week.",
  "Nobody wrote down what {s} was like in those days.",
  "Of {s} there are many stories, and few agree.",
  "A picture of {s} hangs in the hall.",
)


@dataclasses.dataclass(frozen=True)
class Fact:
  """One statement of the made-up world, such as ("Bovan", "mother", "Kelira")."""

  subject: str
  relation: str
  object: str

  def sentence(self, wording: str) -> str:
    """The fact in a wording with the fields {s}, {r} and {o}: subject, relation, object."""
    return wording.format(s=self.subject, r=self.relation, o=self.object)


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a world is drawn from.

  Attributes:
    seed: of everything below.
    entities: in the training part: half people, a quarter companies, a quarter towns.
    held_out: in the held-out part, divided likewise.
    development: in the development part, for decisions that the held-out part must not make; 0: there is none.
    syllables: how many different ones names are built of.
    facts_per_passage: at most so many facts of one subject in one passage.
    wordings: of sentences, with {s}, {r} and {o} for subject, relation and object; one is drawn for each fact.
    years: people and companies have a birth or founding year, too (comparisons need them).
    memorised: share of the training part's facts that a model may know by heart (`World.memory`).
    counterfactual: share of those whose passage says something else than the memory.
    noise: passages that name an entity and state nothing, as a share of all entities.
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
        raise ValueError(f"wordings={self.wordings}: each must hold {{s}}, {{r}} and {{o}}, and there must be one.")
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
  """One of the closed parts. kinds: kind → names; facts: (subject, relation) → what the passages say."""

  kinds: Mapping[str, tuple[str, ...]]
  facts: Mapping[tuple[str, str], str]

  @property
  def names(self) -> tuple[str, ...]:
    """The names of every kind, in order."""
    return tuple(name for names in self.kinds.values() for name in names)


@dataclasses.dataclass(frozen=True)
class World:
  """
  Attributes:
    settings: what it was drawn from.
    parts: TRAIN, HELD_OUT and, if the settings ask for it, DEVELOPMENT.
    passages: the corpus, all parts and the noise.
    stated: passage id → the facts it states, in its order; empty for noise.
    sentences: passage id → its sentences, in the same order.
    where: (subject, relation) → position in `passages` of the one that states it.
    noise: name → position of the passage that names it and states nothing.
    memory: (subject, relation) → the object that a model may know by heart; some differ from the passages.
    relations: relation → kinds of subject and object.
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
    """The passage that states a subject's relation. Raises KeyError where none does."""
    return self.passages[self.where[subject, relation]]

  def relations_of(self, kind: str) -> tuple[str, ...]:
    """The relations whose subjects are of this kind."""
    return tuple(relation for relation, (subject, _) in self.relations.items() if subject == kind)

  def counterfactual(self, subject: str, relation: str) -> bool:
    """Whether its passage contradicts the memory."""
    known = self.memory.get((subject, relation))
    return known is not None and known != self._fact(subject, relation)

  def recall(self) -> Iterator[Fact]:
    """What a model has by heart, once it has been taught: to be shown to it without passages."""
    return (Fact(subject, relation, known) for (subject, relation), known in self.memory.items())

  def _fact(self, subject: str, relation: str) -> str:
    return next(part.facts[subject, relation] for part in self.parts.values() if (subject, relation) in part.facts)


# No syllable ends in n or r or begins with p: where two meet there would stand "ent", "ort" or "emp", which small
# tokenizers learn from "mentor", "port" and "employer" before they learn the syllables, and then split names by them.
_SYLLABLES = tuple(a + v + b for a in "bdfgklmrstvz" for v in "aeiou" for b in "lskm" if a != b)


def build(settings: Settings | None = None, **overrides) -> World:
  """Draws a world. `build(seed=1, entities=400)` is `build(Settings(seed=1, entities=400))`."""
  settings = dataclasses.replace(settings or Settings(), **overrides)
  rng = random.Random(f"world/{settings.seed}")
  syllables = random.Random("syllables").sample(_SYLLABLES, settings.syllables)  # the same for all seeds
  relations = RELATIONS | (YEARS if settings.years else {})
  unseen = draw_names(rng, syllables, settings.held_out + settings.development)
  train = draw_names(rng, syllables, settings.entities, avoid=unseen)
  parts = {TRAIN: _part(rng, train, relations), HELD_OUT: _part(rng, unseen[: settings.held_out], relations)}
  if settings.development:
    parts[DEVELOPMENT] = _part(rng, unseen[settings.held_out :], relations)
  memory = _memory(rng, parts[TRAIN], settings, relations)
  passages, stated, sentences, where, noise = [], {}, {}, {}, {}
  for part in parts.values():
    for facts in _grouped(part, settings.facts_per_passage):
      identity, said = f"p{len(passages)}", tuple(fact.sentence(rng.choice(settings.wordings)) for fact in facts)
      where.update({(fact.subject, fact.relation): len(passages) for fact in facts})
      stated[identity], sentences[identity] = facts, said
      passages.append(Passage(identity, facts[0].subject, " ".join(said)))
  names = [name for part in parts.values() for name in part.names]
  for name in rng.sample(names, round(settings.noise * len(names))):
    identity, said = f"p{len(passages)}", rng.choice(FILLERS).format(s=name)
    stated[identity], sentences[identity], noise[name] = (), (said,), len(passages)
    passages.append(Passage(identity, name, said))
  return World(settings, parts, tuple(passages), stated, sentences, where, noise, memory, relations)


def draw_names(rng: random.Random, syllables: Sequence[str], count: int, avoid: Sequence[str] = ()) -> list[str]:
  """Different names of two or three syllables; none of `avoid` is one of them or a part of one."""
  names, taken, apart = [], set(avoid), frozenset(avoid)
  while len(names) < count:
    parts = [rng.choice(syllables) for _ in range(rng.choice((2, 3, 3)))]
    name = "".join(parts).capitalize()
    within = ["".join(parts[:2]).capitalize(), "".join(parts[1:]).capitalize()] if len(parts) == 3 else []
    if name in taken or any(part in apart for part in within):
      continue
    taken.add(name)
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
  """Something of this kind that is none of the excluded."""
  while True:
    chosen = str(rng.randrange(1800, 2000)) if kind == YEAR else rng.choice(kinds[kind])
    if chosen not in excluded:
      return chosen


def _memory(rng: random.Random, part: Part, settings: Settings, relations) -> dict[tuple[str, str], str]:
  keys = sorted(part.facts)
  known = rng.sample(keys, round(settings.memorised * len(keys)))
  memory = {key: part.facts[key] for key in known}
  for key in known[: round(settings.counterfactual * len(known))]:
    memory[key] = _other(rng, part.kinds, relations[key[1]][1], key[0], part.facts[key])
  return memory


def _grouped(part: Part, size: int) -> Iterator[tuple[Fact, ...]]:
  """The facts in chunks of one subject."""
  of_subject: dict[str, list[Fact]] = {}
  for (subject, relation), stated in part.facts.items():
    of_subject.setdefault(subject, []).append(Fact(subject, relation, stated))
  for facts in of_subject.values():
    for at in range(0, len(facts), size):
      yield tuple(facts[at : at + size])
