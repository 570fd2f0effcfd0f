"""The reward: for three answers, a long reason, short evidence, and the format."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import lengths
from ragrl_jax.recipes.lear import grounding
from ragrl_jax.recipes.lear.play import first_words
from ragrl_jax.recipes.lear.prompt import Parser
from ragrl_jax.structs import Episode, Example, Passage

if TYPE_CHECKING:
  from ragrl_jax.recipes.lear.recipe import Switches

TERMS = ("answer", "length", "format")
PROBES = {"r": ("reason", "reason_answer"), "e": ("extract", "extract_answer")}
STYLES = {"word": "squad", "char": "filco"}  # unit of F1 → how answers are normalised for it
LEAST_DISTINCT = 0.3  # share of distinct words in a reason
LONG = 30  # words; a shorter reason may repeat itself
EVIDENCE = ("bare_answer", "made_up", "beside_the_point")


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode."""

  parser: Parser
  switches: "Switches"

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 to 1, the mean F1 of the scored answers; `length` 0 to 1; `format` 0 or 1.

    The answer of a missing section scores 0. If a section is present but its probe's answer or its length is not among
    the facts, the term is None, because it cannot be scored. A reply out of shape has length 0.

    Source: LEAR sec. 3.2.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    if self.switches.guarded and any(self.unearned(example, episode).values()):
      return dict.fromkeys(TERMS, 0.0)
    text, unit = episode.model_text, self.switches.unit
    probed = [self._probed_answer(letter, episode, text) for letter in self.switches.answers]
    scores = [qa.f1(answer, example.golds, style=STYLES[unit], unit=unit) for answer in probed if answer is not None]
    answer = None if None in probed else sum(scores) / max(len(scores), 1)
    shape = self.parser.in_shape(text)
    return dict(answer=answer, length=self._length(episode) if shape else 0.0, format=float(shape))

  def _probed_answer(self, letter: str, episode: Episode, text: str) -> str | None:
    """The answer of this letter; "" if its section is missing, None if it was not probed."""
    if letter == "f":
      return self.parser.answer(text) or ""
    section, fact = PROBES[letter]
    absent = self.parser.pair(text, section) is None if self.parser.sections else not self.parser.written(text)
    return "" if absent else episode.facts.get(fact)

  def _length(self, episode: Episode) -> float | None:
    """The mean of the reason's and the evidence's score; the evidence's alone for a reply without a reason."""
    if "extract" not in self.parser.sections:
      return 0.0
    reason, evidence, passages = (episode.facts.get(f"{name}_tokens") for name in ("reason", "evidence", "passage"))
    if evidence is None or passages is None:
      return None
    short = lengths.evidence(evidence, passages, omega=self.switches.omega, gamma=self.switches.gamma)
    if "reason" not in self.parser.sections:
      return short
    return None if reason is None else (lengths.rationale(reason, evidence, tau=self.switches.tau) + short) / 2

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    return {term: self.switches[f"{term}_weight"] for term in TERMS}

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the answer, 0 or 1, unshaped. With stop_at="extract" it is the answer from the evidence."""
    if not self.switches.answers:
      return float(qa.CONTAINS[self.switches.recall](self.evidence(example, episode), example.golds))
    answer = episode.facts["answer"] if "answer" in episode.facts else self.parser.answer(episode.model_text)
    return qa.exact_match(answer or "", example.golds)

  def evidence(self, example: Example, episode: Episode) -> str:
    """The text that a generator answers from: the evidence, else the reason, or the whole of a free text."""
    return first_words(self.parser.written(episode.model_text), self.switches.max_evidence_words)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks of README.md's "Unearned reward", and whether the episode uses each.

    Those of the evidence only if replies extract some.
    """
    section, passages = functools.partial(self.parser.section, episode.model_text), shown(example, episode)
    evidence = section("extract") if "extract" in self.parser.sections else None
    judge = grounding.Judge(passages, example.question, example.golds)
    of_evidence = judge.tricks(evidence) if evidence else dict.fromkeys(EVIDENCE, False)
    reason = grounding.words(section("reason") or "")
    quoted_words = grounding.quoted(reason, passages)
    return of_evidence | dict(
      padded_reason=len(reason) > LONG and len(set(reason)) < LEAST_DISTINCT * len(reason),
      copied_reason=2 * quoted_words > len(reason) and 2 * quoted_words > grounding.size(passages),
    )

  def measures(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The curves of Fig. 5 (F1 of the three answers, lengths), EM of the answer from the evidence, and the recall of
    the reason (Table 1). None for an answer that was not probed, or from a section that replies do not have."""
    text, facts = episode.model_text, episode.facts
    sections = self.parser.sections
    absent = {letter for letter, (section, _) in PROBES.items() if section not in (sections or ("extract",))}
    answers = {letter: None if letter in absent else self._probed_answer(letter, episode, text) for letter in "ref"}
    f1 = {letter: None if answer is None else qa.f1(answer, example.golds) for letter, answer in answers.items()}
    reason = self.parser.section(text, "reason") if "reason" in sections else None
    return dict(
      f1_from_reason=f1["r"],
      f1_from_evidence=f1["e"],
      f1_in_full=f1["f"] if "answer" in self.parser.sections else None,
      em_from_evidence=None if answers["e"] is None else qa.exact_match(answers["e"], example.golds),
      reason_tokens=facts.get("reason_tokens"),
      extract_tokens=facts.get("evidence_tokens"),
      reason_recall=None if reason is None else float(qa.CONTAINS[self.switches.recall](reason, example.golds)),
    )


def shown(example: Example, episode: Episode) -> tuple[Passage, ...]:
  """The passages that the prompt shows: the question's own, or the retrieved ones, which `play` keeps as a fact."""
  retrieved: Sequence[Sequence[str]] = episode.facts.get("retrieved", ())
  return example.passages or tuple(Passage("", title, text) for title, text in retrieved)
