"""The measures of the papers' tables: a row of predictions.jsonl → its score, in the style of each paper."""

import dataclasses
import functools
import pathlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa

Row = Mapping[str, Any]


def _compression(row: Row) -> float | None:
  row = row.get("extraction") or row  # of the evidence that was read
  return row["passage_tokens"] / row["evidence_tokens"] if row.get("evidence_tokens") else None


def _answer(metric: Callable[..., float], **style: Any) -> Callable[[Row], float]:
  return lambda row: 0.0 if row["prediction"] is None else metric(row["prediction"], row["golds"], **style)


# Measures that are computed from an answer and its golds, and those that no name in a row has.
_COMPUTED: Mapping[str, Callable[[Row], float | None]] = {
  "em": _answer(qa.exact_match),
  "f1": _answer(qa.f1),
  "cover_em": _answer(qa.cover_em),
  "em_spaced": _answer(qa.exact_match, style="spaced"),
  "f1_spaced": _answer(qa.f1, style="spaced"),
  "f1_char": _answer(qa.F1_OF["filco"]),
  "consistency": _answer(lambda prediction, golds: float(prediction in golds)),
  "compression": _compression,
}


@dataclasses.dataclass(frozen=True)
class Measure:
  """A measure of answers. One without `of`, `whole` and `pooled` is computed here."""

  name: str  # in measures.toml
  style: str  # how it is scored, in words
  label: str = ""  # the column's second heading
  of: Sequence[str] = ()  # names in a row, with points within mappings; the first that it has is the score
  whole: str = ""  # name in metrics.json, or a quotient NAME/NAME, if the measure is not a mean over questions
  pooled: str = ""  # a term whose verdicts are pooled over the pairs of all questions (`Recipe.pooled`)
  judged: bool = False  # needs a judge's verdicts, from the run or from `ragrl judge`
  share: bool = True  # the value is between 0 and 1, so that a table may print it times 100
  steps: Sequence[str] = ()  # the judges of JUDGES whose verdicts on the steps of transcripts it needs

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
    if not self.pooled:
      return [self._named(row) if self.of else _COMPUTED[self.name](row) for row in rows]
    pairs = [(row.get("pooled") or {}).get(self.pooled, (0.0, 0)) for row in rows]
    number = sum(count for _, count in pairs)
    mean = sum(value for value, _ in pairs) / number if number else 0.0
    return [mean + (value - mean * count) * len(pairs) / number if number else None for value, count in pairs]

  def _named(self, row: Row) -> float | None:
    for name in self.of:
      *within, last = name.split(".")
      inner = functools.reduce(lambda outer, key: outer.get(key) or {}, within, row)
      if last in inner:
        return inner[last]
    return None


_FILE = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MEASURES: Mapping[str, Measure] = {name: Measure(name, **of) for name, of in _FILE["measures"].items()}
STEPS: Mapping[str, Any] = _FILE["steps"]  # the judges of steps, as in `step_verdicts.joined`
# Judge of the steps of transcripts → its flags of `ragrl faithfulness`.
JUDGES: Mapping[str, str] = _FILE["judges"]
FOLDERS: Mapping[str, str] = _FILE["folders"]  # those in the printed commands
