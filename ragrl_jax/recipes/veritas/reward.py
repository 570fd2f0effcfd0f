"""The reward: for a right answer and, after a warm-up, for steps that follow from their basis."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import faithful
from ragrl_jax.recipes.search_agent import Parser, hollow, in_shape, last_answer, unthought
from ragrl_jax.recipes.steps import Steps, steps
from ragrl_jax.recipes.veritas import tricks
from ragrl_jax.structs import MODEL, Episode, Example

if TYPE_CHECKING:
  from ragrl_jax.recipes.veritas.recipe import Switches

FAITHFUL = ("information_think", "think_answer", "think_search")


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode.

  Attributes:
    parser: reads the model's text.
    switches: the recipe's.
    judged: the terms of FAITHFUL that a judge is asked about.
    ramp: (T1, T2), in steps from 1: the last step that rewards only the answer, and the first with the full weights.
  """

  parser: Parser
  switches: "Switches"
  judged: Sequence[str]
  ramp: tuple[int, int]

  @property
  def sub_em(self) -> str:
    """How the thought must contain the answer: "letters" or "words"; "": the judge decides."""
    return "" if self.switches.judge_answer else self.switches.sub_em

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 or 1, the terms FAITHFUL 0 to 1 (means over an episode's pairs), `format` if it has a weight.

    A term is None if a tool failed, if a verdict is missing (`faithful.share`), or if no judge is asked about it.

    Source: VERITAS sec. 3.2, 3.3, eq. 1; several pairs are averaged (README.md).
    """
    if episode.ended == "failed":
      return dict.fromkeys(self.weights(0))
    found = steps(episode.turns, self.parser.action)
    right = self.outcome(example, episode)
    terms: dict[str, float | None] = dict(answer=0.0 if self.switches.guarded and unthought(episode) else right)
    for name in FAITHFUL:
      asked = name in self.judged
      terms[name] = faithful.share(getattr(found, name), self._verdicts(name, found, episode)) if asked else None
    if self.sub_em:
      refused = self.switches.guarded and any(tricks.found(found)["think_answer"])
      stated = [faithful.states(*pair, words=self.sub_em == "words") for pair in found.think_answer]
      terms["think_answer"] = 0.0 if refused else max(stated, default=0.0)
    if self.switches.structure_weight:
      shaped, consoled = in_shape(episode), last_answer(self.parser, episode) is not None and not right
      terms["format"] = 1.0 if shaped else self.switches.final_share if consoled else 0.0
      if self.switches.guarded:
        terms["format"] = float(bool(terms["answer"]) and shaped and not hollow(episode))
    return terms

  def _verdicts(self, name: str, found: Steps, episode: Episode) -> Sequence[float | None] | None:
    verdicts = episode.facts.get(name)
    if not self.switches.guarded or name == "think_search":
      return verdicts
    return tricks.refused(getattr(found, name), verdicts, tricks.found(found)[name])

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that this reward pays for, and whether the episode uses them (README.md, "Unearned reward")."""
    if episode.ended == "failed":
      return {}
    right, said = self.outcome(example, episode) == 1.0, tricks.found(steps(episode.turns, self.parser.action))
    found = dict(unthought=right and unthought(episode))
    if "information_think" in self.judged:
      found |= {trick: trick in said["information_think"] for trick in tricks.OF_INFORMATION}
    for trick in tricks.OF_ANSWER:
      found[trick] = found.get(trick, False) or trick in said["think_answer"]
    if self.switches.structure_weight:
      answered = last_answer(self.parser, episode) is not None
      found |= dict(hollow=hollow(episode), consoled=answered and not right)
    return found

  def pooled(self, example: Example, episode: Episode) -> dict[str, tuple[float, int]]:
    """(sum of the verdicts, number of pairs) of each measured term of FAITHFUL; see `faithful.pooled`.

    An answer without a thought before it is an unfaithful pair. An episode without an answer has no pair.
    """
    del example  # only the episode's results and thoughts are needed
    if episode.ended == "failed":
      return {}
    found = steps(episode.turns, self.parser.action)
    numbers = {
      name: faithful.pooled(getattr(found, name), self._verdicts(name, found, episode)) for name in self.judged
    }
    if self.sub_em:
      stated = [faithful.states(*pair, words=self.sub_em == "words") for pair in found.think_answer]
      numbers["think_answer"] = sum(stated), len(stated)
    return numbers

  def credit(self, example: Example, episode: Episode) -> dict[str, list[float]]:
    """Divides `information_think`: each verdict's part goes to the model segment with the judged thought.

    One number per model segment; their sum is the term. Empty if the term is unknown.
    """
    if self.score(example, episode)["information_think"] is None:
      return {}
    found = steps(episode.turns, self.parser.action)
    places = {
      place: number
      for number, place in enumerate(place for place, segment in enumerate(episode.turns) if segment.owner == MODEL)
    }
    parts = [0.0] * len(places)
    pairs = zip(found.information_think, found.spoken)
    thought = [place for (_, claim), place in pairs if claim is not None and place is not None]
    for place, verdict in zip(thought, self._verdicts("information_think", found, episode) or (), strict=True):
      parts[places[place]] += (verdict or 0.0) / len(found.information_think)
    return dict(information_think=parts)

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term at a step. The weights of faithfulness rise along the ramp."""
    share = schedules.ramp(step, *self.ramp)
    weights = dict(answer=1.0 - self.switches.structure_weight)
    weights |= {name: share * self.switches[f"{name}_weight"] for name in FAITHFUL}
    return weights | (dict(format=self.switches.structure_weight) if self.switches.structure_weight else {})

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the last answer, 0 or 1, without any shaping."""
    answer = last_answer(self.parser, episode)
    return 0.0 if answer is None else qa.exact_match(answer, example.golds)
