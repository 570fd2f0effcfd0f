"""Answer metrics: exact match, token F1 and coverage, each the maximum over the golds."""

import collections
from collections.abc import Sequence

from ragrl_jax.core.text.normalize import normalize

UNITS = ("word", "char", "word_set")
_YES_NO = frozenset(("yes", "no", "noanswer"))


def exact_match(prediction: str, golds: Sequence[str], *, style: str = "squad") -> float:
  """1 if the normalised prediction equals a normalised gold, else 0.

  If both normalise to the empty text ("?" and "the"), they match only if they were the same, non-empty text. The
  published scripts always count such a pair as a match.

  Args:
    prediction: the answer.
    golds: right answers, any of them; a single string is one gold.
    style: see `normalize`.

  Source: SQuAD (arXiv 1606.05250) sec. 6.1.
  """
  return max((_equal(prediction, gold, style) for gold in _listed(golds)), default=0.0)


def f1(
  prediction: str, golds: Sequence[str], *, style: str = "squad", unit: str = "word", yes_no_rule: bool = False
) -> float:
  """Harmonic mean of precision and recall over the units (words, for example) of prediction and gold.

  2 · overlap / (units of prediction + units of gold). Texts without a unit score as in `exact_match`.

  Args:
    prediction: the answer.
    golds: right answers, any of them; a single string is one gold.
    style: see `normalize`.
    unit: "word" (multiset), "char" (multiset of the normalised string's characters, spaces included) or "word_set".
    yes_no_rule: the score is 0 if one side is yes, no or noanswer and the other side differs.

  Raises:
    ValueError: a unit that is none of the three.

  Source: SQuAD sec. 6.1; the rule, HotpotQA's evaluation script; "char", FilCo's; "word_set", CARE's reward.
  """
  if unit not in UNITS:
    raise ValueError(f"unit={unit!r}: F1 counts 'word', 'char' or 'word_set'.")
  return max((_f1(prediction, gold, style, unit, yes_no_rule) for gold in _listed(golds)), default=0.0)


def cover_em(prediction: str, golds: Sequence[str], *, style: str = "squad") -> float:
  """1 if a normalised gold is a substring of the normalised prediction, else 0. Also called accuracy and sub-EM.

  A gold that normalises to the empty text is in no prediction, with the one exception of `exact_match`.
  """
  text = normalize(prediction, style)
  return max((_covered(prediction, text, gold, style) for gold in _listed(golds)), default=0.0)


def _listed(golds: Sequence[str]) -> Sequence[str]:
  return (golds,) if isinstance(golds, str) else golds


def _equal(prediction: str, gold: str, style: str) -> float:
  ours, theirs = normalize(prediction, style), normalize(gold, style)
  if not ours and not theirs:
    ours, theirs = prediction.strip().lower(), gold.strip().lower()
  return float(bool(ours) and ours == theirs)


def _covered(prediction: str, text: str, gold: str, style: str) -> float:
  wanted = normalize(gold, style)
  return float(wanted in text) if wanted else _equal(prediction, gold, style)


def _f1(prediction: str, gold: str, style: str, unit: str, yes_no_rule: bool) -> float:
  ours, theirs = normalize(prediction, style), normalize(gold, style)
  if yes_no_rule and ours != theirs and (ours in _YES_NO or theirs in _YES_NO):
    return 0.0
  if unit == "char":
    left, right = collections.Counter(ours), collections.Counter(theirs)
  else:
    left, right = collections.Counter(ours.split()), collections.Counter(theirs.split())
  if unit == "word_set":
    left, right = collections.Counter(set(left)), collections.Counter(set(right))
  if not left or not right:
    return _equal(prediction, gold, style)
  overlap = (left & right).total()
  return 2.0 * overlap / (left.total() + right.total())
