"""Paid for the shape, the answer, the references named, and ten times over for all of it at once."""

from collections.abc import Mapping

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import citations
from ragrl_jax.recipes.arena.parser import Parser
from ragrl_jax.structs import Episode, Example

TERMS = ("format", "accuracy", "relevance", "bonus")


class Reward:
  """Scores one episode.

  Args:
    parser: reads the model's text.
    gold_ids: "supporting" (positions by title, as the data gives them) or "substring" (see `gold_ids`).
    strict_ids: accept nothing but a JSON list of plain integers.
    bonus: weight of the bonus.
    accuracy: "exact" or "f1".
  """

  def __init__(self, parser: Parser, *, gold_ids: str, strict_ids: bool, bonus: float, accuracy: str):
    self.parser = parser
    self.gold_ids = gold_ids
    self.strict_ids = strict_ids
    self.bonus = bonus
    self.accuracy = accuracy

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`format` 0 or 1, `accuracy` 0 to 1, `relevance` 0, 0.5 or 1, `bonus` 1 iff the three are 1.

    `relevance` and `bonus` are None where it is not known which passages support the answer.

    Source: ARENA (arXiv 2505.13258) sec. 3.2; the answer and the numbers are paid out of shape, too.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    text = episode.model_text
    shape = float(self.parser.in_shape(text))
    measure = qa.f1 if self.accuracy == "f1" else qa.exact_match
    accuracy = measure(self.parser.answer(text) or "", example.golds, style="spaced")
    golds = gold_ids(example, self.gold_ids)
    if not golds:
      return dict(format=shape, accuracy=accuracy, relevance=None, bonus=None)
    ids = citations.parse_ids(self.parser.section(text, "relevance") or "", strict=self.strict_ids)
    relevance = citations.overlap(ids, golds)
    return dict(
      format=shape, accuracy=accuracy, relevance=relevance, bonus=float(shape == accuracy == relevance == 1.0))

  def weights(self, step: int) -> Mapping[str, float]:
    del step  # the same throughout
    return dict(format=1.0, accuracy=1.0, relevance=1.0, bonus=self.bonus)

  def outcome(self, example: Example, episode: Episode) -> float:
    return qa.exact_match(self.parser.answer(episode.model_text) or "", example.golds, style="spaced")


def gold_ids(example: Example, mode: str) -> list[int]:
  """The numbers, from 1, of the passages that the answer rests on; empty where not known.

  "substring" takes, for each evidence sentence (the whole passage where a set marks passages only), the first passage
  that holds it, and -1 if none does: with a -1 no list of numbers is the right one.
  """
  if mode == "supporting":
    return sorted({place + 1 for place in example.supporting})
  sentences = [sentence for _, sentence in example.evidence]
  sentences = sentences or [example.passages[place].text for place in example.supporting]
  found = set()
  for sentence in sentences:
    found.add(next((i for i, passage in enumerate(example.passages, 1) if sentence in passage.text), -1))
  return sorted(found)
