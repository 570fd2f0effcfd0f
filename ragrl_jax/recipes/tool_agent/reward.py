"""The reward: the final answer scored by exact match, F1 or a judge."""

from ragrl_jax.core.metrics import qa
from ragrl_jax.recipes import answered
from ragrl_jax.recipes.tool_agent.parser import Parser
from ragrl_jax.structs import Episode, Example

KINDS = ("em", "f1", "judge")


class Reward(answered.Reward):
  """Scores one episode.

  Args:
    parser: reads the answers of transcripts; an episode of `play` has its answer as a fact.
    kind: one of KINDS.
  """

  def __init__(self, parser: Parser, kind: str):
    super().__init__(parser, judged=kind == "judge")
    self._kind = kind

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The term `answer`, between 0 and 1.

    Its value is None if a tool failed and the episode is masked, or if the judge gave no verdict.
    """
    if self._kind != "f1" or episode.ended == "failed":
      return super().score(example, episode)
    return dict(answer=qa.f1(answered.last_answer(self.parser, episode), example.golds))
