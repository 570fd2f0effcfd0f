"""Lessons in reading: passages about names that occur nowhere else, and questions on them with replies to copy.

Every lesson has a small world of its own. No fact and no name can be learnt by heart, so a model that answers must have
read. A lesson's text is made of turns like a transcript: passages and questions from outside, replies by the model.
"""

import dataclasses
import random
from collections.abc import Mapping, Sequence

from reading_world import COMPARISON, YEARS, Fact, comparison_question

from ragrl_jax.data import world as world_lib
from ragrl_jax.structs import ENVIRONMENT, MODEL

# A passage's line, and how passages and question follow each other.
LAYOUTS = (
  ("[{n}] {text}\n", "{passages}{question}"),
  ("\n{n}. {text}", "{question}{passages}"),
  ("{text}\n\n", "{passages}Question: {question}"),
  ("Doc {n}(Title: {title}) {text}\n", "{passages}{question}"),
)
# How a reply reaches its answer: the facts in the passages' own words, those and their numbers, the facts as relation,
# subject and object, only the numbers of their passages, or no fact at all. The question's last word says which one is
# asked for.
QUOTED, CITED, STEPS, NUMBERS, DIRECT = "quoted", "cited", "steps", "numbers", "direct"
CUES = {QUOTED: " Quote.", CITED: " Cite.", STEPS: "", NUMBERS: " Number.", DIRECT: " Briefly."}
_RELATIONS = world_lib.RELATIONS | YEARS


@dataclasses.dataclass(frozen=True)
class Course:
  """What lessons are like.

  Attributes:
    passages: fewest and most passages of a lesson; each states one fact.
    asked: questions of a lesson, each answered in turn.
    kinds: kind of question → weight: a number of hops (1, 2, 3) or "comparison" (which of two is older).
    replies: QUOTED, CITED, STEPS, NUMBERS or DIRECT → weight.
    wordings: sentences with {s}, {r} and {o}; one is drawn for each passage, or for the lesson if a reply quotes.
    layouts: (a passage's line with {n}, {title} and {text}; {passages} and {question} in their order); one is drawn for
      each lesson.
    related: share of the passages that say more about names of another passage.
    alike: share of the further passages that state a relation of another passage; a question's relation alone then
      does not find its passage.
    syllables: number of different syllables in names.
  """

  passages: tuple[int, int]
  asked: int = 4
  kinds: Mapping[int | str, float] = dataclasses.field(default_factory=lambda: {1: 1.0})
  replies: Mapping[str, float] = dataclasses.field(default_factory=lambda: {QUOTED: 1.0})
  wordings: Sequence[str] = (*world_lib.WORDINGS, world_lib.BESIDE)
  layouts: Sequence[tuple[str, str]] = LAYOUTS
  related: float = 0.7
  alike: float = 0.5
  syllables: int = 200

  def __post_init__(self):
    least, most = self.passages
    needed = max((2 if kind == COMPARISON else kind for kind in self.kinds), default=0)
    if not needed <= least <= most:
      raise ValueError(f"passages={self.passages}: there must be at least {needed}, for the facts of one question.")
    if unknown := [kind for kind in self.kinds if kind not in (1, 2, 3, COMPARISON)]:
      raise ValueError(f"kinds={dict(self.kinds)}: {unknown[0]!r} must be 1, 2 or 3 hops, or {COMPARISON!r}.")
    if unknown := [reply for reply in self.replies if reply not in CUES]:
      raise ValueError(f"replies={dict(self.replies)}: {unknown[0]!r} must be one of {', '.join(CUES)}.")


@dataclasses.dataclass(frozen=True)
class Lesson:
  """One lesson.

  Attributes:
    turns: (owner, text) as in a transcript; a reply follows each question.
    kinds: the kind of each question.
    replies: how each is answered.
    golds: the answer to each.
  """

  turns: tuple[tuple[str, str], ...]
  kinds: tuple[int | str, ...]
  replies: tuple[str, ...]
  golds: tuple[str, ...]


def draw(course: Course, rng: random.Random) -> Lesson:
  """Draws a lesson: its names, its facts, its passages, its questions and their replies."""
  chains: list = []
  while not chains:  # rarely, no question was found
    facts, chains = _facts(course, rng)
  said = rng.choices(*zip(*course.replies.items()), k=len(chains))
  wordings = [rng.choice(course.wordings) for _ in facts]
  if {QUOTED, CITED} & {*said}:  # else the first word of a quote would need to be looked up before any other
    wordings = wordings[:1] * len(facts)
  line, order = rng.choice(course.layouts)
  passages = "".join(
    line.format(n=number, title=fact.subject, text=fact.sentence(wording))
    for number, (fact, wording) in enumerate(zip(facts, wordings), 1)
  )
  turns, kinds, replies, golds = [], [], [], []
  for reply, (kind, steps, question, gold) in zip(said, chains):
    if reply in (CITED, NUMBERS) and "{n}" not in line:  # no number is shown
      reply = QUOTED
    cited = [(facts.index(step) + 1, step, wordings[facts.index(step)]) for step in steps]
    text = _reply(reply, cited, gold, compared=kind == COMPARISON)
    asked = order.format(passages="" if turns else passages, question=question + CUES[reply])
    turns += [(ENVIRONMENT, "\n" + asked if turns else asked), (MODEL, text)]
    kinds.append(kind)
    replies.append(reply)
    golds.append(gold)
  return Lesson(tuple(turns), tuple(kinds), tuple(replies), tuple(golds))


def _reply(kind: str, steps: Sequence[tuple[int, Fact, str]], gold: str, compared: bool) -> str:
  facts = [fact for _, fact, _ in steps]
  said = {
    QUOTED: "".join(f"{fact.sentence(wording)} " for _, fact, wording in steps),
    CITED: "".join(f"{fact.sentence(wording)} [{number}] " for number, fact, wording in steps),
    STEPS: "".join(f"{fact.relation} {fact.subject} is {fact.object}. " for fact in facts),
    NUMBERS: f"{[number for number, _, _ in steps]} ",
    DIRECT: "",
  }[kind]
  if compared and kind not in (NUMBERS, DIRECT):
    # Each step is a copy: the question's words stand before each name, years are compared digit by digit, and what
    # follows the chosen year has followed it before.
    years = [f"{fact.object} of {fact.subject}" for fact in facts]
    if kind == STEPS:
      said = f"{facts[0].relation}, " + " or ".join(f"{f.subject} is {year}" for f, year in zip(facts, years)) + ". "
    (year,) = [year for fact, year in zip(facts, years) if fact.subject == gold]
    said += f"{'earlier' if year == min(years) else 'later'} is {year}. "
  return f" {said}Answer: {gold}"


class _Names:
  """New names of a lesson, a kind each."""

  def __init__(self, rng: random.Random, syllables: int):
    self._rng, self._syllables = rng, world_lib.syllables(syllables)
    self.of_kind: dict[str, list[str]] = {}
    self._taken: set[str] = set()

  def new(self, kind: str) -> str:
    if kind == world_lib.YEAR:
      return str(self._rng.randrange(1800, 2000))
    while True:
      (name,) = world_lib.draw_names(self._rng, self._syllables, 1)
      if name not in self._taken:
        break
    self._taken.add(name)
    self.of_kind.setdefault(kind, []).append(name)
    return name

  def old_or_new(self, kind: str, related: float, *excluded: str) -> str:
    """A name of the lesson with probability `related`, if there is one; else a new one. Years are always new."""
    known = [name for name in self.of_kind.get(kind, ()) if name not in excluded]
    return self._rng.choice(known) if known and self._rng.random() < related else self.new(kind)


def _facts(course: Course, rng: random.Random):
  """(facts, shuffled; [(kind, its facts in order, question, gold)])."""
  names, stated = _Names(rng, course.syllables), {}
  count = rng.randint(*course.passages)
  # Years lead nowhere, so they can only be the last step.
  onward = lambda kind, last=True: sorted(
    r for r, (subject, found) in _RELATIONS.items() if subject == kind and (last or found != world_lib.YEAR)
  )
  subjects = (world_lib.PERSON, world_lib.PERSON, world_lib.COMPANY, world_lib.TOWN)

  def add(subject: str, relation: str, results: str) -> Fact:
    return stated.setdefault((subject, relation), Fact(subject, relation, results))

  chains = []
  for kind in rng.choices(*zip(*course.kinds.items()), k=course.asked):
    needed = 2 if kind == COMPARISON else kind
    if len(stated) + needed > count:
      # No room for new facts: ask along those that are there, where it is possible.
      asked = _along(kind, stated, rng)
    elif kind == COMPARISON:
      asked = _compared(names, add, rng)
    else:
      asked = _chain(kind, names, add, onward, stated, course.related, rng)
    if asked:
      chains.append(asked)
  while len(stated) < count:
    kind = rng.choice(subjects)
    subject = names.old_or_new(kind, course.related)
    known = [relation for _, relation in stated if _RELATIONS[relation][0] == kind]
    relation = rng.choice(known if known and rng.random() < course.alike else onward(kind))
    if (subject, relation) not in stated:
      add(subject, relation, names.old_or_new(_RELATIONS[relation][1], course.related, subject))
  facts = list(stated.values())
  rng.shuffle(facts)
  return facts, chains


def _chain(hops: int, names: _Names, add, onward, stated, related: float, rng: random.Random):
  """A question of so many hops along new facts."""
  kind = rng.choice((world_lib.PERSON, world_lib.PERSON, world_lib.COMPANY, world_lib.TOWN))
  at = names.old_or_new(kind, related)
  steps, been = [], {at}
  for hop in range(hops):
    relation = rng.choice(onward(kind, hop == hops - 1))
    kind = _RELATIONS[relation][1]
    if (at, relation) in stated:
      fact = stated[at, relation]
    else:
      fact = add(at, relation, names.old_or_new(kind, related * 0.5, *been))
    if fact.object in been:
      return None
    steps.append(fact)
    at = fact.object
    been.add(at)
  return hops, steps, _question(steps, kind), at


def _along(hops: int | str, stated, rng: random.Random):
  """A question along facts that are stated already; None if none was found."""
  if hops == COMPARISON:
    return None
  facts = list(stated.values())
  for _ in range(8):
    steps = [rng.choice(facts)]
    while len(steps) < hops:
      following = [fact for fact in facts if fact.subject == steps[-1].object]
      if not following:
        break
      steps.append(rng.choice(following))
    if len({steps[0].subject, *(fact.object for fact in steps)}) == hops + 1:
      return hops, steps, _question(steps, _RELATIONS[steps[-1].relation][1]), steps[-1].object
  return None


def _question(steps: Sequence[Fact], kind: str) -> str:
  return world_lib.chain_question([fact.relation for fact in steps], steps[0].subject, kind) + "?"


def _compared(names: _Names, add, rng: random.Random):
  relation = rng.choice(sorted(YEARS))
  subject, year = YEARS[relation]
  pair = [names.new(subject), names.new(subject)]
  years = [names.new(year) for _ in pair]
  if years[0] == years[1]:
    return None
  steps = [add(name, relation, found) for name, found in zip(pair, years)]
  earlier = rng.random() < 0.5
  gold = pair[(int(years[0]) > int(years[1])) == earlier]
  question = comparison_question(pair, relation, earlier=earlier)
  return COMPARISON, steps, question, gold
