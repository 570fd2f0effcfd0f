"""A scripted player of the made-up world that says what it read: what SFT warms a model up with, faults and all."""

import random
from collections.abc import Callable, Sequence

from ragrl_jax.prompting import passages
from ragrl_jax.recipes.recipe import draw_fault
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example, Passage

FAULTS = ("skip", "ignore", "stop")


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
    search: query → passages, best first: the live retriever's, so that demonstrations show what it finds.
    rng: draws the faults.
    fault: share of questions played with one.
    kinds: which: "skip" goes on without a thought about the results; "ignore" thinks of them what it thought before
      it searched; "stop" answers, faithfully, with what an earlier hop found (a question of one hop has none).

  Returns:
    ("model" | "environment", text) turns, as `structs.Episode.from_text` takes them.

  Raises:
    ValueError: a kind that is none of FAULTS.
  """
  steps = [(hop["subject"], hop["relation"], hop["object"]) for hop in example.meta["decomposition"]]
  answer, kind = example.golds[0], draw_fault(kinds, FAULTS, fault, rng)
  if kind == "stop" and len(steps) > 1:
    steps = steps[: rng.randint(1, len(steps) - 1)]
    answer = steps[-1][2]
  plan = " ".join(relation for _, relation, _ in steps)
  turns, thought = [], f"<think> {plan} </think>"
  for number, (subject, relation, found) in enumerate(steps, 1):
    query = f"{relation} {subject}"
    turns.append((MODEL, f"{thought}<search> {query} </search>"))
    turns.append((ENVIRONMENT, passages.block(search(query))))
    learnt = f"{query} is {found}"
    if number == len(steps) and answer != found:  # a comparison's answer stands in no passage
      learnt += f", so {answer}"
    thought = {"skip": "", "ignore": f"<think> {plan} </think>"}.get(kind, f"<think> {learnt} </think>")
  return [*turns, (MODEL, f"{thought}<answer> {answer} </answer>")]
