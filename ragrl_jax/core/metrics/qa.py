"""Answer metrics: exact match, token F1 and coverage, each the maximum over the golds."""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence

from ragrl_jax.core.metrics import evidence
from ragrl_jax.core.text.normalize import normalize

UNITS = ("word", "char", "word_set")
YES_NO = frozenset(("yes", "no", "noanswer"))
Scorer = Callable[[str, Sequence[str]], float]


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
  ours = normalize(prediction, style)
  if not ours:
    return float(any(not normalize(gold, style) and _same(prediction, gold) for gold in _listed(golds)))
  return float(any(ours == normalize(gold, style) for gold in _listed(golds)))


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

  Source: SQuAD sec. 6.1; the rule, HotpotQA's evaluation script; "char" with the style "filco", FilCo's; "word_set",
    CARE's reward.
  """
  if unit not in UNITS:
    raise ValueError(f"unit={unit!r}: F1 counts 'word', 'char' or 'word_set'.")
  ours = normalize(prediction, style)
  score, best = _scorer(ours, unit), 0.0
  for gold in _listed(golds):
    theirs = normalize(gold, style)
    if yes_no_rule and ours != theirs and (ours in YES_NO or theirs in YES_NO):
      continue
    if ours and ours == theirs or not ours and not theirs and _same(prediction, gold):
      return 1.0
    if ours and theirs and (found := score(theirs, best)) > best:
      best = found
  return best


# F1 as each published script counts it. Texts without a unit differ: `f1` says how they score here.
F1_OF: Mapping[str, Scorer] = dict(
  squad=f1,  # also FlashRAG's and MuSiQue's
  longbench=f1,  # qa_f1_score
  hotpotqa=functools.partial(f1, yes_no_rule=True),  # also 2WikiMultihopQA's
  arena=functools.partial(f1, style="spaced"),
  filco=functools.partial(f1, style="filco", unit="char"),
  care_reward=functools.partial(f1, style="none", unit="word_set"),
)


def overlap(
  prediction: str, golds: Sequence[str], *, style: str = "squad", unit: str = "word", yes_no_rule: bool = False
) -> evidence.Overlap:
  """Precision, recall, F1 and exact match against the gold with the highest F1, the first of several.

  Arguments, errors and rules are those of `f1`, whose value `f1` is. `exact` is 1 where the normalised texts are equal.
  """
  score = functools.partial(f1, prediction, style=style, unit=unit, yes_no_rule=yes_no_rule)
  if not (best := score(golds)):
    return evidence.Overlap(0.0, 0.0, 0.0, 0.0)
  if best == 1.0:
    return evidence.Overlap(1.0, 1.0, 1.0, exact_match(prediction, golds, style=style))
  gold = next(gold for gold in _listed(golds) if score((gold,)) == best)
  ours, theirs = (len(_units(normalize(text, style), unit)) for text in (prediction, gold))
  common = best * (ours + theirs) / 2
  return evidence.Overlap(common / ours, common / theirs, best, 0.0)


def cover_em(prediction: str, golds: Sequence[str], *, style: str = "squad") -> float:
  """1 if a normalised gold is a substring of the normalised prediction, else 0. Also called accuracy and sub-EM.

  A gold that normalises to the empty text is in no prediction, with the one exception of `exact_match`.
  """
  text = normalize(prediction, style)
  for gold in _listed(golds):
    wanted = normalize(gold, style)
    if wanted in text if wanted else not text and _same(prediction, gold):
      return 1.0
  return 0.0


def has_answer(text: str, golds: Sequence[str]) -> bool:
  """Whether the text holds a gold as whole words, both normalised: "Paris" stands in "in Paris.", not in "comparison".

  Source: DPR's evaluation (arXiv 2004.04906), by which a retrieved passage is a positive one.
  """
  words = f" {normalize(text, 'squad')} "
  return any(f" {wanted} " in words for gold in _listed(golds) if (wanted := normalize(gold, "squad")))


def _listed(golds: Sequence[str]) -> Sequence[str]:
  return (golds,) if isinstance(golds, str) else golds


def _same(prediction: str, gold: str) -> bool:
  """Whether two texts of which nothing is left by normalising were one and the same, and not empty."""
  said = prediction.strip().lower()
  return bool(said) and said == gold.strip().lower()


def _units(text: str, unit: str) -> Sequence[str] | frozenset[str]:
  return text if unit == "char" else frozenset(text.split()) if unit == "word_set" else text.split()


def _scorer(ours: str, unit: str) -> Callable[[str, float], float]:
  """(normalised gold, best so far) → F1, or 0 where it cannot be better than that.

  The prediction's units are counted once, whatever the number of golds.
  """
  if unit == "word_set":
    named = frozenset(ours.split())

    def of_sets(theirs: str, best: float) -> float:
      others = frozenset(theirs.split())
      common = len(named & others)
      return 2.0 * common / (len(named) + len(others)) if common else 0.0

    return of_sets
  units = ours if unit == "char" else ours.split()
  size, counts = len(units), tuple(collections.Counter(units).items())
  known = frozenset(units)

  def of_counts(theirs: str, best: float) -> float:
    others = theirs if unit == "char" else theirs.split()
    length = len(others)
    # Most golds share no word with the answer, and none shares more units than the shorter text has.
    if 2 * min(size, length) <= best * (size + length) or known.isdisjoint(others):
      return 0.0
    overlap = 0
    for one, count in counts:
      there = others.count(one)
      overlap += there if there < count else count
    return 2.0 * overlap / (size + length)

  return of_counts
