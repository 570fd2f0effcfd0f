"""The reward: the program's answer scored by exact match, F1, a judge or a function; or the program's own number."""

from collections.abc import Callable
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.recipes import answered
from ragrl_jax.recipes.agent.parser import Parser
from ragrl_jax.structs import Episode, Example

# (example, answer, facts) → a number, or None if the episode cannot be scored
Function = Callable[[Example, str, Any], float | None]
KINDS = ("em", "f1", "judge", "program")


class Reward(answered.Reward):
  """Scores one episode.

  Args:
    parser: reads the answers of transcripts, which have no program.
    kind: one of KINDS, or a function of (example, answer, facts).
  """

  def __init__(self, parser: Parser, kind: str | Function):
    super().__init__(parser, judged=kind == "judge")
    self._kind = kind

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The term `answer`, scored by the reward's kind.

    Its value is None if a tool failed, or if the program, the judge or the function gave no number.
    """
    if episode.ended == "failed":
      return dict(answer=None)
    if self._kind in ("em", "judge"):
      return dict(answer=self.outcome(example, episode))
    if self._kind == "program":
      return dict(answer=episode.facts.get("reward"))
    said = answered.last_answer(self.parser, episode)
    if callable(self._kind):
      earned = self._kind(example, said, episode.facts)
      return dict(answer=None if earned is None else float(earned))
    return dict(answer=qa.f1(said, example.golds))
