"""Answer metrics: exact match, token F1 and coverage, each the maximum over the golds; agreement of two sets."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from ragrl_jax.core.text import tokens
from ragrl_jax.core.text.normalize import kept, normalize, normalize_all

UNITS = ("word", "char", "word_set")
YES_NO = frozenset(("yes", "no", "noanswer"))
Scorer = Callable[[str, Sequence[str]], float]


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Agreement of a named set with the gold set; each number in [0, 1], `exact` 0 or 1."""

  precision: float
  recall: float
  f1: float
  exact: float


def exact_match(prediction: str, golds: Sequence[str], *, style: str = "squad") -> float:
  """1 if the normalised prediction equals a normalised gold, else 0.

  Two texts that normalise to nothing ("?", "The.") match if what is left before that is the same (`normalize.kept`).
  The published scripts count any two of them as a match.

  Args:
    golds: right answers, any of them; a single string is one gold.
    style: see `normalize`.

  Source: SQuAD (arXiv 1606.05250) sec. 6.1.
  """
  golds, answer = _tuple(golds), normalize(prediction, style)
  if not answer:
    return float(_stated(prediction, golds, style))
  return float(prediction in golds or answer in normalize_all(golds, style))


def f1(
  prediction: str, golds: Sequence[str], *, style: str = "squad", unit: str = "word", yes_no_rule: bool = False
) -> float:
  """Harmonic mean of precision and recall over the units (words, for example) of prediction and gold.

  2 · overlap / (units of prediction + units of gold). Texts without a unit score as in `exact_match`.

  Args:
    prediction, golds, style: as for `exact_match`.
    unit: "word" (multiset), "char" (multiset of the normalised string's characters, spaces included) or "word_set".
    yes_no_rule: the score is 0 if one side is yes, no or noanswer and the other side differs.

  Raises:
    ValueError: the unit is not one of the three.

  Source: SQuAD sec. 6.1; the rule, HotpotQA's evaluation script; "char" with the style "filco", FilCo's; "word_set",
    CARE's reward.
  """
  return _best(prediction, _tuple(golds), style, unit, yes_no_rule)[0]


# F1 as in each published script, except for texts without a unit (see `f1`).
F1_OF: Mapping[str, Scorer] = dict(
  squad=f1,  # also MuSiQue's
  longbench=f1,  # qa_f1_score
  hotpotqa=functools.partial(f1, yes_no_rule=True),  # also 2WikiMultihopQA's and FlashRAG's
  spaced=functools.partial(f1, style="spaced"),  # ARENA's
  filco=functools.partial(f1, style="filco", unit="char"),
  word_set=functools.partial(f1, style="none", unit="word_set"),  # the reward of CARE's code
)


def overlap(
  prediction: str, golds: Sequence[str], *, style: str = "squad", unit: str = "word", yes_no_rule: bool = False
) -> Overlap:
  """Precision, recall, F1 and exact match against the gold with the highest F1, the first of several.

  Arguments, errors and rules are those of `f1`, whose value `f1` is. `exact` is 1 where the normalised texts are equal.
  """
  golds = _tuple(golds)
  best, place = _best(prediction, golds, style, unit, yes_no_rule)
  if not best:
    return Overlap(0.0, 0.0, 0.0, 0.0)
  if best == 1.0:
    return Overlap(1.0, 1.0, 1.0, exact_match(prediction, golds, style=style))
  predicted, gold = (len(_units(normalize(text, style), unit)) for text in (prediction, golds[place]))
  common = best * (predicted + gold) / 2
  return Overlap(common / predicted, common / gold, best, 0.0)


def set_overlap(named: Collection[Hashable], golds: Collection[Hashable]) -> Overlap:
  """Agreement of two sets of passages. Repeats count once. An empty set is right only if there are no golds."""
  ours, theirs = set(named), set(golds)
  if not ours and not theirs:
    return Overlap(1.0, 1.0, 1.0, 1.0)
  common = len(ours & theirs)
  return Overlap(
    common / len(ours) if ours else 0.0,
    common / len(theirs) if theirs else 0.0,
    2.0 * common / (len(ours) + len(theirs)),
    float(ours == theirs),
  )


def joint(answer: Overlap, facts: Overlap) -> Overlap:
  """HotpotQA's joint metrics of an answer (`overlap`) and its supporting facts (`set_overlap`).

  Precision, recall and exact match are products; F1 is of this precision and recall. HotpotQA's answers have the yes/no
  rule, and its facts are (title, sentence) pairs; passages make it the same metric by passage.

  Source: HotpotQA (arXiv 1809.09600) sec. 5.2, and its evaluation script.
  """
  precision, recall = answer.precision * facts.precision, answer.recall * facts.recall
  f1 = 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0
  return Overlap(precision, recall, f1, answer.exact * facts.exact)


def cover_em(prediction: str, golds: Sequence[str], *, style: str = "squad") -> float:
  """1 if a normalised gold is a substring of the normalised prediction, else 0. Also called accuracy and sub-EM.

  A gold that normalises to nothing ("The") is searched as whole words in its own case.
  """
  golds, text = _tuple(golds), normalize(prediction, style)
  normal = normalize_all(golds, style)
  if text and (prediction in golds or any(form and form in text for form in normal)):
    return 1.0
  wordless = [tokens.joined(gold, cased=True) for gold, form in zip(golds, normal) if not form]
  if wordless and tokens.holds(tokens.joined(prediction, cased=True), wordless):
    return 1.0
  return float(not text and _stated(prediction, golds, style))


def has_answer(text: str, golds: Sequence[str]) -> bool:
  """Whether the text holds a gold, by DPR's rule: the gold's tokens (`tokens.joined`), one after the other.

  "in Paris." holds "Paris", "comparison" does not. DPR's script searches a passage's text, not its title.

  Source: DPR's evaluation (arXiv 2004.04906), by which a retrieved passage is a positive one.
  """
  return tokens.holds(tokens.joined(text), _all_joined(_tuple(golds)))


def searchable(golds: Sequence[str]) -> bool:
  """Whether passages can be searched for the golds: not for yes or no, which say nothing without the question."""
  return YES_NO.isdisjoint(normalize_all(_tuple(golds), "squad"))


@functools.lru_cache(maxsize=64)  # the golds of a question, for each of its passages
def _all_joined(golds: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(map(tokens.joined, golds))


# How a gold is looked for in a longer text: as whole words, or as letters, also inside words (sub-EM).
CONTAINS: Mapping[str, Callable[[str, Sequence[str]], bool | float]] = dict(words=has_answer, letters=cover_em)


def _tuple(golds: Sequence[str]) -> tuple[str, ...]:
  return (golds,) if isinstance(golds, str) else golds if isinstance(golds, tuple) else tuple(golds)


def _stated(prediction: str, golds: tuple[str, ...], style: str) -> bool:
  """Whether the prediction, which normalises to nothing, equals a gold that does, in what is left before that."""
  answer = kept(prediction, style)
  return bool(answer) and any(answer == kept(gold, style) and not normalize(gold, style) for gold in golds)


@functools.lru_cache(maxsize=64)  # F1 and `overlap` of one answer
def _best(prediction: str, golds: tuple[str, ...], style: str, unit: str, yes_no_rule: bool) -> tuple[float, int]:
  """(highest F1, position of its gold); (0, 0) without any. See `f1`."""
  if unit not in UNITS:
    raise ValueError(f"unit={unit!r}: F1 counts 'word', 'char' or 'word_set'.")
  answer = normalize(prediction, style)
  if not answer:
    return float(_stated(prediction, golds, style)), 0
  if prediction in golds:  # before any gold is normalised
    return 1.0, golds.index(prediction)
  normal = normalize_all(golds, style)
  if answer in normal:
    return 1.0, normal.index(answer)
  score, best, place = _scorer(answer, unit), 0.0, 0
  for number, gold in enumerate(normal):
    if yes_no_rule and (answer in YES_NO or gold in YES_NO):
      continue
    if gold and (value := score(gold, best)) > best:
      best, place = value, number
  return best, place


def _units(text: str, unit: str) -> Sequence[str] | frozenset[str]:
  return text if unit == "char" else frozenset(text.split()) if unit == "word_set" else text.split()


def _scorer(answer: str, unit: str) -> Callable[[str, float], float]:
  """(normalised gold, best so far) → F1, or 0 where it cannot be better than that.

  The prediction's units are counted once, whatever the number of golds.
  """
  if unit == "word_set":
    answer_words = frozenset(answer.split())

    def of_sets(gold: str, best: float) -> float:
      gold_words = frozenset(gold.split())
      common = len(answer_words & gold_words)
      return 2.0 * common / (len(answer_words) + len(gold_words)) if common else 0.0

    return of_sets
  if unit == "char":

    def of_characters(gold: str, best: float) -> float:
      shorter, rest = (answer, gold) if len(answer) < len(gold) else (gold, answer)
      length, size_sum = len(rest), len(answer) + len(gold)
      if 2 * len(shorter) <= best * size_sum:  # no more characters are shared than the shorter text has
        return 0.0
      for letter in shorter:
        rest = rest.replace(letter, "", 1)
      return 2.0 * (length - len(rest)) / size_sum

    return of_characters
  units = answer.split()
  size, counts, distinct = len(units), tuple(collections.Counter(units).items()), frozenset(units)

  def of_words(gold: str, best: float) -> float:
    gold_words = gold.split()
    size_sum = size + len(gold_words)
    # Most golds share no word with the answer, and none shares more than the shorter text has.
    if 2 * min(size, len(gold_words)) <= best * size_sum or distinct.isdisjoint(gold_words):
      return 0.0
    overlap = 0
    for word, count in counts:
      occurrences = gold_words.count(word)
      overlap += occurrences if occurrences < count else count
    return 2.0 * overlap / size_sum

  return of_words
