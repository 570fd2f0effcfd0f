"""Turns of demonstrations, by script, that search only for what is not known: on rows, and on the made-up world."""

import random
from collections.abc import Callable, Sequence

from ragrl_jax.prompting import passages
from ragrl_jax.recipes import scripts
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example, Passage, Segment

FAULTS = ("guess", "check", "repeat", "ask")


def demonstrate(
  example: Example,
  search: Callable[[str], Sequence[Passage]],
  rng: random.Random,
  *,
  fault: float = 0.65,
  kinds: Sequence[str] = ("check",),
) -> list[tuple[str, str]]:
  """Plays one question of `data.synthetic`, correctly (without searches for memorised facts) or with a fault.

  Args:
    example: with its decomposition in meta; `memorised` steps are known by heart.
    search: query → passages, best first, from the live retriever, so that demonstrations show its results.
    rng: draws the faults.
    fault: share of questions played with a fault.
    kinds: the kinds of fault: "guess" answers at once with the last known name; "check" also searches for known facts;
      "repeat" searches twice for everything; "ask" writes its queries as questions.

  Returns:
    ("model" | "environment", text) turns, as `structs.Episode.from_text` takes them.

  Raises:
    ValueError: a kind is not in FAULTS.
  """
  kind, steps, answer = scripts.draw_fault(example, kinds, FAULTS, fault, rng)
  if kind == "guess":
    subject = steps[-1]["subject"]
    return [(MODEL, f"<think> {subject} </think><reflect> {subject} </reflect><answer> {subject} </answer>")]
  asked = [step for step in steps if kind == "check" or not step["memorised"]]
  if kind == "repeat":
    asked = [step for step in asked for _ in range(2)]
  known = [step for step in steps if step not in asked]
  thought = " ".join(_fact(step) for step in known) or " ".join(step["relation"] for step in steps)
  turns, said = [], f"<think> {thought} </think>"
  for step in asked:
    query = f"{step['relation']} {step['subject']}"
    turns.append((MODEL, f"{said}<search> {f'what is the {query} ?' if kind == 'ask' else query} </search>"))
    turns.append((ENVIRONMENT, passages.block(search(query))))
    said = f"<reflect> {_fact(step)} </reflect>"
  if not asked:
    said += f"<reflect> {thought} </reflect>"
  return [*turns, (MODEL, f"{said}<answer> {answer} </answer>")]


def _fact(step) -> str:
  return f"{step['relation']} {step['subject']} is {step['object']}"


KNOWN = 0.3  # share of the questions that are answered from memory, if the rows do not say which ones are known


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. meta["known"] says whether the answer is known. searches: the most searches."""
  answer, first = scripts.answer(example), len(segments) == 1
  known = example.meta.get("known")
  if first and (not searches or (rng.random() < KNOWN if known is None else known)):
    return f"<think> I know this. </think><reflect> It is {answer}. </reflect><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  seen = scripts.quoted(new, "Doc") or "The results do not say it."
  said = "<think> I do not know this. </think>" if first else f"<reflect> {seen} </reflect>"
  if query:
    return f"{said}<search> {scripts.keywords(query)} </search>"
  return f"{said}<answer> {answer} </answer>"
