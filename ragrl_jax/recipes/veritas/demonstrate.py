"""Turns of demonstrations, by script, on rows and on the made-up world with faults; and lessons for a judge."""

import random
from collections.abc import Callable, Sequence

from ragrl_jax.data.world import World
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import scripts
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example, Passage, Segment

FAULTS = ("skip", "ignore", "stop")
LESSONS = ("name", "passage", "statement")


def demonstrate(
  example: Example,
  search: Callable[[str], Sequence[Passage]],
  rng: random.Random,
  *,
  fault: float = 0.65,
  kinds: Sequence[str] = ("skip",),
) -> list[tuple[str, str]]:
  """Plays one question of `data.synthetic`, faithfully or with a fault.

  Args:
    example: with its decomposition in meta.
    search: query → passages, best first, from the live retriever, so that demonstrations show its results.
    rng: draws the faults.
    fault: share of questions played with a fault.
    kinds: the kinds of fault: "skip" continues without a thought about the results; "ignore" repeats the thought from
      before the search; "stop" answers, faithfully, with the result of an earlier hop (not for questions of one hop).

  Returns:
    ("model" | "environment", text) turns, as `structs.Episode.from_text` takes them.

  Raises:
    ValueError: a kind is not in FAULTS.
  """
  kind, hops, answer = scripts.draw_fault(example, kinds, FAULTS, fault, rng)
  steps = [(hop["subject"], hop["relation"], hop["object"]) for hop in hops]
  plan = " ".join(relation for _, relation, _ in steps)
  turns, thought = [], f"<think> {plan} </think>"
  for number, (subject, relation, found) in enumerate(steps, 1):
    query = f"{relation} {subject}"
    turns.append((MODEL, f"{thought}<search> {query} </search>"))
    turns.append((ENVIRONMENT, passages.block(search(query))))
    learnt = f"{query} is {found}"
    if number == len(steps) and answer != found:  # no passage contains a comparison's answer
      learnt += f", so {answer}"
    thought = {"skip": "", "ignore": f"<think> {plan} </think>"}.get(kind, f"<think> {learnt} </think>")
  return [*turns, (MODEL, f"{thought}<answer> {answer} </answer>")]


def lessons(
  kind: str, world: World, count: int, rng: random.Random, *, claims: int = 8
) -> list[tuple[Example, list[tuple[str, str]]]]:
  """Results with several thoughts about each. A digit after every thought is 1 if its names are those of the result.

  Only the comparison determines the digit: every thought is right with probability 1/2, names are drawn from the
  world's syllables in the same way on both sides, and the relation of a statement does not depend on the digit.

  Args:
    kind: "name": the result is a title, the thoughts are names; "passage": the result is a passage, the thoughts are
      names; "statement": the result is a passage, the thoughts are statements ("mayor Gusdok is Tikrem").
    world: its syllables, relations and wordings are used, but not its entities.
    count: number of results.
    rng: draws everything.
    claims: thoughts per result, at least 1. With eight, every seventh token is a trained digit, not every thirtieth.

  Returns:
    For each result: the pair of the result and the first thought, and the turns: the digits, with the other thoughts
    between them.

  Raises:
    ValueError: a kind is not in LESSONS.
  """
  if kind not in LESSONS:
    raise ValueError(f"lesson {kind!r}: it must be one of {', '.join(LESSONS)}.")
  names = [name for part in world.parts.values() for name in part.names]
  syllables = sorted({name[at : at + 3].lower() for name in names for at in range(0, len(name), 3)})
  return [_lesson(kind, world, syllables, str(number), rng, claims) for number in range(count)]


def _lesson(kind: str, world: World, syllables: Sequence[str], source: str, rng: random.Random, claims: int):
  # Half of a result's names also look miscopied, so that the length of a name (one or four syllables) tells nothing.
  draw = lambda: rng.choice((_as_it_is, _miscopied))(_drawn(syllables, rng), syllables, rng)
  read, relations = (draw(), draw()), list(world.relations)
  relation = rng.choice(relations)
  if kind == "name":
    read = (read[0], read[0])
  subject, found = map(_name, read)
  sentence = rng.choice(world.settings.wordings).format(s=subject, r=relation, o=found)
  # A name at the very beginning, without a space before it, would have other tokens than in a thought.
  told = f"Doc 1(Title: {subject})" + (f" {sentence}" if kind != "name" else "")

  def thought() -> tuple[str, str]:
    said, place, right = list(read), rng.randrange(2), rng.random() < 0.5
    while not right and said[place] in read:
      said[place] = _miscopied(read[place], syllables, rng)
    if kind != "statement":
      return _name(said[place]), str(int(right))
    return f"{rng.choice((relation, rng.choice(relations)))} {_name(said[0])} is {_name(said[1])}", str(int(right))

  (first, digit), *others = [thought() for _ in range(claims)]
  example = Example(source, first, (digit,), (Passage("1", "", told),), source=source)
  turns = [(MODEL, digit)]
  for text, digit in others:
    turns += [(ENVIRONMENT, f"\n\n<think> {text} </think>"), (MODEL, digit)]
  return example, turns


def _name(syllables: Sequence[str]) -> str:
  return "".join(syllables).capitalize()


def _miscopied(name: Sequence[str], syllables: Sequence[str], rng: random.Random) -> list[str]:
  """Mostly replaces a syllable, as small policies do; else drops or adds the last one, or gives another name."""
  kind, said = rng.random(), list(name)
  if kind < 0.6:
    said[rng.randrange(len(said))] = rng.choice(syllables)
  elif kind < 0.75:
    said = said[:-1] if len(said) > 1 and rng.random() < 0.5 else [*said, rng.choice(syllables)]
  else:
    said = _drawn(syllables, rng)
  return said


def _as_it_is(name: list[str], *_) -> list[str]:
  return name


def _drawn(syllables: Sequence[str], rng: random.Random) -> list[str]:
  return [rng.choice(syllables) for _ in range(rng.choice((2, 3, 3)))]


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. searches: the most searches; without any, it answers at once."""
  del rng  # there is one way to write it
  answer = scripts.answer(example)
  if not searches:
    return f"<think> I remember {answer}. </think><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  seen = (
    [scripts.quoted(new, "Doc")]
    if new
    else [
      f"Doc 1 is about {segment.found[0].title}, and no result says it." if segment.found else "Nothing was found."
      for segment in segments[-1:]
      if segment.found is not None
    ]
  )
  if query:
    thought = " ".join([*seen, f"I need to find out: {query}"])
    return f"<think> {thought} </think><search> {query} </search>"
  return f"<think> {seen[0]} So the answer is {answer}. </think><answer> {answer} </answer>"
