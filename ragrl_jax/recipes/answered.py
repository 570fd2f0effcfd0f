"""Scores only the last answer, for recipes without a reward of their own: agents and untrained baselines."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.judging import references
from ragrl_jax.recipes.parts import Play
from ragrl_jax.recipes.recipe import Parser, scoring
from ragrl_jax.structs import MODEL, Episode, Example, Policy, Tools


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode by its last answer. Each turn is read separately.

  Attributes:
    parser: reads the model's text.
    kind: "em"; "f1"; or "judge": the judge decides about answers that equal no gold.
  """

  parser: Parser
  kind: Any = "em"

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 to 1; None if a tool failed, or if a verdict is missing."""
    return dict(answer=None if episode.ended == "failed" else self.earned(example, episode))

  def earned(self, example: Example, episode: Episode) -> float | None:
    """The term `answer` of an episode that did not fail."""
    if self.kind == "f1":
      return qa.f1(last_answer(self.parser, episode), example.golds)
    return self.outcome(example, episode)

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the weights are constant
    return dict(answer=1.0)

  def outcome(self, example: Example, episode: Episode) -> float | None:
    """Whether the last answer is right, 0 or 1; None if a verdict is missing."""
    said = last_answer(self.parser, episode)
    if self.kind != "judge" or not said or qa.exact_match(said, example.golds):
      return qa.exact_match(said, example.golds)
    verdict = episode.facts.get("correct")
    return None if verdict is None else float(verdict >= 0.5)


def fields(play: Play, reward: Reward) -> dict[str, Any]:
  """The fields of `Recipe` that play and score an episode; a judge gives its verdict in play."""
  judges = reward.kind == "judge"
  return dict(
    parser=reward.parser, play=judged(play, reward.parser) if judges else play, judges_golds=judges, **scoring(reward)
  )


def last_answer(parser: Parser, episode: Episode) -> str:
  """The model's last answer, or the fact `answer` of a method that chooses one; "" if there is none."""
  if "answer" in episode.facts:
    return episode.facts["answer"] or ""
  said = (parser.answer(segment.text) for segment in reversed(episode.segments) if segment.owner == MODEL)
  return next((answer for answer in said if answer is not None), "")


def judged(play: Play, parser: Parser) -> Play:
  """The coroutine, followed by the judge's verdict on an answer that equals no gold (fact `correct`)."""

  async def play_and_judge(example: Example, policy: Policy, tools: Tools) -> Episode:
    episode = await play(example, policy, tools)
    said = last_answer(parser, episode)
    if not said or not example.golds or qa.exact_match(said, example.golds):  # a question by `ragrl ask` has no golds
      return episode
    (verdict,) = await tools.judge([(references(example.golds), said)])
    return dataclasses.replace(episode, facts={**episode.facts, "correct": verdict})

  return play_and_judge
