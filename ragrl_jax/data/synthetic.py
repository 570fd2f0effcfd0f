"""Questions about the made-up world (`world.py`), for the quickstart, the tests and smoke runs.

Every question has its golds, its hops, and for each hop the passage that states it (`meta["decomposition"]`). Held-out
questions are about entities that occur in no training question, passage or demonstration. They can only be answered by
reading.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from ragrl_jax.data import world as world_lib
from ragrl_jax.data.world import BESIDE, DEVELOPMENT, HELD_OUT, TRAIN, Settings, World, build
from ragrl_jax.structs import Example

__all__ = ["BESIDE", "DEVELOPMENT", "HELD_OUT", "TRAIN", "Settings", "World", "build", "lines", "questions"]

COMPARISON, YES_NO = "comparison", "yes_no"
_ATTEMPTS = 200  # draws of one question before the world counts as having no further one


def questions(
  world: World,
  count: int,
  *,
  part: str = TRAIN,
  mix: Mapping[int | str, float] | None = None,
  seed: int = 0,
  passages: int = 0,
  difficulty: str = "easy",
  distinct: bool = True,
) -> list[Example]:
  """Draws questions about one part of a world.

  Args:
    part: TRAIN, HELD_OUT or DEVELOPMENT.
    mix: kind → weight. A kind is a number of hops (1, 2, 3), "comparison" (which of two is older; the world needs
      years) or "yes_no". Counts differ from the exact proportions by less than one. None means {1: 4, 2: 6}.
    seed: seed of the draw; different parts give unrelated questions even with the same seed.
    passages: passages given with each question, the gold passages among them, shuffled; 0 gives none, so that the
      model must search.
    difficulty: "easy" asks for a name; "hard" also asks for the steps to it, so that answers are sentences.
    distinct: ask no question twice. Use False for more questions than the world has.

  Raises:
    ValueError: an unknown part, kind or difficulty; fewer passages than golds; a world with too few questions.
  """
  if part not in world.parts:
    raise ValueError(f"part={part!r}: this world has {', '.join(map(repr, world.parts))}.")
  if difficulty not in ("easy", "hard"):
    raise ValueError(f"difficulty={difficulty!r}: use 'easy' or 'hard'.")
  mix = {1: 4, 2: 6} if mix is None else dict(mix)
  rng = random.Random(f"questions/{world.settings.seed}/{part}/{seed}")
  kinds = _kinds(mix, count)
  rng.shuffle(kinds)
  drawn, seen, stating = [], set(), list(world.parts[part].facts)
  for number, kind in enumerate(kinds):
    for _ in range(_ATTEMPTS):
      if kind in (COMPARISON, YES_NO):
        item = (_compare if kind == COMPARISON else _yes_no)(world, part, rng)
      else:
        item = _chain(world, part, int(kind), difficulty, rng)
      if not distinct or item["question"] not in seen:
        break
    else:
      raise ValueError(f"{part} has no {count} different questions of the mix {mix}: ask for fewer, or distinct=False.")
    seen.add(item["question"])
    drawn.append(_example(world, f"{part}-{seed}-{number}", kind, item, passages, part, stating, rng))
  return drawn


def lines(world: World, *, seed: int = 0, fillers: int = 3000, num_questions: int = 1000) -> Iterator[str]:
  """Text for training a tokenizer: passages and `num_questions` questions of the training part, and `fillers` random
  names that are of no other part. The seed draws questions and names.
  """
  known = world.parts[TRAIN].facts
  states = lambda passage: any((fact.subject, fact.relation) in known for fact in world.stated[passage.id])
  yield from (passage.text for passage in world.passages if states(passage))
  yield from (example.question for example in questions(world, num_questions, seed=seed, distinct=False))
  syllables = sorted({name[at : at + 3].lower() for name in world.parts[TRAIN].names for at in range(0, len(name), 3)})
  rng = random.Random(f"lines/{world.settings.seed}/{seed}")
  unseen = [name for part in world.parts if part != TRAIN for name in world.parts[part].names]
  yield from world_lib.draw_names(rng, syllables, fillers, avoid=unseen)


def _kinds(mix: Mapping[int | str, float], count: int) -> list[int | str]:
  """`count` kinds in the mix's proportions, by the method of largest remainders."""
  for kind in mix:
    if kind not in (1, 2, 3, COMPARISON, YES_NO):
      raise ValueError(f"kind {kind!r} in the mix: it must be 1, 2 or 3 hops, {COMPARISON!r} or {YES_NO!r}.")
  total = sum(mix.values())
  if total <= 0 or min(mix.values()) < 0:
    raise ValueError(f"mix={dict(mix)}: weights must be positive.")
  shares = {kind: count * weight / total for kind, weight in mix.items()}
  numbers = {kind: int(share) for kind, share in shares.items()}
  by_remainder = sorted(mix, key=lambda kind: numbers[kind] - shares[kind])
  for kind in by_remainder[: count - sum(numbers.values())]:
    numbers[kind] += 1
  return [kind for kind in mix for _ in range(numbers[kind])]


def _chain(world: World, part: str, hops: int, difficulty: str, rng: random.Random) -> dict:
  """{"question", "gold", "steps": [(subject, relation, object)]}, as from `_compare` and `_yes_no`."""
  kinds, facts = world.parts[part].kinds, world.parts[part].facts
  while True:
    kind = rng.choice(sorted(kinds))
    start = at = rng.choice(kinds[kind])
    steps, been = [], {start}
    for hop in range(hops):
      # Years lead nowhere, so they can only be the last step.
      onward = [r for r in world.relations_of(kind) if hop == hops - 1 or world.relations[r][1] != world_lib.YEAR]
      relation = rng.choice(onward)
      steps.append((at, relation, facts[at, relation]))
      at, kind = facts[at, relation], world.relations[relation][1]
      been.add(at)
    if len(been) == hops + 1:  # a path that returns to an entity has fewer real hops
      break
  question = world_lib.chain_question([relation for _, relation, _ in steps], start, kind)
  if difficulty == "easy":
    return dict(question=question + "?", gold=at, steps=steps)
  reasoning = ", and ".join(f"the {relation} of {subject} is {value}" for subject, relation, value in steps)
  return dict(question=question + ", step by step?", gold=reasoning[0].upper() + reasoning[1:] + ".", steps=steps)


TRIES = 10_000  # to draw two subjects that differ


def _compare(world: World, part: str, rng: random.Random) -> dict:
  if not world.settings.years:
    raise ValueError("comparison questions need a world with years: build(years=True).")
  kinds, facts = world.parts[part].kinds, world.parts[part].facts
  relation = rng.choice(sorted(world_lib.YEARS))
  for _ in range(TRIES):
    pair = rng.sample(kinds[world.relations[relation][0]], 2)
    years = [int(facts[name, relation]) for name in pair]
    if years[0] != years[1]:
      break
  else:
    raise ValueError(f"the world's {world.relations[relation][0]} have one year: raise the number of entities.")
  earlier = rng.random() < 0.5
  gold = pair[(years[0] > years[1]) == earlier]
  question = world_lib.comparison_question(pair, relation, earlier=earlier)
  return dict(question=question, gold=gold, steps=[(name, relation, facts[name, relation]) for name in pair])


def _yes_no(world: World, part: str, rng: random.Random) -> dict:
  """A question whether two subjects share an object; the answer is yes with probability 1/2."""
  kinds, facts = world.parts[part].kinds, world.parts[part].facts
  yes = rng.random() < 0.5
  while True:
    relation = rng.choice(sorted(r for r, (_, kind) in world.relations.items() if kind != world_lib.YEAR))
    subjects = kinds[world.relations[relation][0]]
    first = rng.choice(subjects)
    others = [s for s in subjects if s != first and (facts[s, relation] == facts[first, relation]) == yes]
    if others:
      break
  pair = [first, rng.choice(others)]
  rng.shuffle(pair)
  question = f"Do {pair[0]} and {pair[1]} have the same {relation}?"
  steps = [(name, relation, facts[name, relation]) for name in pair]
  return dict(question=question, gold="yes" if yes else "no", steps=steps)


def _example(
  world: World,
  identity: str,
  kind: int | str,
  item: dict,
  count: int,
  part: str,
  stating: Sequence[tuple[str, str]],
  rng: random.Random,
) -> Example:
  steps = item["steps"]
  golds = list(dict.fromkeys(world.where[subject, relation] for subject, relation, _ in steps))
  places = _context(world, golds, steps, count, part, stating, rng) if count else []
  at = {where: place for place, where in enumerate(places)}
  evidence = tuple((at[world.where[s, r]], _sentence(world, s, r)) for s, r, _ in steps) if count else ()
  meta = dict(
    type="bridge" if isinstance(kind, int) else kind,
    part=part,
    gold_ids=[world.passages[where].id for where in golds],
    decomposition=[
      dict(
        subject=s,
        relation=r,
        object=o,
        passage=world.passage(s, r).id,
        sentence=_sentence(world, s, r),
        memorised=(s, r) in world.memory,
        counterfactual=world.counterfactual(s, r),
      )
      for s, r, o in steps
    ],
  )
  return Example(
    identity,
    item["question"],
    (item["gold"],),
    tuple(world.passages[where] for where in places),
    tuple(sorted(at[where] for where in golds)) if count else (),
    source="made-up world",
    hops=len(steps),
    evidence=evidence,
    meta=meta,
  )


def _sentence(world: World, subject: str, relation: str) -> str:
  identity = world.passage(subject, relation).id
  place = [(fact.subject, fact.relation) for fact in world.stated[identity]].index((subject, relation))
  return world.sentences[identity][place]


def _context(
  world: World,
  golds: Sequence[int],
  steps: Sequence[tuple[str, str, str]],
  count: int,
  part: str,
  stating: Sequence[tuple[str, str]],
  rng: random.Random,
) -> list[int]:
  """Positions of the gold passages and of distractors, shuffled.

  Distractors are first other passages about the same entities, then random passages of `stating`.
  """
  if count < len(golds):
    raise ValueError(f"passages={count}: a question with {len(golds)} gold passages needs at least as many.")
  facts = world.parts[part].facts
  distractors = [world.where[s, r] for s, _, _ in steps for r in world.relations if (s, r) in facts]
  distractors += [world.noise[s] for s, _, _ in steps if s in world.noise]
  rng.shuffle(distractors)
  places = list(dict.fromkeys([*golds, *distractors]))[:count]
  least = len(stating) // world.settings.facts_per_passage  # a cheap lower bound of the exact count
  if len(places) < count and count > least and count > len({world.where[key] for key in stating}):
    raise ValueError(f"passages={count}: {part} has too few passages that state a fact: ask for fewer.")
  while len(places) < count:
    where = world.where[rng.choice(stating)]
    if where not in places:
      places.append(where)
  rng.shuffle(places)
  return places
