"""The reward: for format, answer and cited passages, and a tenfold bonus if all three are right. Next: recipe.py.

`score` returns the terms, `weights` their weights; the recipe adds them up.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import citations
from ragrl_jax.core.text import forms
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.arena.prompt import Parser
from ragrl_jax.structs import Episode, Example

ACCURACY = ("exact", "f1", "judge")  # "judge": an answer that is not exactly right scores the verdict in the facts
LEAST_WORDS = 5  # fewest words of an analysis or a thought
_WORD, _NUMBER = re.compile(r"\w+"), re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode."""

  parser: Parser
  switches: Any

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The `published` terms. With `guarded`, all known ones are 0 if the reply uses a trick of `unearned`."""
    terms = self.published(example, episode)
    if not self.switches.guarded or episode.ended == "failed" or not any(self.unearned(example, episode).values()):
      return terms
    return {name: None if value is None else 0.0 for name, value in terms.items()}

  def published(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`format` 0 or 1, `accuracy` 0 to 1, `relevance` 0, 0.5 or 1, `bonus` 1 iff the three are 1.

    `relevance` and `bonus` are None if the supporting passages are unknown, `accuracy` and `bonus` if a verdict is
    missing. A format without a relevance section has only the first two terms.

    Source: ARENA (arXiv 2505.13258) sec. 3.2; answer and references also count in a reply with a wrong format.
    """
    if episode.ended == "failed":
      return dict.fromkeys(self.weights(0))
    text = episode.model_text
    terms = dict(format=float(self.parser.in_shape(text)), accuracy=self.right(example, episode))
    if "relevance" not in self.parser.sections:
      return terms
    golds = self._golds(example)
    if not golds:
      return terms | dict(relevance=None, bonus=None)
    terms["relevance"] = citations.overlap(self._cited(text), golds)
    unknown = terms["accuracy"] is None
    return terms | dict(bonus=None if unknown else float(all(value == 1.0 for value in terms.values())))

  def _golds(self, example: Example) -> list[int]:
    return passages.gold_numbers(example, self.switches.gold_ids)

  def _cited(self, text: str) -> list | None:
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

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that the published reward pays for, and whether the reply uses them.

    `out_of_shape`: a wrong format, with a reward for the answer or the references. `shape_alone`: the right format,
    without a reward for either. `cites_many`: fewer than half of the cited numbers are right, but they earn a reward.
    `no_reasoning`: the analysis, or thought, has fewer than LEAST_WORDS words, or does not name a cited number.
    """
    parser, text = self.parser, episode.model_text
    terms = self.published(example, episode)
    pays = any(terms[name] != 0.0 for name in ("accuracy", "relevance") if name in terms)  # None: it may be
    shaped = terms["format"] == 1.0
    analysis = " ".join(forms.typed(parser.section(text, name) or "") for name in ("analysis", "think"))
    numbers = set(_NUMBER.findall(forms.typed(parser.section(text, "relevance") or "")))
    golds = set(map(str, self._golds(example)))
    reasons = len(parser.sections) == 1 or len(_WORD.findall(analysis)) >= LEAST_WORDS
    return dict(
      out_of_shape=pays and not shaped,
      shape_alone=shaped and not pays,
      cites_many=bool(terms.get("relevance")) and 2 * len(numbers & golds) < len(numbers),
      no_reasoning=shaped and not (reasons and numbers <= set(_NUMBER.findall(analysis))),
    )

  def measures(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The cited facts, alone and with the answer, as in HotpotQA's script (`core.metrics.qa`).

    None where the supporting passages are unknown.
    """
    golds = self._golds(example)
    if not golds:
      return dict.fromkeys(("fact_em", "fact_f1", "joint_em", "joint_f1"))
    text = episode.model_text
    facts = qa.set_overlap(self._cited(text) or (), golds)
    joint = qa.joint(qa.overlap(self.parser.answer(text) or "", example.golds, yes_no_rule=True), facts)
    return dict(fact_em=facts.exact, fact_f1=facts.f1, joint_em=joint.exact, joint_f1=joint.f1)
