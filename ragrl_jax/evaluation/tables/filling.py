"""Fills a paper's table with evaluations: means, intervals, paired tests, and the commands for empty cells."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation.tables import commands_of, matching, results
from ragrl_jax.evaluation.tables.layout import Column, Paper, Row, Table
from ragrl_jax.evaluation.tables.measures import MEASURES
from ragrl_jax.evaluation.tables.results import Evaluation

Scores = dict[str, dict[str, float]]  # data set → `results.question` → score


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell of a filled table.

  Attributes:
    published: the printed number; None if there is none.
    value: our number, in the table's scale; None without a run.
    low, high: the 95 % bootstrap interval over questions, in the same scale; None for an average and a whole measure.
    n: number of questions in the mean; for an average, of sets.
    p: p-value of the paired test against the row `against`; None without a test.
    adjusted: this p-value, adjusted by Holm's method for all tests of the table.
    deviation: standard deviation of the means of several runs (seeds) of one data set, with n - 1, in the same scale;
      None for one run.
    paired: number of pairs in the test: questions, or for an average sets.
    evaluations: the evaluations behind the value.
    command: the command that fills an empty cell.
    why_not: the reason for an empty cell in a row with an evaluation.
  """

  published: str | None
  value: float | None = None
  low: float | None = None
  high: float | None = None
  n: int = 0
  p: float | None = None
  adjusted: float | None = None
  deviation: float | None = None
  paired: int = 0
  evaluations: tuple[Evaluation, ...] = ()
  command: str = ""
  why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Filled:
  """A table with its cells, row by row."""

  table: Table
  cells: tuple[tuple[Cell, ...], ...]

  def each(self) -> list[tuple[Row, Column, Cell]]:
    """Every cell with its row and column, row by row."""
    return [(row, *one) for row, cells in zip(self.table.rows, self.cells) for one in zip(self.table.columns, cells)]


@dataclasses.dataclass(frozen=True)
class _Given:
  """What is given for a cell: evaluations of the row's run, of its second run, and the scores of the questions.

  Several evaluations (seeds) have the mean of a question's scores, and the deviation of their means.
  """

  first: Sequence[Evaluation]
  second: Sequence[Evaluation] = ()
  scores: Scores = dataclasses.field(default_factory=dict)
  deviation: float | None = None


def fill(paper: Paper, evaluations: Sequence[Evaluation], *, any_model: bool = False) -> list[Filled]:
  """Fills every table of the paper.

  Several evaluations of one cell (seeds) count as one: the score of a question is their mean. Equal answers of the same
  weights are no seeds: the first evaluation counts.

  Args:
    paper: the tables.
    evaluations: in any order.
    any_model: a run of another model may fill a row. If rows differ only in the model, it fills the first one.

  Raises:
    ValueError: an evaluation fills no row of this paper, or evaluations of one cell have different questions.
  """
  evaluations = results.linked(evaluations)
  used = {id(one.facts.get("reads")) for one in evaluations}
  filled = []
  for table in paper.tables:
    of_row = matching.assigned(table, evaluations, any_model)
    given = {row.name: [_given(column, row, of_row) for column in table.of_row(row)] for row in table.rows}
    cells = []
    for row in table.rows:
      bases = [base.scores for base in given[row.against]] if row.against else [{}] * len(table.columns)
      parts = zip(table.of_row(row), row.published, given[row.name], bases, strict=True)
      cells.append([_cell(paper, row, column, printed, its, base, table.scale) for column, printed, its, base in parts])
    adjusted = iter(stats.holm([cell.p for line in cells for cell in line if cell.p is not None]))
    with_p = [
      tuple(cell if cell.p is None else dataclasses.replace(cell, adjusted=next(adjusted)) for cell in line)
      for line in cells
    ]
    filled.append(Filled(table, tuple(with_p)))
    every = [one for evaluations in of_row.values() for one in evaluations]
    used |= {id(one.facts) for column in table.columns for one in matching.of_column(column, every)}
  for one in evaluations:
    if id(one.facts) not in used:
      raise ValueError(f"--runs={one.folder}: {matching.foreign(paper, one, any_model)}")
  return filled


# ---- scores ----------------------------------------------------------------------------------------------------------


def _given(column: Column, row: Row, of_row: Mapping[str, Sequence[Evaluation]]) -> _Given:
  first = matching.of_column(column, of_row[row.name])
  if MEASURES[column.measure].whole:
    return _Given(first)
  scores, deviation = _means(column, first := _distinct(first))
  if column.both is None:
    return _Given(first, (), scores, deviation)
  second = _distinct(matching.of_column(column, of_row[row.name + matching.VERSUS]))
  other, _ = _means(column, second)
  both = {}
  for name in scores.keys() & other.keys():
    mine, its = scores[name], other[name]
    shared = mine.keys() & its.keys()
    both[name] = {key: float((mine[key] >= 0.5, its[key] >= 0.5) == column.both) for key in shared}
  return _Given(first, second, both)


def _distinct(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations, of which those with equal answers of the same weights count once.

  A row may need such a pair: one of them also measures its evidence.
  """
  answers = lambda one: {(row["source"], results.question(row)): row["prediction"] for row in one.rows}
  of = lambda one: ({**one.facts, "evidence": None}, answers(one))
  distinct: list[Evaluation] = []
  for one in evaluations:
    if not (one.facts.get("checkpoint") and any(of(one) == of(other) for other in distinct)):
      distinct.append(one)
  return distinct


def _means(column: Column, evaluations: Sequence[Evaluation]) -> tuple[Scores, float | None]:
  """(the mean of each question's scores over the evaluations, the deviation of the evaluations' means).

  There are no scores unless every set has some. A question whose value is unknown in one evaluation (it failed, or the
  judge gave no verdict) has the mean of the others. An average and a single evaluation have no deviation.
  """
  measure, scores, means = MEASURES[column.measure], {}, []
  for name in column.sets:
    runs, asked = [], []
    for one in evaluations:
      rows = one.sets.get(name, [])
      values = {results.question(row): value for row, value in zip(rows, measure.scores(rows)) if value is not None}
      if values:
        runs.append(values)
        asked.append({results.question(row) for row in one.asked[name]})
    if not runs:
      return {}, None
    if any(questions != asked[0] for questions in asked):
      numbers = ", ".join(str(len(questions)) for questions in asked)
      raise ValueError(
        f"several runs fill a cell of {name} ({numbers} questions), but they have different questions: give runs of "
        "one set of questions."
      )
    known = {key: [run[key] for run in runs if key in run] for key in dict.fromkeys(key for run in runs for key in run)}
    scores[name] = {key: sum(values) / len(values) for key, values in known.items()}
    means = [statistics.fmean(run.values()) for run in runs]
  return scores, None if column.average or len(means) < 2 else statistics.stdev(means)


def _of_sets(scores: Scores, column: Column) -> list[float]:
  """The mean of each set's questions."""
  return [sum(scores[name].values()) / len(scores[name]) for name in column.sets]


def _tested(mine: Scores, base: Scores, column: Column) -> tuple[float | None, int]:
  """(p, number of pairs) of the two-sided paired test: by question, and for an average by set."""
  if base and column.average:
    return stats.wilcoxon(_of_sets(mine, column), _of_sets(base, column))[1], len(column.sets)
  pairs = [(mine[name][key], of[key]) for name, of in base.items() for key in sorted(mine[name].keys() & of.keys())]
  return (stats.paired_permutation(*zip(*pairs))[1], len(pairs)) if pairs else (None, 0)


# ---- cells -----------------------------------------------------------------------------------------------------------


def _cell(
  paper: Paper, row: Row, column: Column, printed: str | None, given: _Given, base: Scores, scale: float
) -> Cell:
  measure, mine = MEASURES[column.measure], given.scores
  scale = scale if measure.share else 1.0
  known = [(one, measure.of_whole(one.metrics)) for one in given.first] if measure.whole else []
  wholes = [(one, value) for one, value in known if value is not None]
  if len(wholes) == 1 and len(wholes[0][0].sets) == 1:  # a measure of a whole evaluation is of one data set
    ((one, value),) = wholes
    bounds = one.metrics.get(f"{measure.whole}_interval") or ()
    number = one.metrics.get(f"{measure.whole}_pairs", one.metrics["n"])
    return Cell(printed, value * scale, *(scale * bound for bound in bounds), n=number, evaluations=(one,))
  if not any(mine.values()):
    return Cell(printed, **_empty(paper, row, column, given))
  p, paired = _tested(mine, base, column)
  tested = dict(p=p, paired=paired, evaluations=(*given.first, *given.second))
  if column.average:
    means = _of_sets(mine, column)
    return Cell(printed, scale * sum(means) / len(means), n=len(means), **tested)
  ((_, of_set),) = mine.items()
  values = [of_set[key] for key in sorted(of_set)]
  low, high = (scale * bound for bound in stats.bootstrap_interval(values, seed=0))
  deviation = None if given.deviation is None else scale * given.deviation
  return Cell(printed, scale * sum(values) / len(values), low, high, len(values), deviation=deviation, **tested)


def _empty(paper: Paper, row: Row, column: Column, given: _Given) -> dict[str, str]:
  """Why a cell has no value of ours, or the command that fills it."""
  half = bool(given.first and column.both and not given.second)  # the row's own run is there, the second one is not
  run, here, measure = row.versus if half else row.run, () if half else given.first, MEASURES[column.measure]
  if column.average or run is None:
    return {}
  if measure.judged and run.system:
    config = "when_to_search" if paper.name == "when_to_search" else "arena:judge"  # each paper's own question
    return dict(why_not=f"it needs a judge: `ragrl judge --config={config} --config.judge.model=NAME --results FOLDER`")
  if not here or run.system and measure.steps:
    return dict(command=commands_of.evaluation(paper, column, run))
  if len(here) > 1 and measure.whole:
    return dict(why_not=f"{len(here)} runs, but this measure is for one run")
  return dict(why_not=f"{', '.join(one.folder for one in here)}: no value of this measure")
