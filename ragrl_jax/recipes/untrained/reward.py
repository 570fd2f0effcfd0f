"""Right or wrong: nothing here is trained, and one term lets the tables count."""

from collections.abc import Mapping

from ragrl_jax.core.metrics import qa
from ragrl_jax.recipes.untrained.parser import Parser
from ragrl_jax.structs import MODEL, Episode, Example


class Reward:
  """Scores one episode by its last answer, each turn read on its own."""

  def __init__(self, parser: Parser):
    self.parser = parser

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 or 1; None where a tool had failed for good."""
    return dict(answer=None if episode.ended == "failed" else self.outcome(example, episode))

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the same throughout
    return dict(answer=1.0)

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the last answer, 0 or 1."""
    said = (self.parser.answer(segment.text) for segment in reversed(episode.segments) if segment.owner == MODEL)
    return qa.exact_match(next((answer for answer in said if answer is not None), ""), example.golds)
