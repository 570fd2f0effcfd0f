"""Paid for three answers, for a long reason and short evidence, and for the shape."""

from collections.abc import Mapping

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import lengths
from ragrl_jax.recipes.lear.parser import Parser
from ragrl_jax.structs import Episode, Example

TERMS = ("answer", "length", "format")
PROBES = {"r": ("reason", "reason_answer"), "e": ("extract", "extract_answer")}


class Reward:
  """Scores one episode.

  Args:
    parser: reads the model's text.
    answers: which answers count: "f" the reply's own, "r" the one from the reason, "e" the one from the evidence.
    unit: of F1, "word" or "char".
    tau, gamma, omega: see `core.rewards.lengths`.
    weights: of the terms, by name.
  """

  def __init__(
    self,
    parser: Parser,
    *,
    answers: str,
    unit: str,
    tau: float,
    gamma: float,
    omega: float,
    weights: Mapping[str, float],
  ):
    self.parser, self.answers, self.unit = parser, answers, unit
    self.tau, self.gamma, self.omega = tau, gamma, omega
    self.term_weights = dict(weights)

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 to 1: the mean of F1 over the answers that count; `length` 0 to 1; `format` 0 or 1.

    A section that is not there earns 0 for its answer. One that is there and was not asked about, or not measured,
    makes the term None: a transcript without its facts cannot be scored. Out of shape, the length earns nothing.

    Source: LEAR sec. 3.3.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    text = episode.model_text
    found = [self._answer(letter, example, episode, text) for letter in self.answers]
    known = [value for value in found if value is not None]
    answer = sum(known) / len(found) if len(known) == len(found) else None
    shape = self.parser.in_shape(text)
    return dict(answer=answer, length=self._length(episode) if shape else 0.0, format=float(shape))

  def _answer(self, letter: str, example: Example, episode: Episode, text: str) -> float | None:
    if letter == "f":
      said = self.parser.answer(text) or ""
    else:
      section, fact = PROBES[letter]
      if self.parser.pair(text, section) is None:
        return 0.0
      said = episode.facts.get(fact)
    return None if said is None else qa.f1(said, example.golds, unit=self.unit)

  def _length(self, episode: Episode) -> float | None:
    """The mean of the reason's and the evidence's, or that of the evidence where the reply has no reason."""
    if "extract" not in self.parser.sections:
      return 0.0
    reason, evidence, passages = (episode.facts.get(f"{name}_tokens") for name in ("reason", "evidence", "passage"))
    if evidence is None or passages is None:
      return None
    short = lengths.evidence(evidence, passages, omega=self.omega, gamma=self.gamma)
    if "reason" not in self.parser.sections:
      return short
    return None if reason is None else (lengths.rationale(reason, evidence, tau=self.tau) + short) / 2

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the same throughout
    return self.term_weights

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the answer, 0 or 1, without any shaping. The answer is the probe's where one was asked for."""
    said = episode.facts["answer"] if "answer" in episode.facts else self.parser.answer(episode.model_text)
    return qa.exact_match(said or "", example.golds)

  def evidence(self, example: Example, episode: Episode) -> str:
    """What a generator would answer from: the evidence, or the reason of a reply without any."""
    del example
    return self.parser.section(episode.model_text, self.parser.evidence) or ""
