"""Judges that compare words and need no model."""

import functools
from collections.abc import Sequence
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import faithful
from ragrl_jax.core.text import forms, tokens
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.judging import judge_api
from ragrl_jax.parallel import imports


@functools.cache
def _stop_words() -> frozenset[str]:
  words = imports.without_jax("bm25s.stopwords").STOPWORDS_EN_PLUS
  return frozenset(normalize(word, "squad") for word in words)


class Exact(judge_api.OfPairs):
  """1 if the claim equals one of the premise's right answers (`judge_api.references`), after SQuAD's normalisation."""

  def describe(self) -> dict[str, Any]:
    return dict(kind="exact")

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    return [qa.exact_match(claim, judge_api.golds(premise)) for premise, claim in pairs]


class SubEM(judge_api.OfPairs):
  """1 if the premise contains the claim, after SQuAD's normalisation: VERITAS's measure of (thought, answer).

  Args:
    words: only whole words count, see `faithful.states`.
  """

  def __init__(self, *, words: bool = False):
    self._words = words

  def describe(self) -> dict[str, Any]:
    return dict(kind="sub_em_words" if self._words else "sub_em")

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    return [faithful.states(*pair, words=self._words) for pair in pairs]


class ExactFirst(judge_api.Judge):
  """Gives exact matches 1, and asks another judge about all other answers."""

  def __init__(self, judge: judge_api.Judge):
    self._judge, self.pace = judge, judge.pace

  def describe(self) -> dict[str, Any]:
    return dict(self._judge.describe(), exact_first=True)

  def judge(self, pairs: Sequence[judge_api.Pair]) -> judge_api.Verdicts:
    verdicts: judge_api.Verdicts = list(Exact().judge(pairs))
    rest = [i for i, verdict in enumerate(verdicts) if not verdict]
    try:
      asked = self._judge.judge([pairs[i] for i in rest]) if rest else ()
    except judge_api.JudgeFailed as error:
      error.answered |= {pair: verdict for pair, verdict in zip(judge_api.checked(pairs), verdicts) if verdict}
      raise
    for i, verdict in zip(rest, asked, strict=True):
      verdicts[i] = verdict
    return verdicts


class Lexical(judge_api.OfPairs):
  """The share of the claim's words that also occur in the premise: a cheap substitute for a judge of faithfulness.

  It counts distinct words of `forms.typed`, after SQuAD's normalisation and without English stop words; in scripts
  without spaces each sign is a word. A claim of stop words only scores 0.
  A copy of the premise scores 1, so evaluate with another judge than the one that gave the rewards.

  Args:
    threshold: see `judge_api.graded`.
  """

  def __init__(self, threshold: float = 0.5):
    self._threshold = float(threshold)

  def describe(self) -> dict[str, Any]:
    return dict(kind="lexical", threshold=self._threshold)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    return [judge_api.graded(overlap(*pair), self._threshold) for pair in pairs]


def overlap(premise: str, claim: str) -> float:
  """The share of the claim's distinct content words that are in the premise; 0 if it has none."""
  words = _words(claim)
  return len(words & _words(premise)) / len(words) if words else 0.0


def _words(text: str) -> set[str]:
  return set(tokens.spaced(normalize(forms.typed(text), "squad")).split()) - _stop_words()
