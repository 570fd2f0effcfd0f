"""Paid for the answer, dependent on the searches it took; for queries; for the shape."""

from collections.abc import Callable, Mapping

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import queries
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.recipes.when_to_search.parser import Parser, in_shape, last_answer
from ragrl_jax.structs import Episode, Example

TERMS = ("answer_explore", "answer_economise", "search", "format")
ANSWER = ("staged", "unified", "none")


class Reward:
  """Scores one episode.

  Args:
    parser: reads the model's text.
    beta: what a search is worth in the answer's terms.
    answer: "staged" (see `weights`), "unified" (both dependencies at once) or "none".
    stage_two_from: the first step, from 1, that pays `answer_economise` in place of `answer_explore`; None: none does.
    judged: an answer that no gold equals is right if the judge said so.
    search_weight: of the term "search".
    concise: whether a query is brief enough.
    encoded: queries are compared by the vectors among the facts; False: by their character trigrams.
    halve: the printed formula of the similarity.
  """

  def __init__(
    self,
    parser: Parser,
    *,
    beta: float,
    answer: str,
    stage_two_from: int | None,
    judged: bool,
    search_weight: float,
    concise: Callable[[str], bool],
    encoded: bool,
    halve: bool,
  ):
    self.parser = parser
    self.beta = beta
    self.answer = answer
    self.stage_two_from = stage_two_from
    self.judged = judged
    self.search_weight = search_weight
    self.concise = concise
    self.encoded = encoded
    self.halve = halve

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """With RC executed searches and β = 0.3:

    `answer_explore`: right 1, wrong −1 + β·RC. `answer_economise`: right 1 − β·RC, wrong −1. ("unified": both are
    1 − β·RC and −1 + β·RC.) `search`: minus the similarity of two and more queries, else 0 if brief or none, −1 if not.
    `format`: 1 in shape, else −1. None where a tool had failed for good, or where a verdict or vectors are missing.

    Source: When to Search sec. 3.3, eqs. 6 to 12.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    pay = self.beta * episode.num_searches
    right = self.correct(example, episode)
    explore = economise = None
    if right is not None:
      explore, economise = (1.0, 1.0 - pay) if right else (-1.0 + pay, -1.0)
      if self.answer == "unified":
        explore = economise = 1.0 - pay if right else -1.0 + pay
    return dict(
      answer_explore=explore,
      answer_economise=economise,
      search=self.searching(episode),
      format=1.0 if in_shape(episode) else -1.0,
    )

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term at a step: stage one pays `answer_explore`, stage two `answer_economise`."""
    second = self.stage_two_from is not None and bool(schedules.stage(step, (self.stage_two_from,)))
    paid = float(self.answer != "none")
    return dict(
      answer_explore=0.0 if second else paid,
      answer_economise=paid if second else 0.0,
      search=self.search_weight,
      format=1.0,
    )

  def outcome(self, example: Example, episode: Episode) -> float | None:
    """1 if the answer is right; None if it should have been judged and was not: that is not wrong."""
    right = self.correct(example, episode)
    return None if right is None else float(right)

  def correct(self, example: Example, episode: Episode) -> bool | None:
    """Whether a gold equals the answer or, if answers are judged, the judge said so; None if it said nothing."""
    answer = last_answer(self.parser, episode)
    if answer is None or not normalize(answer, "squad"):
      return False
    if qa.exact_match(answer, example.golds):
      return True
    if not self.judged:
      return False
    verdict = episode.facts.get("correct")
    return None if verdict is None else verdict >= 0.5

  def searching(self, episode: Episode) -> float | None:
    """How well it searched, in [-1, 0]: one query is to be concise, several are to differ; None without vectors."""
    asked = [search.query or "" for search in episode.searches]
    if len(asked) < 2:
      return 0.0 if all(map(self.concise, asked)) else -1.0
    vectors = episode.facts.get("query_vectors") if self.encoded else queries.ngram_vectors(asked)
    return None if vectors is None else -queries.mean_similarity(vectors, halve=self.halve)
