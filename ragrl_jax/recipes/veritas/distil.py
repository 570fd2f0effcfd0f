"""The distilled judge: pairs of logged episodes, labelled by a larger judge → questions for training a decoder.

A pair is an example: the question is the claim, the only passage is the premise, and the gold is the digit. The preset
"reward_model" asks it with a prompt of `judging.prompts`, which is the same in training (switch `judge_prompt`) and in
use (config.judge.prompt).
"""

import collections
import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence

from ragrl_jax.core.metrics import stats
from ragrl_jax.core.rewards import faithful
from ragrl_jax.judging import prompts
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.steps import steps
from ragrl_jax.structs import MODEL, THINK, THOUGHT, Episode, Example, Passage


def pairs(episodes: Iterable[Episode], term: str = "information_think") -> list[Example]:
  """The distinct complete pairs of the episodes, without labels. `source` is the question of the episode."""
  result: dict[tuple[str, str], Example] = {}
  for episode in episodes:
    for premise, claim in faithful.whole(getattr(steps(episode.turns, episode.facts.get("action", "last")), term)):
      name = f"{episode.example_id}/{len(result)}"
      result.setdefault(
        (premise, claim), Example(name, claim, (), (Passage("1", "", premise),), source=episode.example_id)
      )
  return list(result.values())


def asked(example: Example) -> tuple[str, str]:
  """(premise, claim) of an example, for a judge."""
  return (example.passages[0].text if example.passages else "", example.question)


def labelled(examples: Sequence[Example], verdicts: Sequence[float | None]) -> list[Example]:
  """The pairs with a verdict. The digit is 1 for verdicts of at least 0.5."""
  return [
    dataclasses.replace(example, golds=("1" if verdict >= 0.5 else "0",))
    for example, verdict in zip(examples, verdicts, strict=True)
    if verdict is not None
  ]


def split(examples: Sequence[Example], held_out: int, *, seed: int) -> tuple[list[Example], list[Example]]:
  """(training, held-out) pairs, shuffled. All pairs of a question are on the same side.

  Raises:
    ValueError: no pair would be left for training.
  """
  order = sorted({example.source for example in examples})
  random.Random(f"distil/{seed}").shuffle(order)
  counts = collections.Counter(example.source for example in examples)
  before = itertools.accumulate((counts[source] for source in order), initial=0)  # pairs taken before each source
  taken = {source for source, count in zip(order, before) if count < held_out}
  if len(taken) == len(order):
    raise ValueError(
      f"held_out={held_out} of {len(examples)} pairs: no question would be left to train on. Lower it (--held_out)."
    )
  place = {source: number for number, source in enumerate(order)}
  shuffled = sorted(examples, key=lambda example: place[example.source])
  return [e for e in shuffled if e.source not in taken], [e for e in shuffled if e.source in taken]


def transcripts(examples: Sequence[Example]) -> list[list[tuple[str, str]]]:
  """The transcripts for SFT: only the digit."""
  return [[(MODEL, example.golds[0])] for example in examples]


def agreement(examples: Sequence[Example], verdicts: Sequence[float | None]) -> dict[str, float]:
  """The judge's agreement with the labels: `consistency` (share of equal digits) and Cohen's `kappa`, over `n` pairs.

  `unread` pairs without a verdict are left out. `ones` is the share of labels 1; near 0 or 1, κ is not informative.

  Raises:
    ValueError: there is no verdict.
  """
  digits = [
    (example.golds[0], "1" if verdict >= 0.5 else "0")
    for example, verdict in zip(examples, verdicts, strict=True)
    if verdict is not None
  ]
  if not digits:
    raise ValueError("the judge gave no verdict on any of the pairs.")
  labels, predicted = zip(*digits)
  return dict(
    n=len(digits),
    unread=len(verdicts) - len(digits),
    ones=labels.count("1") / len(digits),
    consistency=sum(a == b for a, b in digits) / len(digits),
    kappa=stats.cohen_kappa(labels, predicted),
  )


# ---- the judge as a recipe of one turn ------------------------------------------------------------------------------


class Prompt:
  """The judge's messages.

  Args:
    name: a key of `prompts.PROMPTS`.
    wording: file:PATH with the wording; "": the default wording.
  """

  def __init__(self, name: str, wording: str = ""):
    self._prompt = prompts.get(name, wording, setting="config.switches.judge_wording")

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The judge's chat messages about the example's premise and claim."""
    return self._prompt.messages(*asked(example))


class Parser(parts.Parser):
  """Reads a digit."""

  def answer(self, text: str) -> str | None:
    """The digit of the verdict, "0" or "1"; None if it cannot be read.

    A digit alone also counts in a thought that the chat template opened: the reward model reads its first token there.
    """
    alone = text.removeprefix(THINK).removesuffix(THOUGHT)
    verdict = prompts.read_digit(alone if alone.strip() in ("0", "1") else text)
    return None if verdict is None else str(int(verdict))
