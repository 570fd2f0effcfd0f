"""The measures of the papers' tables: a row of predictions.jsonl → its score, in the style of each paper."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa

Row = Mapping[str, Any]

# Term → the kinds of the two judges that VERITAS's Table 1 compares, and the kind that its other tables use.
COMPARED = dict(information_think=("llm", "reward_model"), think_search=("llm", "nli"), think_answer=("sub_em", "nli"))
AUTOMATIC = dict(information_think="reward_model", think_search="nli", think_answer="sub_em")


@dataclasses.dataclass(frozen=True)
class Measure:
  """A measure of answers.

  Attributes:
    label: the column's second heading.
    style: a description of how it is scored.
    of: row of predictions → score, or None if it is unknown; None for a measure with `whole` or `pooled`.
    whole: name in metrics.json, or a quotient NAME/NAME, for a measure that is not a mean over questions.
    pooled: a term whose verdicts are pooled over the pairs of all questions (`Recipe.pooled`).
    judged: whether it needs a judge's verdicts, from the run or from `ragrl judge`.
    share: whether the value is between 0 and 1, so that a table may print it times 100.
    steps: the judges of `commands_of.JUDGES` whose verdicts on the steps of transcripts it needs.
  """

  label: str
  style: str
  of: Callable[[Row], float | None] | None = None
  whole: str = ""
  judged: bool = False
  share: bool = True
  pooled: str = ""
  steps: tuple[str, ...] = ()

  def of_whole(self, metrics: Mapping[str, Any]) -> float | None:
    """The value of a measure with `whole`; None if metrics.json lacks it."""
    value, per = (metrics.get(name) if name else 1.0 for name in self.whole.partition("/")[::2])
    return value / per if value is not None and per else None

  def scores(self, rows: Sequence[Row]) -> list[float | None]:
    """The scores of a set's questions, whose mean is the measure; None if a score is unknown.

    A pooled measure is m = Σ sums / Σ numbers. A question with the sum s of n verdicts has the score m + (s - m n) / n̄,
    where n̄ is the mean of n: the mean of these scores is m, and their spread is that of the ratio to first order. So a
    question without a pair changes nothing.
    """
    if self.pooled:
      pairs = [(row.get("pooled") or {}).get(self.pooled, (0.0, 0)) for row in rows]
      number = sum(count for _, count in pairs)
      mean = sum(value for value, _ in pairs) / number if number else 0.0
      return [mean + (value - mean * count) * len(pairs) / number if number else None for value, count in pairs]
    assert self.of is not None
    return [self.of(row) for row in rows]


def _answer(metric: Callable[..., float], **style: Any) -> Callable[[Row], float]:
  scored = functools.partial(metric, **style)
  return lambda row: 0.0 if row["prediction"] is None else scored(row["prediction"], row["golds"])


def _column(name: str) -> Callable[[Row], float | None]:
  return lambda row: row.get(name)


def _term(name: str) -> Callable[[Row], float | None]:
  return lambda row: row["terms"].get(name)


def _judged(other: Callable[[Row], float | None]) -> Callable[[Row], float | None]:
  """The verdict of `ragrl judge`, or else of the run's judge."""
  return lambda row: row["judged"] if "judged" in row else other(row)


def _accuracy(row: Row) -> float | None:
  """ARENA's term `accuracy`; for other recipes, the outcome."""
  return row["terms"]["accuracy"] if "accuracy" in row["terms"] else row["outcome"]


def _consistent(row: Row) -> float:
  return float(row["prediction"] in row["golds"])


def _compression(row: Row) -> float | None:
  row = row.get("extraction") or row  # of the evidence that was read
  return row["passage_tokens"] / row["evidence_tokens"] if row.get("evidence_tokens") else None


def _compared() -> dict[str, Measure]:
  """TERM/KIND, TERM_agreement and TERM_kappa of the judges of `COMPARED` (`step_verdicts`)."""
  found = {}
  for term, kinds in COMPARED.items():
    by = {kind: "automatic" if kind == AUTOMATIC[term] else kind for kind in kinds}
    for kind, judge in by.items():
      style = f"verdicts of {kind}, mean over the pairs of all questions"
      found[f"{term}/{kind}"] = Measure("", style, pooled=f"{term}/{kind}", steps=(judge,))
    for name, what in (("agreement", "share of equal verdicts"), ("kappa", "Fleiss's kappa")):
      style = f"{what} of {' and '.join(kinds)}, over the distinct pairs"
      found[f"{term}_{name}"] = Measure("", style, whole=f"{term}_{name}", steps=tuple(by.values()))
  return found


_SQUAD = "SQuAD's normalisation"
_SPACED = "punctuation becomes a space (ARENA's code)"
MEASURES: Mapping[str, Measure] = {
  "em": Measure("EM", f"exact match, {_SQUAD}", _answer(qa.exact_match)),
  "f1": Measure("F1", f"F1 of words, {_SQUAD}", _answer(qa.f1)),
  "cover_em": Measure("contains", f"a gold is in the answer, {_SQUAD}", _answer(qa.cover_em)),
  "em_spaced": Measure("EM", f"exact match, {_SPACED}", _answer(qa.exact_match, style="spaced")),
  "f1_spaced": Measure("F1", f"F1 of words, {_SPACED}", _answer(qa.f1, style="spaced")),
  "f1_char": Measure("F1", "F1 of characters, punctuation stays (FilCo's code)", _answer(qa.F1_OF["filco"])),
  "judged": Measure("judge", "the judge's verdict on the answer", _judged(_column("outcome")), judged=True),
  "accuracy": Measure("judge", "the judge's verdict on the answer", _judged(_accuracy), judged=True),
  "searches": Measure("RC", "executed searches", _column("num_searches"), share=False),
  "tokens": Measure("tokens", "tokens that the model wrote", _column("response_tokens"), share=False),
  "format": Measure("format", "share of replies in the recipe's format", _term("format")),
  "relevance": Measure("relevance", "the term relevance: cited references against the gold ones", _term("relevance")),
  "information_think": Measure(
    "Info-Think", "verdicts on (results, thought), mean over the pairs of all questions", pooled="information_think",
    steps=("automatic",),
  ),
  "think_search": Measure(
    "Think-Search", "verdicts on (thought, query), mean over the pairs of all questions", pooled="think_search",
    steps=("automatic",),
  ),
  "think_answer": Measure(
    "Think-Ans", "Sub-EM of (thought, answer), or the judge's verdict, mean over the pairs of all questions",
    pooled="think_answer", steps=("automatic",),
  ),
  "answer_recall": Measure("AR", "share of evidence that holds a gold answer", _column("answer_recall")),
  "reason_recall": Measure(
    "AR", "share of rationales that hold a gold answer", lambda row: (row.get("measures") or {}).get("reason_recall")
  ),
  "recall": Measure("Recall", "share of questions with a gold among the first passages", _term("recall")),
  "ndcg": Measure("NDCG", "nDCG of the first passages, relevant if they hold a gold", _term("ndcg")),
  "compression": Measure("CR", "passage tokens per evidence token, mean over questions", _compression, share=False),
  "evidence_bleu": Measure("BLEU", "sacreBLEU of the evidence, 0 to 100", whole="evidence_bleu", share=False),
  "evidence_rouge_l": Measure("ROUGE-L", "ROUGE-L F1 of the evidence", whole="evidence_rouge_l"),
  "pace": Measure(
    "seconds", "seconds a question, of all questions together", whole="seconds/seconds_cover", share=False
  ),
  "consistency": Measure("", "share of pairs on which the judge says what the label says", _consistent),
  "judge_kappa": Measure("", "Cohen's kappa of the judge and the labels", whole="kappa", share=False),
  **_compared(),
}  # fmt: skip
