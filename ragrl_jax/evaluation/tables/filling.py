"""Fills a paper's table with evaluations: means, intervals, paired tests, and the commands for empty cells."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation.tables import commands_of, matching, results
from ragrl_jax.evaluation.tables.layout import Column, Paper, Row, Table
from ragrl_jax.evaluation.tables.measures import MEASURES
from ragrl_jax.evaluation.tables.results import Evaluation

Scores = dict[tuple[str, str], float]  # (data set, `results.asked`) → score


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
      parts = zip(table.of_row(row), row.published, given[row.name], bases)
      cells.append([_cell(paper, row, column, printed, its, base, table.scale) for column, printed, its, base in parts])
    filled.append(Filled(table, _adjusted(cells)))
    every = [one for evaluations in of_row.values() for one in evaluations]
    used |= {id(one.facts) for column in table.columns for one in matching.of_column(column, every)}
  for one in evaluations:
    if id(one.facts) not in used:
      raise ValueError(f"--runs={one.folder}: {matching.foreign(paper, one, any_model)}")
  return filled


def _adjusted(rows: Sequence[Sequence[Cell]]) -> tuple[tuple[Cell, ...], ...]:
  """The cells of a table, with p adjusted for all of its tests."""
  adjusted = iter(stats.holm([cell.p for cells in rows for cell in cells if cell.p is not None]))
  with_p = lambda cell: cell if cell.p is None else dataclasses.replace(cell, adjusted=next(adjusted))
  return tuple(tuple(map(with_p, cells)) for cells in rows)


# ---- scores ----------------------------------------------------------------------------------------------------------


def _given(column: Column, row: Row, of_row: Mapping[str, Sequence[Evaluation]]) -> _Given:
  first = matching.of_column(column, of_row[row.name])
  if MEASURES[column.measure].whole:
    return _Given(first)
  first = _distinct(first)
  runs = _runs(column, first)
  scores = _means(column, runs)
  if column.both is None:
    means = [statistics.fmean(run.values()) for _, run in runs]
    deviation = statistics.stdev(means) if len(means) > 1 and not column.average else None
    return _Given(first, (), scores, deviation)
  second = _distinct(matching.of_column(column, of_row[row.name + matching.VERSUS]))
  other = _means(column, _runs(column, second))
  shared = scores.keys() & other.keys()
  both = {key: float((scores[key] >= 0.5, other[key] >= 0.5) == column.both) for key in shared}
  return _Given(first, second, both)


def _distinct(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations, of which those with equal answers of the same weights count once.

  A row may need such a pair: one of them also measures its evidence.
  """
  facts = lambda one: {**one.facts, "evidence": None}
  answers = lambda one: {(row["source"], results.asked(row)): row["prediction"] for row in one.rows}
  same = lambda one, other: facts(one) == facts(other) and answers(one) == answers(other)
  found: list[Evaluation] = []
  for one in evaluations:
    if not (one.facts.get("checkpoint") and any(same(one, other) for other in found)):
      found.append(one)
  return found


def _runs(column: Column, evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, Scores]]:
  """The evaluations that have scores in this column, with these."""
  runs: list[tuple[Evaluation, Scores]] = []
  for one in evaluations:
    run = {}
    for name in column.sets:
      rows = one.sets.get(name, ())
      scored = zip(rows, MEASURES[column.measure].scores(rows))
      run |= {(name, results.asked(row)): value for row, value in scored if value is not None}
    runs += [(one, run)] if run else []
  return runs


def _means(column: Column, runs: Sequence[tuple[Evaluation, Scores]]) -> Scores:
  """The mean of each question's scores over the runs; empty unless every set has some.

  A question whose value is unknown in one run (it failed, or the judge gave no verdict) has the mean of the others.
  """
  found: Scores = {}
  for name in column.sets:
    of: dict[tuple[str, str], list[float]] = {}
    asked = []
    for one, run in runs:
      part = {key: value for key, value in run.items() if key[0] == name}
      asked += [one.asked.get(name, frozenset())] if part else []
      for key, value in part.items():
        of.setdefault(key, []).append(value)
    if not of:
      return {}
    if len(set(asked)) > 1:
      numbers = ", ".join(str(len(ids)) for ids in asked)
      raise ValueError(
        f"several runs fill a cell of {name} ({numbers} questions), but they have different questions: give runs of "
        "one set of questions."
      )
    found |= {key: sum(values) / len(values) for key, values in of.items()}
  return found


def _by_set(scores: Scores, column: Column) -> list[float]:
  """The mean of each set's questions."""
  found = [[value for (of, _), value in scores.items() if of == name] for name in column.sets]
  return [sum(values) / len(values) for values in found]


def _tested(mine: Scores, base: Scores, column: Column) -> tuple[float | None, int]:
  """(p, number of pairs) of the two-sided paired test: by question, and for an average by set."""
  if base and column.average:
    return stats.wilcoxon(_by_set(mine, column), _by_set(base, column))[1], len(column.sets)
  shared = sorted(mine.keys() & base.keys())
  if not shared:
    return None, 0
  return stats.paired_permutation([mine[key] for key in shared], [base[key] for key in shared])[1], len(shared)


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
  if not mine:
    return Cell(printed, **_empty(paper, row, column, given))
  p, paired = _tested(mine, base, column)
  tested = dict(p=p, paired=paired, evaluations=(*given.first, *given.second))
  if column.average:
    means = _by_set(mine, column)
    return Cell(printed, scale * sum(means) / len(means), n=len(means), **tested)
  values = [mine[key] for key in sorted(mine)]
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
