"""Paid for being right, and, after a while, for steps that follow from what they rest on."""

from collections.abc import Mapping, Sequence

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import faithful
from ragrl_jax.recipes.search_agent import in_shape, last_answer
from ragrl_jax.recipes.veritas.parser import Parser, steps
from ragrl_jax.structs import MODEL, Episode, Example

FAITHFUL = ("information_think", "think_answer", "think_search")


class Reward:
  """Scores one episode.

  Args:
    parser: reads the model's text.
    faithful_weights: of the terms FAITHFUL, once they count in full.
    ramp: (T1, T2), steps from 1: the last one that pays for the answer alone, the first one of the full weights.
    judged: those of FAITHFUL that a judge is asked about.
    sub_em: `think_answer` is whether the thought holds the answer; False: the judge's verdict.
    structure_weight: 0, or what the term "format" takes of the answer's weight (Search-R1's baseline).
    final_share: what a wrong answer out of shape earns of it.
  """

  def __init__(
    self,
    parser: Parser,
    *,
    faithful_weights: Mapping[str, float],
    ramp: tuple[int, int],
    judged: Sequence[str],
    sub_em: bool,
    structure_weight: float,
    final_share: float,
  ):
    self.parser = parser
    self.faithful_weights = faithful_weights
    self.ramp = ramp
    self.judged = judged
    self.sub_em = sub_em
    self.structure_weight = structure_weight
    self.final_share = final_share

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 or 1, the terms FAITHFUL 0 to 1 (the mean over an episode's pairs), `format` where it is paid for.

    None where a tool had failed for good, where a verdict is missing (`faithful.share`), and for a term that nobody is
    asked about, whether an episode has pairs or not.

    Source: VERITAS sec. 3.2, 3.3, eq. 1; several pairs are averaged (README.md).
    """
    if episode.ended == "failed":
      return dict.fromkeys(self.weights(0))
    found = steps(episode.turns)
    answer = last_answer(self.parser, episode)
    right = 0.0 if answer is None else qa.exact_match(answer, example.golds)
    terms: dict[str, float | None] = dict(answer=right)
    for name in FAITHFUL:
      asked = name in self.judged
      terms[name] = faithful.share(getattr(found, name), episode.facts.get(name)) if asked else None
    if self.sub_em:
      terms["think_answer"] = max((faithful.states(*pair) for pair in found.think_answer), default=0.0)
    if self.structure_weight:
      wrong_share = self.final_share if answer is not None and not right else 0.0
      terms["format"] = 1.0 if in_shape(episode) else wrong_share
    return terms

  def credit(self, example: Example, episode: Episode) -> dict[str, list[float]]:
    """`information_think`, divided: each verdict's part on the model segment whose thought it is about.

    One number a model segment, adding up to the term; nothing where the term is not known.
    """
    if self.score(example, episode)["information_think"] is None:
      return {}
    found = steps(episode.turns)
    places = {
      place: number
      for number, place in enumerate(place for place, segment in enumerate(episode.turns) if segment.owner == MODEL)
    }
    parts = [0.0] * len(places)
    pairs = zip(found.information_think, found.spoken)
    thought = [place for (_, claim), place in pairs if claim is not None and place is not None]
    for place, verdict in zip(thought, episode.facts.get("information_think", ()), strict=True):
      parts[places[place]] += verdict / len(found.information_think)
    return dict(information_think=parts)

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term at a step: those for faithfulness rise along the ramp."""
    share = schedules.ramp(step, *self.ramp)
    weights = dict(answer=1.0 - self.structure_weight)
    weights |= {name: share * self.faithful_weights[name] for name in FAITHFUL}
    return weights | (dict(format=self.structure_weight) if self.structure_weight else {})

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the last answer, 0 or 1, without any shaping."""
    answer = last_answer(self.parser, episode)
    return 0.0 if answer is None else qa.exact_match(answer, example.golds)
