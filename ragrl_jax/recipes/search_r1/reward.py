"""The reward: for a right answer; in the preset `format` also for the format and for finding the gold."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.recipes.search_agent import Parser, hollow, in_shape, last_answer, unthought
from ragrl_jax.structs import Episode, Example

if TYPE_CHECKING:
  from ragrl_jax.recipes.search_r1.recipe import Switches


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode. Only the model's own words are read as its answer, and never the prompt's."""

  parser: Parser
  switches: "Switches"

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 or 1; `format` 0 to 1; `retrieval` 0 or 1. None if a tool had failed.

    With weights (0.8, 0.2, retrieval_weight) this is the published table: right 1 (in shape) or 0.8; wrong 0.2 plus
    retrieval (in shape) or 0.1; no answer 0.

    Source: Search-R1's qa_em.py and qa_em_format.py (v0.3).
    """
    names = ("answer", "format", "retrieval") if self.switches.format else ("answer",)
    if episode.ended == "failed":
      return dict.fromkeys(names)
    right, shaped = self.outcome(example, episode), in_shape(episode)
    consolation = self.switches.final_share if last_answer(self.parser, episode) is not None and not right else 0.0
    earned = 0.0 if self.switches.guarded and unthought(episode) else right
    if self.switches.guarded:
      shaped, consolation = shaped and not hollow(episode), 0.0
    terms: dict[str, float | None] = dict(answer=earned)
    if self.switches.format:
      # Guarded, only the shape of a right answer is paid for.
      terms["format"] = consolation if not shaped else earned if self.switches.guarded else 1.0
      terms["retrieval"] = float(shaped and not right and gold_was_found(self.parser, example, episode))
    return terms

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the same throughout
    if not self.switches.format:
      return dict(answer=1.0)
    shape = self.switches.structure_weight
    return dict(answer=1.0 - shape, format=shape, retrieval=self.switches.retrieval_weight)

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the last answer, 0 or 1, without any shaping."""
    answer = last_answer(self.parser, episode)
    return 0.0 if answer is None else qa.exact_match(answer, example.golds)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that this reward pays for, and whether the episode does them (README.md, "Unearned reward")."""
    right = self.outcome(example, episode) == 1.0
    found = dict(unthought=right and unthought(episode))
    if self.switches.format:
      answered = last_answer(self.parser, episode) is not None
      found |= dict(hollow=hollow(episode), consoled=answered and not right)
    return found


def gold_was_found(parser: Parser, example: Example, episode: Episode) -> bool:
  """Whether a shown passage contains a normalised gold. A gold in a part that was cut off does not count."""
  shown = [passage for search in episode.searches for passage in parser.observed("", search.text)[1] or ()]
  texts = [normalize(f"{passage.title} {passage.text}", "squad") for passage in shown]
  golds = [gold for gold in (normalize(gold, "squad") for gold in example.golds) if gold]
  return any(gold in text for text in texts for gold in golds)
