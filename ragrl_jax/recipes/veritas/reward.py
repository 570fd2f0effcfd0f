"""The reward: for a right answer and, after a warm-up, for steps that follow from their basis.

A verdict or Sub-EM also rewards steps that are not faithful: the tricks of README.md's "Unearned reward". With the
switch `guarded` they earn nothing. Their shares are always logged.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from ragrl_jax.core import schedules
from ragrl_jax.core.rewards import faithful
from ragrl_jax.core.rewards.faithful import Pair
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.judging import lexical
from ragrl_jax.recipes import search_agent
from ragrl_jax.recipes.steps import Steps, steps
from ragrl_jax.structs import MODEL, Episode, Example

FAITHFUL = ("information_think", "think_answer", "think_search")
TRICKS = dict(information_think=("copied", "unrelated"), think_answer=("inside_word", "echoed", "copied"))


@dataclasses.dataclass(frozen=True)
class Reward(search_agent.Reward):
  """Scores one episode.

  Attributes:
    judged: the terms of FAITHFUL that a judge is asked about.
    ramp: (T1, T2), in steps from 1: the last step that rewards only the answer, and the first with the full weights.
  """

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
    turns = steps(episode.turns, self.parser.action)
    terms: dict[str, float | None] = dict(answer=self.score_answer(example, episode))
    for name in FAITHFUL:
      is_judged = name in self.judged
      terms[name] = faithful.share(getattr(turns, name), self._verdicts(name, turns, episode)) if is_judged else None
    if self.sub_em:
      refused = self.switches.guarded and any(tricks_of(turns)["think_answer"])
      terms["think_answer"] = 0.0 if refused else max(self._stated(turns), default=0.0)
    if self.switches.structure_weight:
      terms["format"] = self.score_format(example, episode)
    return terms

  def _stated(self, turns: Steps) -> list[float]:
    return [faithful.states(*pair, words=self.sub_em == "words") for pair in turns.think_answer]

  def _verdicts(self, name: str, turns: Steps, episode: Episode) -> Sequence[float | None] | None:
    verdicts = episode.facts.get(name)
    if not self.switches.guarded or name == "think_search":
      return verdicts
    if verdicts is None:
      return None
    # 0 for each complete pair with a trick, even if its verdict is missing.
    terms = [
      trick for trick, pair in zip(tricks_of(turns)[name], getattr(turns, name), strict=True) if None not in pair
    ]
    return [0.0 if trick else verdict for trick, verdict in zip(terms, verdicts, strict=True)]

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that this reward pays for, and whether the episode uses them (README.md, "Unearned reward")."""
    if episode.ended == "failed":
      return {}
    used, result = tricks_of(steps(episode.turns, self.parser.action)), {}
    for term, tricks in TRICKS.items():
      if term != "information_think" or term in self.judged:
        result |= {trick: result.get(trick, False) or trick in used[term] for trick in tricks}
    return self.find_tricks(example, episode, format=bool(self.switches.structure_weight)) | result

  def pooled(self, example: Example, episode: Episode) -> dict[str, tuple[float, int]]:
    """(sum of the verdicts, number of pairs) of each measured term of FAITHFUL; see `faithful.pooled`.

    An answer without a thought before it is an unfaithful pair. An episode without an answer has no pair.
    """
    if episode.ended == "failed":
      return {}
    turns = steps(episode.turns, self.parser.action)
    numbers = {
      name: faithful.pooled(getattr(turns, name), self._verdicts(name, turns, episode)) for name in self.judged
    }
    if self.sub_em:
      stated = self._stated(turns)
      numbers["think_answer"] = sum(stated), len(stated)
    return numbers

  def credit(self, example: Example, episode: Episode) -> dict[str, list[float]]:
    """Divides `information_think`: each verdict's part goes to the model segment with the judged thought.

    One number per model segment; their sum is the term. Empty if the term is unknown.
    """
    if self.score(example, episode)["information_think"] is None:
      return {}
    turns = steps(episode.turns, self.parser.action)
    parts = {place: 0.0 for place, segment in enumerate(episode.turns) if segment.owner == MODEL}
    pairs = zip(turns.information_think, turns.spoken)
    thought = [place for (_, claim), place in pairs if claim is not None and place is not None]
    for place, verdict in zip(thought, self._verdicts("information_think", turns, episode) or (), strict=True):
      parts[place] += (verdict or 0.0) / len(turns.information_think)
    return dict(information_think=list(parts.values()))

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term at a step. The weights of faithfulness rise along the ramp."""
    share = schedules.ramp(step, *self.ramp)
    weights = dict(answer=1.0 - self.switches.structure_weight)
    weights |= {name: share * self.switches[f"{name}_weight"] for name in FAITHFUL}
    return weights | (dict(format=self.switches.structure_weight) if self.switches.structure_weight else {})


def trick_of_information(pair: Pair) -> str:
  """The trick of a (results, thought) pair; "" without one.

  "copied": the thought is a run of words from the results. "unrelated": it shares no content word with the results, for
  example if it addresses the judge.
  """
  results, thought = pair
  if results is None or thought is None:
    return ""
  if faithful.copied(results, thought):
    return "copied"
  return "" if lexical.overlap(results, thought) else "unrelated"


def trick_of_answer(pair: Pair, results: Sequence[str]) -> str:
  """The trick of a (thought, answer) pair; "" without one.

  "inside_word": the thought contains the answer's letters, but not as words. "echoed": the thought consists of the
  answer. "copied": the thought is a run of words from some results.
  """
  thought, answer = pair
  if not faithful.states(thought, answer):
    return ""
  if not faithful.states(thought, answer, words=True):
    return "inside_word"
  if normalize(thought or "", "squad") == normalize(answer or "", "squad"):
    return "echoed"
  return "copied" if any(faithful.copied(block, thought) for block in results) else ""


def tricks_of(steps: Steps) -> dict[str, tuple[str, ...]]:
  """Term → the trick of each of its pairs, in order."""
  results = [block for block, _ in steps.information_think if block is not None]
  return dict(
    information_think=tuple(map(trick_of_information, steps.information_think)),
    think_answer=tuple(trick_of_answer(pair, results) for pair in steps.think_answer),
  )
