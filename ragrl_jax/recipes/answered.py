"""Scores only whether the answer is right, for recipes that are evaluated and not trained."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping

from ragrl_jax.core.metrics import qa
from ragrl_jax.judging import references
from ragrl_jax.recipes.recipe import Parser
from ragrl_jax.structs import MODEL, Episode, Example, Policy, Tools

Play = Callable[[Example, Policy, Tools], Awaitable[Episode]]


class Reward:
  """Scores one episode by its last answer. Each turn is read separately.

  Args:
    parser: reads the model's text.
    judged: whether the judge decides about answers that equal no gold.
  """

  def __init__(self, parser: Parser, *, judged: bool):
    self.parser, self.judged = parser, judged

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 or 1; None if a tool failed after all retries."""
    return dict(answer=None if episode.ended == "failed" else self.outcome(example, episode))

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the weights are constant
    return dict(answer=1.0)

  def outcome(self, example: Example, episode: Episode) -> float | None:
    """Whether the last answer is right, 0 or 1; None if a verdict is missing."""
    said = last_answer(self.parser, episode)
    if not self.judged or not said or qa.exact_match(said, example.golds):
      return qa.exact_match(said, example.golds)
    verdict = episode.facts.get("correct")
    return None if verdict is None else float(verdict >= 0.5)


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
