"""The reward: for the answer, depending on the number of searches; for queries; for the format."""

from collections.abc import Callable, Mapping, Sequence

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import queries
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.recipes.when_to_search.parser import Parser, in_shape, last_answer, wordless
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
    concise: (query, titles that it may name) → whether it is brief enough.
    encoded: queries are compared by the vectors among the facts; False: by their character trigrams.
    halve: the printed formula of the similarity.
    guarded: the tricks of `unearned` earn nothing: see README.md, "Unearned reward".
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
    concise: Callable[..., bool],
    encoded: bool,
    halve: bool,
    guarded: bool,
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
    self.guarded = guarded

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
      if self.guarded and not right:
        explore, economise = min(explore, 0.0), min(economise, 0.0)
    return dict(
      answer_explore=explore,
      answer_economise=economise,
      search=self.searching(example, episode),
      format=1.0 if in_shape(episode) and not (self.guarded and wordless(episode)) else -1.0,
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
    """1 if the answer is right; None if it needs a verdict and has none, because it is then unknown."""
    right = self.correct(example, episode)
    return None if right is None else float(right)

  def correct(self, example: Example, episode: Episode) -> bool | None:
    """Whether a gold equals the answer or, if answers are judged, the judge said so; None if it said nothing."""
    answer = last_answer(self.parser, episode) or ""
    if qa.exact_match(answer, example.golds):
      return True
    if not self.judged or not to_judge(answer, example.golds) or (self.guarded and hedged(answer, example.golds)):
      return False
    verdict = episode.facts.get("correct")
    return None if verdict is None else verdict >= 0.5

  def searching(self, example: Example, episode: Episode) -> float | None:
    """How well it searched, in [-1, 1]: one query is to be concise, several are to differ; None without vectors.

    Above 0 only for queries of opposite vectors, and not if guarded.
    """
    if episode.num_searches < 2:
      return 0.0 if self._brief(example, episode) else -1.0
    if (alike := self._similarity(episode)) is None:
      return None
    if not self.guarded:
      return -alike
    return min(-alike, 0.0) if self._brief(example, episode) else -1.0

  def _brief(self, example: Example, episode: Episode) -> bool:
    """Whether all queries are concise. Question words inside a title (of the question or of a result) are allowed."""
    titles = [*queries.names_in(example.question), *(p.title for s in episode.searches for p in s.found or ())]
    return all(self.concise(search.query or "", titles) for search in episode.searches)

  def _similarity(self, episode: Episode) -> float | None:
    asked = [search.query or "" for search in episode.searches]
    vectors = episode.facts.get("query_vectors") if self.encoded else queries.ngram_vectors(asked)
    return None if vectors is None else queries.mean_similarity(vectors, halve=self.halve)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """Which of the tricks of README.md's "Unearned reward" the episode does.

    "paid_failure": no right answer, and so many searches that stage 1 pays for them. "hidden_question": a query that is
    not brief, beside another one. "opposite_queries": queries of opposite vectors. "wordless": in shape, with a think
    or a reflection without a letter or digit. "hedged": an answer of several, or a whole account, that a judge called
    right.
    """
    several = episode.num_searches > 1
    right, answer = self.correct(example, episode), last_answer(self.parser, episode) or ""
    exact = bool(qa.exact_match(answer, example.golds))
    hedge = not exact and (episode.facts.get("correct") or 0.0) >= 0.5 and hedged(answer, example.golds)
    return dict(
      paid_failure=right is False and self.beta * episode.num_searches > 1.0,
      hidden_question=several and not self._brief(example, episode),
      opposite_queries=several and (self._similarity(episode) or 0.0) < 0.0,
      wordless=in_shape(episode) and wordless(episode),
      hedged=self.judged and hedge,
    )


def to_judge(answer: str, golds: Sequence[str]) -> str:
  """What a judge sees of an answer: it normalised, as the paper's judge does; "" if there is nothing to judge.

  Where a gold normalises to nothing ("The The"), so may a right answer: it is then shown as it was written.
  """
  said = normalize(answer, "squad")
  return said if said or all(normalize(gold, "squad") for gold in golds) else answer.strip()


def hedged(answer: str, golds: Sequence[str]) -> bool:
  """Whether an answer names several ("or"), or has more than ten words and three times as many as every gold."""
  words, known = normalize(answer, "squad").split(), [normalize(gold, "squad").split() for gold in golds]
  longest = max(map(len, known), default=0)
  return ("or" in words and not any("or" in gold for gold in known)) or len(words) > max(10, 3 * longest)
