"""The reward: for format, answer and cited passages, and a tenfold bonus if all three are right. Next: recipe.py.

`score` returns the terms, `weights` their weights; the recipe adds them up.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import citations
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.arena.prompt import Parser
from ragrl_jax.structs import Episode, Example

ACCURACY = ("exact", "f1", "judge")  # "judge": an answer that is not exactly right scores the verdict in the facts


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode."""

  parser: Parser
  switches: Any

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`format` 0 or 1, `accuracy` 0 to 1, `relevance` 0, 0.5 or 1, `bonus` 1 iff the three are 1.

    `relevance` and `bonus` are None if the supporting passages are unknown, `accuracy` and `bonus` if a verdict is
    missing. A format without a relevance section has only the first two terms.

    Source: ARENA (arXiv 2505.13258) sec. 3.3; answer and references also count in a reply with a wrong format.
    """
    if episode.ended == "failed":
      return dict.fromkeys(self.weights(0))
    text = episode.model_text
    terms = dict(format=float(self.parser.in_shape(text)), accuracy=self.right(example, episode))
    if "relevance" not in self.parser.sections:
      return terms
    golds = self.golds(example)
    if not golds:
      return terms | dict(relevance=None, bonus=None)
    terms["relevance"] = citations.overlap(self.cited(text), golds)
    unknown = terms["accuracy"] is None
    return terms | dict(bonus=None if unknown else float(all(value == 1.0 for value in terms.values())))

  def golds(self, example: Example) -> list[int]:
    """The numbers of the right references; empty if they are unknown."""
    return passages.gold_numbers(example, self.switches.gold_ids)

  def cited(self, text: str) -> list | None:
    """The numbers in the section of references; None if it is not a list."""
    return citations.parse_ids(self.parser.section(text, "relevance") or "", strict=self.switches.strict_ids)

  def right(self, example: Example, episode: Episode) -> float | None:
    """The accuracy of the answer. A missing answer is wrong, without a judge."""
    answer, accuracy = self.parser.answer(episode.model_text) or "", self.switches.accuracy
    if accuracy == "f1":
      return qa.f1(answer, example.golds, style="spaced")
    exact = self.outcome(example, episode)
    return episode.facts.get("correct") if accuracy == "judge" and answer and not exact else exact

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step. The bonus has weight `bonus`, the others 1."""
    cites = "relevance" in self.parser.sections
    return dict(format=1.0, accuracy=1.0) | (dict(relevance=1.0, bonus=self.switches.bonus) if cites else {})

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the answer, 0 or 1, without any shaping: for filters, progress bars and tables."""
    return qa.exact_match(self.parser.answer(episode.model_text) or "", example.golds, style="spaced")
