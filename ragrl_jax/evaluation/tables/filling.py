"""Fills a paper's table with evaluations: means, intervals, paired tests, and the commands for empty cells."""

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation import records
from ragrl_jax.evaluation.records import Evaluation
from ragrl_jax.evaluation.tables import commands_of
from ragrl_jax.evaluation.tables.layout import Column, Facts, Paper, Row, Run, Table
from ragrl_jax.evaluation.tables.measures import MEASURES

Scores = dict[str, dict[str, float]]  # data set → `records.question` → score


@dataclasses.dataclass
class Cell:
  """One cell of a filled table. Numbers are in the table's scale."""

  published: str | None  # the printed number; None if there is none
  value: float | None = None  # our number; None without a run
  low: float | None = None  # the 95 % bootstrap interval over questions; None for an average and a whole measure
  high: float | None = None
  n: int = 0  # number of questions in the mean; for an average, of sets
  p: float | None = None  # p-value of the paired test against the row `against`; None without a test
  adjusted: float | None = None  # this p-value, adjusted by Holm's method for all tests of the table
  deviation: float | None = None  # of the means of several runs (seeds) of one data set, with n - 1
  paired: int = 0  # number of pairs in the test: questions, or for an average sets
  evaluations: tuple[Evaluation, ...] = ()  # those behind the value
  scores: Scores = dataclasses.field(default_factory=dict)  # behind the value; of several seeds the mean
  command: str = ""  # the command that fills an empty cell
  why_not: str = ""  # the reason for an empty cell in a row with an evaluation


@dataclasses.dataclass
class Filled:
  """A table with its cells, row by row."""

  table: Table
  cells: Sequence[Sequence[Cell]]

  def each(self) -> list[tuple[Row, Column, Cell]]:
    """Every cell with its row and column, row by row."""
    return [(row, *one) for row, cells in zip(self.table.rows, self.cells) for one in zip(self.table.columns, cells)]

  @functools.cached_property
  def commands(self) -> dict[str, int]:
    """Command → its number in the empty cells."""
    commands = dict.fromkeys(cell.command for *_, cell in self.each() if cell.command)
    return {command: number for number, command in enumerate(commands, 1)}


def fill(paper: Paper, evaluations: Sequence[Evaluation], *, any_model: bool = False) -> list[Filled]:
  """Fills every table of the paper.

  Several evaluations of one cell (seeds) count as one: the score of a question is their mean. Equal answers of the same
  weights are no seeds: the first evaluation counts.

  Args:
    any_model: a run of another model may fill a row. If rows differ only in the model, it fills the first one.

  Raises:
    ValueError: an evaluation fills no row of this paper, or evaluations of one cell have different questions.
  """
  evaluations = records.linked(evaluations)
  used_ids = {id(one.facts.get("reads")) for one in evaluations}
  result = []
  for table in paper.tables:
    of_row = assigned(table, evaluations, any_model)
    cells = {
      row.name: [_cell(paper, table, row, *one, of_row) for one in zip(table.of_row(row), row.published, strict=True)]
      for row in table.rows
    }
    _test(table, cells)
    result.append(Filled(table, [*cells.values()]))
    all_evaluations = [one for evaluations in of_row.values() for one in evaluations]
    used_ids |= {id(one.facts) for column in table.columns for one in of_column(column, all_evaluations)}
  for one in evaluations:
    if id(one.facts) not in used_ids:
      raise ValueError(f"--runs={one.folder}: {foreign(paper, one, any_model)}")
  return result


# ---- scores ----------------------------------------------------------------------------------------------------------


def _distinct(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations, those with equal answers of the same weights once: one of them may also measure its evidence."""
  distinct: dict[str, Evaluation] = {}
  for one in evaluations:
    distinct.setdefault(one.answers if one.facts.get("checkpoint") else one.folder, one)
  return list(distinct.values())


def _means(column: Column, evaluations: Sequence[Evaluation]) -> tuple[Scores, float | None]:
  """(the mean of each question's scores over the evaluations, the deviation of the evaluations' means).

  There are no scores unless every set has some. A question whose value is unknown in one evaluation has the mean of the
  others. An average and a single evaluation have no deviation.
  """
  measure, scores, means = MEASURES[column.measure], {}, []
  for name in column.sets:
    runs, question_sets = [], []
    for evaluation in evaluations:
      rows = evaluation.sets.get(name, [])
      values = {records.question(row): value for row, value in zip(rows, measure.scores(rows)) if value is not None}
      if values:
        runs.append(values)
        question_sets.append({records.question(row) for row in evaluation.asked[name]})
    if not runs:
      return {}, None
    if any(questions != question_sets[0] for questions in question_sets):
      numbers = ", ".join(str(len(questions)) for questions in question_sets)
      raise ValueError(
        f"several runs fill a cell of {name} ({numbers} questions), but they have different questions: give runs of "
        "one set of questions."
      )
    known = {key: [run[key] for run in runs if key in run] for key in dict.fromkeys(key for run in runs for key in run)}
    scores[name] = {key: sum(values) / len(values) for key, values in known.items()}
    means = [statistics.fmean(run.values()) for run in runs]
  return scores, None if column.average or len(means) < 2 else statistics.stdev(means)


def _shares(first: Scores, second: Scores, both: tuple[bool, bool]) -> Scores:
  """For each question with scores of both runs, whether the first and the second run are right as `both` says."""
  shares = {}
  for name in first.keys() & second.keys():
    a, b = first[name], second[name]
    shares[name] = {key: float((a[key] >= 0.5, b[key] >= 0.5) == both) for key in a.keys() & b.keys()}
  return shares


def _of_sets(scores: Scores) -> list[float]:
  """The mean of each set's questions."""
  return [sum(values.values()) / len(values) for values in scores.values()]


def _test(table: Table, cells: Mapping[str, Sequence[Cell]]) -> None:
  """Gives cells their two-sided paired tests against their row's `against`: by question, and for an average by set."""
  for row in table.rows:
    for column, cell, base in zip(table.columns, cells[row.name], cells.get(row.against, ()), strict=False):
      if not (cell.scores and base.scores):
        continue
      if column.average:
        cell.p, cell.paired = stats.wilcoxon(_of_sets(cell.scores), _of_sets(base.scores))[1], len(column.sets)
        continue
      ((own_scores,), (other,)) = cell.scores.values(), base.scores.values()
      if shared := sorted(own_scores.keys() & other.keys()):
        cell.p = stats.paired_permutation([own_scores[key] for key in shared], [other[key] for key in shared])[1]
        cell.paired = len(shared)
  tested = [cell for line in cells.values() for cell in line if cell.p is not None]
  for cell, adjusted in zip(tested, stats.holm([cell.p for cell in tested])):
    cell.adjusted = adjusted


# ---- cells -----------------------------------------------------------------------------------------------------------


def _cell(
  paper: Paper, table: Table, row: Row, column: Column, printed: str | None, of_row: Mapping[str, Sequence[Evaluation]]
) -> Cell:
  """A cell without its test."""
  measure = MEASURES[column.measure]
  scale = table.scale if measure.share else 1.0
  first, second = of_column(column, of_row[row.name]), []
  if measure.whole:
    wholes = [(one, value) for one in first if (value := measure.of_whole(one.metrics)) is not None]
    if len(wholes) == 1 and len(wholes[0][0].sets) == 1:  # a measure of a whole evaluation is of one data set
      ((one, value),) = wholes
      bounds = [scale * bound for bound in one.metrics.get(f"{measure.whole}_interval") or ()]
      number = (one.metrics.get("counted") or {}).get(measure.whole, one.metrics["n"])
      number = one.metrics.get(f"{measure.whole}_pairs", number)
      return Cell(printed, value * scale, *bounds, n=number, evaluations=(one,))
    return Cell(printed, **_empty(paper, row, column, first, second))
  first = _distinct(first)
  scores, deviation = _means(column, first)
  if column.both:
    second = _distinct(of_column(column, of_row[row.name + VERSUS]))
    scores, deviation = _shares(scores, _means(column, second)[0], column.both), None
  if not any(scores.values()):
    return Cell(printed, **_empty(paper, row, column, first, second))
  of_set, *_ = scores.values()
  values = _of_sets(scores) if column.average else [of_set[key] for key in sorted(of_set)]
  low, high = (None, None) if column.average else (scale * bound for bound in stats.bootstrap_interval(values, seed=0))
  return Cell(
    printed,
    scale * sum(values) / len(values),
    low,
    high,
    n=len(values),
    deviation=None if deviation is None else scale * deviation,
    evaluations=(*first, *second),
    scores=scores,
  )


def _empty(
  paper: Paper, row: Row, column: Column, first: Sequence[Evaluation], second: Sequence[Evaluation]
) -> dict[str, str]:
  """Why a cell has no value of ours, or the command that fills it."""
  half = bool(first and column.both and not second)  # the row's own run is there, the second one is not
  run, own_evaluations, measure = row.versus if half else row.run, () if half else first, MEASURES[column.measure]
  if column.average or run is None:
    return {}
  if measure.judged and run.system:
    command = f"ragrl judge --config={paper.judge} --config.judge.model=NAME --results FOLDER"
    return dict(why_not=f"it needs a judge: `{command}`")
  if not own_evaluations or run.system and measure.steps:
    return dict(command=commands_of.evaluation(paper, column, run))
  if len(own_evaluations) > 1 and measure.whole:
    return dict(why_not=f"{len(own_evaluations)} runs, but this measure is for one run")
  return dict(why_not=f"{', '.join(one.folder for one in own_evaluations)}: no value of this measure")


VERSUS = " / versus"
_JUDGES = ("switches.correctness", "switches.accuracy")  # switches that may ask a judge about the answer
NO_NOISE: Facts = {"noise": (0, None)}  # the default of a column's condition


def assigned(table: Table, evaluations: Sequence[Evaluation], any_model: bool) -> dict[str, list[Evaluation]]:
  """Row → its evaluations: those of its model, and with any_model those whose model fits no row.

  The evaluations of a row's second run have the key NAME + VERSUS.
  """
  runs = {row.name: row.run for row in table.rows} | {row.name + VERSUS: row.versus for row in table.rows}
  of_row: dict[str, list[Evaluation]] = {name: [] for name in runs}
  for evaluation in evaluations:
    fitting = [name for name, run in runs.items() if run and not unmet(run, evaluation.facts)]
    exact = [name for name in fitting if _of_model(runs[name], evaluation.facts)]
    for name in exact or (fitting[:1] if any_model else []):
      of_row[name].append(evaluation)
  return of_row


def of_column(column: Column, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations of a row that have questions of a column's sets, and meet its conditions."""
  judged = MEASURES[column.measure].judged
  return [
    evaluation
    for evaluation in evaluations
    if (not judged or "judge" in map(evaluation.facts.get, _JUDGES) or any("judged" in row for row in evaluation.rows))
    and any(name in evaluation.sets for name in column.sets)
    and not _unmet_by(column, evaluation)
  ]


def unmet(run: Run, facts: Facts) -> list[str]:
  """The facts of an evaluation that do not fit a row, in words; without a look at the model."""
  agent = facts.get("switches.agent") if facts.get("recipe") == "released" else None
  if (facts.get("system") or agent or "") != run.system:
    return [f"it is not of the system {run.system}" if run.system else "it is of another system"]
  if run.system:
    return _others({"switches.documents": ("search", None)} | dict(run.where), facts)  # None: of transcripts
  reads = facts.get("reads")  # the facts of the evaluation whose evidence it reads
  if run.reads and not reads and not unmet(run.reads, facts):
    return [
      "it extracts evidence that a generator must read: `ragrl make-lear-generator --predictions=FOLDER/"
      f"predictions.jsonl …`, then `ragrl evaluate --config={run.evaluate}`; give both folders"
    ]
  preset, trained = _preset(run.evaluate), facts["trained"]
  if run.train and not trained and not _others(preset, facts):
    place = f"beside its checkpoint {facts.get('checkpoint')}"
    return [f"it is of no run: no config.json is {place}; copy the run's config.json into the evaluation's folder"]
  required = preset | dict(trained=bool(run.train), step=run.checkpoint)
  if run.best and facts.get("chosen_by") == run.best:
    del required["step"]
  if run.train:
    required |= {"trained.objective": "sft" if run.transcripts else "rl"}
    required |= {f"trained.{name}": value for name, value in _preset(run.train).items()}
  others = _others(required | dict(run.where), facts)
  if bool(reads) != bool(run.reads) or (run.reads and unmet(run.reads, reads)):
    others.append("it reads evidence of another evaluation, or none")
  return others


def _of_model(run: Run, facts: Facts) -> bool:
  """Whether the models of an evaluation that fits a row are the row's."""
  fits_model = run.model in ("", facts["model"])
  return fits_model and (run.reads is None or _of_model(run.reads, facts["reads"]))


def _unmet_by(column: Column, one: Evaluation) -> list[str]:
  """The conditions of a column that an evaluation does not meet. Those of evidence are those of its extraction."""
  facts = one.facts.get("reads") or one.facts
  return _others({**NO_NOISE, **column.where}, facts) + (_others(NO_NOISE, one.facts) if facts is not one.facts else [])


def _preset(config: str) -> dict[str, str]:
  """Recipe and preset of a config with its variant."""
  name, _, variant = config.partition(":")
  presets_named = [preset for preset in recipes.presets(name) if preset in variant.split(",")]
  return dict(recipe=name, preset=",".join(presets_named) or "paper")


def _others(required: Facts, facts: Facts) -> list[str]:
  """The facts with other values than the wanted ones, in words."""

  def same(actual: Any, value: Any) -> bool:
    if isinstance(value, str) and value.startswith("~"):
      return value[1:] in str(actual).lower()
    return actual in value if isinstance(value, tuple) else actual == value

  return [f"{name}={facts.get(name)!r}, not {of!r}" for name, of in required.items() if not same(facts.get(name), of)]


def foreign(paper: Paper, one: Evaluation, any_model: bool) -> str:
  """Why an evaluation fills no row."""
  facts = one.facts
  system, setting_text = facts.get("system"), f"recipe {facts['recipe']}, preset {facts.get('preset')}"
  what = f"system {system}" if system else setting_text
  rows = [(row.name, row.run, table) for table in paper.tables for row in table.rows if row.run is not None]
  fitting = [row for row in rows if not unmet(row[1], facts)]
  if own_rows := [row for row in fitting if _of_model(row[1], facts)] or (fitting if any_model else []):
    name, _, table = own_rows[0]
    reasons = [_unmet_by(column, one) for column in table.columns if column.sets[0] in one.sets]
    sets = ", ".join(one.sets)
    questions_text = f"its questions are {sets}" if sets else f"{facts['data']} names no data set of the tables"
    why = ", but with ".join([questions_text, *(", ".join(reason) for reason in reasons[:1] if reason)])
    return f"{what} belongs into the row {name!r}, but fills none of its columns: {why}."
  lacking: dict[str, dict[str, None]] = {}  # reason → rows; several may lack the same
  for name, run, _ in fitting or [row for row in rows if row[1].evaluate.partition(":")[0] == facts["recipe"]] or rows:
    other = f"its model is {facts['model'] or 'not known here'}, not {run.model}: --any_model lets other models fill it"
    lacking.setdefault([*unmet(run, facts), other][0], {})[name] = None
  reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in lacking.items())
  return f"{what} fills no row of {paper.name}'s tables. What each row lacks first: {reasons}."
