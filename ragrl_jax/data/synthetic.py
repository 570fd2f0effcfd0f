"""Questions about the made-up world (`world.py`), for the quickstart and smoke runs.

Every question has its golds, its hops, and for each hop the passage that states it (`meta["decomposition"]`). Held-out
questions are about entities that occur in no training question, passage or demonstration. They can only be answered by
reading.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ragrl_jax.data import world as world_lib
from ragrl_jax.data.world import BESIDE, DEVELOPMENT, HELD_OUT, TRAIN, Settings, World, build
from ragrl_jax.structs import Example

__all__ = ["BESIDE", "DEVELOPMENT", "HELD_OUT", "TRAIN", "Settings", "World", "build", "lines", "questions"]

_ATTEMPTS = 200  # draws of one question before the world counts as having no further one


def ask_chain(world: World, part: str, hops: int, rng: random.Random) -> dict[str, Any]:
  """{"type", "question", "gold", "steps": [(subject, relation, object)]}: asks for the end of a path of facts."""
  if hops not in (1, 2, 3):
    raise ValueError(f"kind {hops!r} in the mix: it must be 1, 2 or 3 hops.")
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
  return dict(type="bridge", question=question + "?", gold=at, steps=steps)


def questions(
  world: World,
  count: int,
  *,
  part: str = TRAIN,
  mix: Mapping[Any, float] | None = None,
  seed: int = 0,
  distinct: bool = True,
  ask: Callable[..., dict[str, Any]] = ask_chain,
  give: Callable[[Example, random.Random], Example] = lambda example, rng: example,
) -> list[Example]:
  """Draws questions about one part of a world. They come without passages, so that the model must search.

  Args:
    part: TRAIN, HELD_OUT or DEVELOPMENT.
    mix: kind → weight. A kind is a number of hops (1, 2, 3), or what else `ask` takes. Counts differ from the exact
      proportions by less than one. None means {1: 4, 2: 6}.
    seed: seed of the draw; different parts give unrelated questions even with the same seed.
    distinct: ask no question twice. Use False for more questions than the world has.
    ask: (world, part, kind, rng) → a question, as `ask_chain` makes it.
    give: changes each example, for instance gives it passages.

  Raises:
    ValueError: an unknown part or kind; a world with too few questions.
  """
  if part not in world.parts:
    raise ValueError(f"part={part!r}: this world has {', '.join(map(repr, world.parts))}.")
  mix = {1: 4, 2: 6} if mix is None else dict(mix)
  rng = random.Random(f"questions/{world.settings.seed}/{part}/{seed}")
  kinds = _kinds(mix, count)
  rng.shuffle(kinds)
  drawn, seen = [], set()
  for number, kind in enumerate(kinds):
    for _ in range(_ATTEMPTS):
      item = ask(world, part, kind, rng)
      if not distinct or item["question"] not in seen:
        break
    else:
      raise ValueError(f"{part} has no {count} different questions of the mix {mix}: ask for fewer, or distinct=False.")
    seen.add(item["question"])
    drawn.append(give(_example(world, f"{part}-{seed}-{number}", item, part), rng))
  return drawn


def lines(world: World, *, seed: int = 0, fillers: int = 3000, num_questions: int = 1000) -> Iterator[str]:
  """Text for training a tokenizer: passages and `num_questions` questions of the training part, and `fillers` random
  names that are of no other part. The seed draws questions and names.
  """
  known = world.parts[TRAIN].facts
  yield from (world.passage(*key).text for key in sorted(known, key=world.where.__getitem__))
  yield from (example.question for example in questions(world, num_questions, seed=seed, distinct=False))
  syllables = sorted({name[at : at + 3].lower() for name in world.parts[TRAIN].names for at in range(0, len(name), 3)})
  rng = random.Random(f"lines/{world.settings.seed}/{seed}")
  unseen = [name for part in world.parts if part != TRAIN for name in world.parts[part].names]
  yield from world_lib.draw_names(rng, syllables, fillers, avoid=unseen)


def _kinds(mix: Mapping[Any, float], count: int) -> list[Any]:
  """`count` kinds in the mix's proportions, by the method of largest remainders."""
  total = sum(mix.values())
  if total <= 0 or min(mix.values()) < 0:
    raise ValueError(f"mix={dict(mix)}: weights must be positive.")
  shares = {kind: count * weight / total for kind, weight in mix.items()}
  numbers = {kind: int(share) for kind, share in shares.items()}
  by_remainder = sorted(mix, key=lambda kind: numbers[kind] - shares[kind])
  for kind in by_remainder[: count - sum(numbers.values())]:
    numbers[kind] += 1
  return [kind for kind in mix for _ in range(numbers[kind])]


def _example(world: World, identity: str, item: Mapping[str, Any], part: str) -> Example:
  steps = [(s, r, o, world.passage(s, r)) for s, r, o in item["steps"]]
  meta = dict(
    type=item["type"],
    part=part,
    gold_ids=list(dict.fromkeys(passage.id for *_, passage in steps)),
    decomposition=[
      dict(subject=s, relation=r, object=o, passage=passage.id, sentence=passage.text) for s, r, o, passage in steps
    ],
  )
  return Example(identity, item["question"], (item["gold"],), source="made-up world", hops=len(steps), meta=meta)
