"""The reward: for the answer (depending on the number of searches), for queries, and for the format."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import queries
from ragrl_jax.core.text import tags
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.recipes import search_agent
from ragrl_jax.recipes.parts import find_answer
from ragrl_jax.recipes.search_agent import Parser
from ragrl_jax.structs import MODEL, Episode, Example

if TYPE_CHECKING:
  from ragrl_jax.recipes.when_to_search.recipe import Switches

TERMS = ("answer_explore", "answer_economise", "search", "format")
ANSWER = ("staged", "unified", "none")


def in_shape(episode: Episode) -> bool:
  """Whether the format is think reflect answer, or think (search results reflect) … answer.

  A think may precede later searches. The only answer comes last.

  Source: When to Search sec. 3.3; its second example searches right after a reflection.
  """
  return search_agent.in_shape(episode, ("think", "search", "reflect", "answer"), "TRA|TSIR(T?SIR)*A")


def wordless(episode: Episode) -> bool:
  """Whether a think or a reflection has no letter and no digit."""
  said = [segment.text for segment in episode.turns if segment.owner == MODEL]
  return any(not search_agent.says(pair.body) for text in said for pair in tags.pairs(text, ("think", "reflect")))


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode."""

  parser: Parser
  switches: "Switches"

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The terms, with RC executed searches and β = 0.3.

    `answer_explore`: right 1, wrong −1 + β·RC. `answer_economise`: right 1 − β·RC, wrong −1. ("unified": both are
    1 − β·RC and −1 + β·RC.) `search`: minus the similarity of two or more queries; for one query 0 if it is brief, else
    −1; without a query 0. `format`: 1 in the right format, else −1. A term is None if a tool failed, or if a verdict or
    vectors are missing.

    Source: When to Search sec. 3.3, eqs. 6 to 12.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    pay = self.switches.beta * episode.num_searches
    right = self.correct(example, episode)
    explore = economise = None
    if right is not None:
      explore, economise = (1.0, 1.0 - pay) if right else (-1.0 + pay, -1.0)
      if self.switches.answer == "unified":
        explore = economise = 1.0 - pay if right else -1.0 + pay
      if self.switches.guarded and not right:
        explore, economise = min(explore, 0.0), min(economise, 0.0)
    return dict(
      answer_explore=explore,
      answer_economise=economise,
      search=self.searching(example, episode),
      format=1.0 if in_shape(episode) and not (self.switches.guarded and wordless(episode)) else -1.0,
    )

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term at a step. Stage 1 uses `answer_explore`, stage 2 `answer_economise`."""
    second = self.switches.stage_two_from is not None and bool(schedules.stage(step, (self.switches.stage_two_from,)))
    paid = float(self.switches.answer != "none")
    return dict(
      answer_explore=0.0 if second else paid,
      answer_economise=paid if second else 0.0,
      search=self.switches.search_weight,
      format=1.0,
    )

  def outcome(self, example: Example, episode: Episode) -> float | None:
    """1 if the answer is right; None if it needs a verdict and has none, because it is then unknown."""
    right = self.correct(example, episode)
    return None if right is None else float(right)

  def correct(self, example: Example, episode: Episode) -> bool | None:
    """Whether the answer equals a gold, or the judge called it right; None without a needed verdict."""
    answer = find_answer(self.parser, episode) or ""
    if qa.exact_match(answer, example.golds):
      return True
    refused = self.switches.guarded and hedged(answer, example.golds)
    if refused or not self.switches.judges or not to_judge(answer, example.golds):
      return False
    verdict = episode.facts.get("correct")
    return None if verdict is None else verdict >= 0.5

  def searching(self, example: Example, episode: Episode) -> float | None:
    """The term `search`, in [-1, 1]: a single query should be brief, several should differ; None without vectors.

    It is above 0 only for queries with opposite vectors, and never if guarded.
    """
    if episode.num_searches < 2:
      return 0.0 if self._brief(example, episode) else -1.0
    if (alike := self._similarity(episode)) is None:
      return None
    if not self.switches.guarded:
      return -alike
    return min(-alike, 0.0) if self._brief(example, episode) else -1.0

  def _brief(self, example: Example, episode: Episode) -> bool:
    """Whether all queries are concise. Question words inside a title (of the question or of a result) are allowed."""
    titles = [*queries.names_in(example.question), *(p.title for s in episode.searches for p in s.found or ())]
    return all(queries.CONCISE[self.switches.conciseness](search.query or "", titles) for search in episode.searches)

  def _similarity(self, episode: Episode) -> float | None:
    vectors = episode.facts.get("query_vectors")
    if self.switches.similarity == "ngrams":
      vectors = queries.ngram_vectors([search.query or "" for search in episode.searches])
    return None if vectors is None else queries.mean_similarity(vectors, halve=self.switches.halve)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks of README.md's "Unearned reward", and whether the episode uses them.

    "paid_failure": a wrong answer with so many searches that stage 1 rewards it. "hidden_question": a query that is not
    brief, besides another query. "opposite_queries": queries with opposite vectors. "wordless": the right format, with
    a think or a reflection without a letter or digit. "hedged": an answer that names several, or a long text, that the
    judge called right.
    """
    several = episode.num_searches > 1
    right, answer = self.correct(example, episode), find_answer(self.parser, episode) or ""
    exact = bool(qa.exact_match(answer, example.golds))
    hedge = not exact and (episode.facts.get("correct") or 0.0) >= 0.5 and hedged(answer, example.golds)
    return dict(
      paid_failure=right is False and self.switches.beta * episode.num_searches > 1.0,
      hidden_question=several and not self._brief(example, episode),
      opposite_queries=several and (self._similarity(episode) or 0.0) < 0.0,
      wordless=in_shape(episode) and wordless(episode),
      hedged=self.switches.judges and hedge,
    )


def to_judge(answer: str, golds: Sequence[str]) -> str:
  """The answer for the judge, normalised as in the paper; "" if there is nothing to judge.

  If a gold becomes empty by normalising ("The The"), a right answer may too. Then the answer is not normalised.
  """
  said = normalize(answer, "squad")
  return said if said or all(normalize(gold, "squad") for gold in golds) else answer.strip()


def hedged(answer: str, golds: Sequence[str]) -> bool:
  """Whether an answer names several ("or"), or has more than ten words and three times as many as every gold."""
  words, known = normalize(answer, "squad").split(), [normalize(gold, "squad").split() for gold in golds]
  longest = max(map(len, known), default=0)
  return ("or" in words and not any("or" in gold for gold in known)) or len(words) > max(10, 3 * longest)
