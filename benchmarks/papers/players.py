"""Scripted players of the made-up world, in the format of a recipe each, with faults: for warm starts and for tests.

All of them take

    example: with its decomposition in meta; ARENA's, CARE's and LEAR's with passages.
    world: the world of the question; or search: query → passages, best first, from the live retriever.
    rng: draws the faults.
    fault: share of the questions that are answered with a fault.
    kinds: the kinds of fault to draw from.

They return ("model" | "environment", text) turns, as `structs.Episode.from_text` takes them, and raise ValueError for a
kind of fault that is not theirs. Search-R1's, with which the quickstart begins, is in its recipe.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.data.world import World
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.arena.prompt import SECTIONS as ARENA_SECTIONS
from ragrl_jax.recipes.lear.prompt import SECTIONS as LEAR_SECTIONS
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example, Passage

ARENA_FAULTS = ("stop", "wrong")
CARE_FAULTS = ("stop", "wrong", "misquote", "silent")
LEAR_FAULTS = ("stop", "wrong", "copy")
VERITAS_FAULTS = ("skip", "ignore", "stop")
WHEN_TO_SEARCH_FAULTS = ("guess", "check", "repeat", "ask")
# Texts that a tokenizer trained for a format keeps as one piece each.
CARE_MARKS = ("<think>", "</think>", "<retrieval>", "</retrieval>", "Answer:")
LEAR_MARKS = tuple(f"<{slash}{tag}>" for tag in ("reason", "extract", "answer") for slash in ("", "/"))
LESSONS = ("name", "passage", "statement")


def draw_fault(
  example: Example,
  kinds: Sequence[str],
  known: Sequence[str],
  share: float,
  rng: random.Random,
  world: World | None = None,
) -> tuple[str, Sequence[Mapping[str, Any]], str]:
  """(a fault of a demonstration on the made-up world, the hops that it reads, its answer).

  Two faults change hops and answer here. "stop": the answer is the object of an earlier hop, the last one read (not for
  questions of one hop). "wrong", with a `world`: what a random passage states is the only hop.

  Args:
    example: with its decomposition in meta.
    kinds: the faults to draw from, each one of `known`. The fault is "" except for a share of questions.
    world: the world of an example with passages.

  Raises:
    ValueError: one of the kinds is not in `known`.
  """
  for kind in kinds:
    if kind not in known:
      raise ValueError(f"fault kind {kind!r}: use {', '.join(known)}.")
  fault = rng.choice(list(kinds)) if rng.random() < share else ""
  hops, answer = list(example.meta["decomposition"]), example.golds[0]
  if fault == "stop" and len(hops) > 1:
    hops = hops[: rng.randint(1, len(hops) - 1)]
    answer = hops[-1]["object"]
  elif fault == "wrong" and world is not None:
    read = rng.choice(example.passages)
    fact, answer = world.stated[read.id], world.stated[read.id].object
    hops = [dict(passage=read.id, subject=fact.subject, relation=fact.relation, object=answer, sentence=read.text)]
  return fault, hops, answer


def play_arena(
  example: Example,
  world: World,
  rng: random.Random,
  *,
  reply: str = "cited",
  fault: float = 0.65,
  kinds: Sequence[str] = ("stop",),
) -> list[tuple[str, str]]:
  """Answers as ARENA does; `reply`: a key of its SECTIONS.

  Faults: "stop" cites and answers an earlier hop (not for questions of one hop); "wrong" cites and answers a random
  passage.
  """
  if reply not in ARENA_SECTIONS:
    raise ValueError(f"reply={reply!r}: use {', '.join(ARENA_SECTIONS)}.")
  place = {passage.id: number for number, passage in enumerate(example.passages, 1)}
  _, hops, answer = draw_fault(example, kinds, ARENA_FAULTS, fault, rng, world)
  steps = [(place[hop["passage"]], hop["relation"], hop["object"]) for hop in hops]
  cited = sorted({number for number, _, _ in steps})
  analysis = " ".join(f"[{number}] {relation} {found}." for number, relation, found in steps)
  thought = " ".join(f"{relation} {found}." for _, relation, found in steps)
  bodies = dict(relevance=cited, analysis=analysis, think=thought, answer=answer)
  return [(MODEL, "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in ARENA_SECTIONS[reply]))]


def play_care(
  example: Example, world: World, rng: random.Random, *, fault: float = 0.65, kinds: Sequence[str] = ("stop",)
) -> list[tuple[str, str]]:
  """Answers as CARE does.

  Faults: "stop" quotes and answers an earlier hop (not for questions of one hop); "wrong" quotes and answers a random
  passage; "misquote" changes a name in each quote; "silent" quotes nothing.
  """
  kind, hops, answer = draw_fault(example, kinds, CARE_FAULTS, fault, rng, world)
  steps = [(hop["relation"], hop["subject"], hop["object"], hop["sentence"]) for hop in hops]
  if kind == "misquote":
    names = world.parts[example.meta["part"]].names
    steps = [(r, s, o, sentence.replace(o, rng.choice([n for n in names if n != o]))) for r, s, o, sentence in steps]
  quote = "" if kind == "silent" else " <retrieval> {} </retrieval>"
  thoughts = "".join(f" {r} {s}{quote.replace('{}', sentence)} {o}" for r, s, o, sentence in steps)
  return [(MODEL, f"<think>{thoughts} </think> Answer: {answer}")]


def play_lear(
  example: Example,
  world: World,
  rng: random.Random,
  *,
  reply: str = "rational",
  fault: float = 0.65,
  kinds: Sequence[str] = ("stop",),
) -> list[tuple[str, str]]:
  """Answers as LEAR does; `reply`: a key of its sections.

  "vanilla", "rational" and "rationale" are the arms of the paper's study of evidence (sec. 2.2).

  Faults: "stop" reads and answers an earlier hop (not for questions of one hop); "wrong" a random passage; "copy"
  copies all passages as evidence.
  """
  if reply not in LEAR_SECTIONS:
    raise ValueError(f"reply={reply!r}: use {', '.join(LEAR_SECTIONS)}.")
  kind, hops, answer = draw_fault(example, kinds, LEAR_FAULTS, fault, rng, world)
  steps = [(hop["relation"], hop["subject"], hop["object"], hop["sentence"]) for hop in hops]
  evidence = " ".join(sentence for *_, sentence in steps)
  if kind == "copy":
    evidence = " ".join(passage.text for passage in example.passages)
  reason = " ".join(f"{relation} of {subject}? {sentence} So {found}." for relation, subject, found, sentence in steps)
  bodies = dict(reason=reason, extract=evidence, answer=answer)
  text = "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in LEAR_SECTIONS[reply])
  return [(MODEL, text or f"{reason} The answer is {answer}.")]


def play_veritas(
  example: Example,
  search: Callable[[str], Sequence[Passage]],
  rng: random.Random,
  *,
  fault: float = 0.65,
  kinds: Sequence[str] = ("skip",),
) -> list[tuple[str, str]]:
  """Searches as VERITAS does, faithfully or with a fault.

  Faults: "skip" continues without a thought about the results; "ignore" repeats the thought from before the search;
  "stop" answers, faithfully, with the result of an earlier hop (not for questions of one hop).
  """
  kind, hops, answer = draw_fault(example, kinds, VERITAS_FAULTS, fault, rng)
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


def play_when_to_search(
  example: Example,
  search: Callable[[str], Sequence[Passage]],
  rng: random.Random,
  *,
  fault: float = 0.65,
  kinds: Sequence[str] = ("check",),
) -> list[tuple[str, str]]:
  """Searches only for facts that are not `memorised`, as When to Search does.

  Faults: "guess" answers at once with the last known name; "check" also searches for known facts; "repeat" searches
  twice for everything; "ask" writes its queries as questions.
  """
  kind, steps, answer = draw_fault(example, kinds, WHEN_TO_SEARCH_FAULTS, fault, rng)
  if kind == "guess":
    subject = steps[-1]["subject"]
    return [(MODEL, f"<think> {subject} </think><reflect> {subject} </reflect><answer> {subject} </answer>")]
  asked = [step for step in steps if kind == "check" or not step["memorised"]]
  if kind == "repeat":
    asked = [step for step in asked for _ in range(2)]
  known = [step for step in steps if step not in asked]
  thought = " ".join(_fact(step) for step in known) or " ".join(step["relation"] for step in steps)
  turns, message = [], f"<think> {thought} </think>"
  for step in asked:
    query = f"{step['relation']} {step['subject']}"
    turns.append((MODEL, f"{message}<search> {f'what is the {query} ?' if kind == 'ask' else query} </search>"))
    turns.append((ENVIRONMENT, passages.block(search(query))))
    message = f"<reflect> {_fact(step)} </reflect>"
  if not asked:
    message += f"<reflect> {thought} </reflect>"
  return [*turns, (MODEL, f"{message}<answer> {answer} </answer>")]


def _fact(step) -> str:
  return f"{step['relation']} {step['subject']} is {step['object']}"


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
