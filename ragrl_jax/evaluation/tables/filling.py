"""Fills a paper's table with evaluations: means, intervals, paired tests, and the commands for empty cells."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation.tables import commands_of, results
from ragrl_jax.evaluation.tables.layout import Column, Paper, Row, Run, Table
from ragrl_jax.evaluation.tables.measures import MEASURES
from ragrl_jax.evaluation.tables.results import Evaluation

VERSUS = " / versus"
_JUDGES = ("switches.correctness", "switches.accuracy")  # switches that may ask a judge about the answer
NO_NOISE: Mapping[str, Any] = {"noise": (0, None)}  # the default of a column's condition
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
  used: set[int] = set()
  filled = []
  for table in paper.tables:
    of_row = _assigned(table, evaluations, any_model)
    scores = {row.name: [_of_cell(column, row, of_row) for column in table.of_row(row)] for row in table.rows}
    places = range(len(table.columns))
    cells = [[_cell(paper, table, row, place, of_row, scores) for place in places] for row in table.rows]
    filled.append(Filled(table, _adjusted(cells)))
    used |= {
      id(one.facts) for column in table.columns for found in of_row.values() for one in _of_column(column, found)
    }
  used |= {id(one.facts.get("reads")) for one in evaluations}
  for one in evaluations:
    if id(one.facts) not in used:
      raise ValueError(f"--runs={one.folder}: {_foreign(paper, one, any_model)}")
  return filled


def _assigned(table: Table, evaluations: Sequence[Evaluation], any_model: bool) -> dict[str, list[Evaluation]]:
  """Row → its evaluations: those of its model, and with any_model those whose model fits no row.

  The evaluations of a row's second run have the key NAME + VERSUS.
  """
  wanted = {row.name: row.run for row in table.rows} | {row.name + VERSUS: row.versus for row in table.rows}
  runs = {name: run for name, run in wanted.items() if run is not None}
  found: dict[str, list[Evaluation]] = {name: [] for name in wanted}
  for one in evaluations:
    fitting = [name for name, run in runs.items() if fits(run, one.facts)]
    exact = [name for name in fitting if _of_model(runs[name], one.facts)]
    for name in exact or (fitting[:1] if any_model else []):
      found[name].append(one)
  return found


def fits(run: Run, facts: Mapping[str, Any]) -> bool:
  """Whether an evaluation fits a row, with any model."""
  return not _unmet(run, facts)


def _unmet(run: Run, facts: Mapping[str, Any]) -> str:
  """The first fact of an evaluation that does not fit a row, in words; "" if all do."""
  if run.system:
    played = facts.get("recipe") == "released" and facts.get("switches.agent") == run.system
    found = played or facts.get("system") == run.system
    where = {"switches.documents": ("search", None)} | dict(run.where)  # None: transcripts from elsewhere
    if not found:
      return f"it is not of the system {run.system}"
    return _first_unmet(where, facts)
  if facts.get("system") or bool(run.train) != facts["trained"]:
    return f"it is not of {'a run' if run.train else 'an untrained model'}"
  if run.checkpoint != facts["step"] and (not run.best or facts.get("chosen_by") != run.best):
    return f"step={facts['step'] or 'the end'}, not {run.checkpoint or run.best or 'the end'}"
  reads = facts.get("reads")  # the facts of the evaluation whose evidence it reads
  if (reads is None) != (run.reads is None) or run.reads is not None and not fits(run.reads, reads or {}):
    return "it reads evidence of another evaluation, or none"
  wanted: dict[str, Any] = dict(_chosen(run.evaluate))
  if run.train:
    wanted |= {"trained.objective": commands_of.objective(run)}
    wanted |= {f"trained.{name}": value for name, value in _chosen(run.train).items()}
  return _first_unmet(wanted | dict(run.where), facts)


def _first_unmet(wanted: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
  unmet = ((name, value) for name, value in wanted.items() if not _holds(facts, name, value))
  return next((f"{name}={facts.get(name)!r}, not {value!r}" for name, value in unmet), "")


def _of_model(run: Run, facts: Mapping[str, Any]) -> bool:
  """Whether the models of an evaluation that fits a row are the row's."""
  own = run.model in ("", facts["model"])
  return own and (run.reads is None or _of_model(run.reads, facts["reads"]))


def _conditions(column: Column, one: Evaluation) -> list[tuple[Mapping[str, Any], str, Any]]:
  """(facts, name, required value) of a column's conditions. Those of evidence are those of its extraction."""
  of = one.facts.get("reads") or one.facts
  conditions = [(of, *fact) for fact in {**NO_NOISE, **column.where}.items()]
  return conditions + [(one.facts, *fact) for fact in NO_NOISE.items() if of is not one.facts]


def _chosen(config: str) -> dict[str, str]:
  """Recipe and preset of a config with its variant."""
  name, _, variant = config.partition(":")
  chosen = variant.split(",")
  return dict(recipe=name, preset=",".join(one for one in recipes.presets(name) if one in chosen) or "paper")


def _holds(facts: Mapping[str, Any], name: str, wanted: Any) -> bool:
  value = facts.get(name)
  if isinstance(wanted, tuple):
    return value in wanted
  if isinstance(wanted, str) and wanted.startswith("~"):
    return wanted[1:] in str(value).lower()
  return value == wanted


def _of_cell(column: Column, row: Row, of_row: Mapping[str, Sequence[Evaluation]]) -> Scores:
  """The scores of a cell's questions."""
  first = _scores(column, of_row[row.name])
  if column.both is None:
    return first
  second = _scores(column, of_row[row.name + VERSUS])
  return {key: float((first[key] >= 0.5, second[key] >= 0.5) == column.both) for key in first.keys() & second.keys()}


def _scores(column: Column, evaluations: Sequence[Evaluation]) -> Scores:
  """The scores of a column's questions, each the mean over the evaluations; empty unless every set has some.

  A question whose value is unknown in one evaluation (it failed, or the judge gave no verdict) has the mean of the
  others.
  """
  runs = _runs(column, evaluations)
  found: Scores = {}
  for name in column.sets:
    parts = [(one, {key: value for key, value in run.items() if key[0] == name}) for one, run in runs]
    parts = [(one, part) for one, part in parts if part]
    if not parts:
      return {}
    asked = [one.asked.get(name, frozenset(key[1] for key in part)) for one, part in parts]
    if len(set(asked)) > 1:
      raise ValueError(
        f"several runs fill a cell of {name} ({', '.join(str(len(ids)) for ids in asked)} questions), but they have "
        "different questions: give runs of one set of questions."
      )
    of: dict[Any, list[float]] = {}
    for _, part in parts:
      for key, value in part.items():
        of.setdefault(key, []).append(value)
    found |= {key: sum(values) / len(values) for key, values in of.items()}
  return found


def _runs(column: Column, evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, Scores]]:
  """The evaluations that have scores in this column, with these."""
  if (measure := MEASURES[column.measure]).whole:
    return []
  runs = []
  for one in _distinct(_of_column(column, evaluations)):
    parts = [(name, one.sets.get(name, ())) for name in column.sets]
    scored = [
      (name, results.asked(row), value) for name, rows in parts for row, value in zip(rows, measure.scores(rows))
    ]
    runs.append((one, {(name, id): value for name, id, value in scored if value is not None}))
  return [(one, run) for one, run in runs if run]


def _distinct(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations, of which those with equal answers of the same weights count once.

  A row may need such a pair: one of them also measures its evidence.
  """
  found: list[Evaluation] = []
  for one in evaluations:
    if not (one.facts.get("checkpoint") and any(_same(one, other) for other in found)):
      found.append(one)
  return found


def _same(one: Evaluation, other: Evaluation) -> bool:
  facts = lambda evaluation: {**evaluation.facts, "evidence": None}
  said = lambda evaluation: {(row["source"], results.asked(row)): row["prediction"] for row in evaluation.rows}
  return facts(one) == facts(other) and said(one) == said(other)


def _deviation(column: Column, evaluations: Sequence[Evaluation]) -> float | None:
  means = [statistics.fmean(run.values()) for _, run in _runs(column, evaluations)]
  return statistics.stdev(means) if len(means) > 1 and len(column.sets) == 1 and column.both is None else None


def _adjusted(rows: Sequence[Sequence[Cell]]) -> tuple[tuple[Cell, ...], ...]:
  """The cells of a table, with p adjusted for all of its tests."""
  adjusted = iter(stats.holm([cell.p for cells in rows for cell in cells if cell.p is not None]))
  with_p = lambda cell: cell if cell.p is None else dataclasses.replace(cell, adjusted=next(adjusted))
  return tuple(tuple(map(with_p, cells)) for cells in rows)


def _of_column(column: Column, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  judged = MEASURES[column.measure].judged
  return [
    one
    for one in evaluations
    if (not judged or "judge" in map(one.facts.get, _JUDGES) or any("judged" in row for row in one.rows))
    and any(one.sets.get(name) for name in column.sets)
    and all(_holds(*condition) for condition in _conditions(column, one))
  ]


def _cell(
  paper: Paper,
  table: Table,
  row: Row,
  place: int,
  of_row: Mapping[str, Sequence[Evaluation]],
  scores: Mapping[str, Sequence[Scores]],
) -> Cell:
  """The cell of a row at a column's place."""
  column, printed = table.of_row(row)[place], row.published[place]
  measure, here = MEASURES[column.measure], _of_column(column, of_row[row.name])
  second = _distinct(_of_column(column, of_row[row.name + VERSUS])) if column.both else []
  scale = table.scale if measure.share else 1.0
  wholes = [(one, value) for one in here if measure.whole and (value := measure.of_whole(one.metrics)) is not None]
  if len(wholes) == 1 and len(wholes[0][0].sets) == 1:  # a measure of a whole evaluation is of one data set
    ((one, value),) = wholes
    bounds = one.metrics.get(f"{measure.whole}_interval") or ()
    number = one.metrics.get(f"{measure.whole}_pairs", one.metrics["n"])
    return Cell(printed, value * scale, *(scale * bound for bound in bounds), n=number, evaluations=(one,))
  here = here if measure.whole else _distinct(here)
  mine = scores[row.name][place]
  if not mine:
    other = bool(here and column.both and not second)  # the row's own run is there, the second one is not
    run, found = (row.versus, second) if other else (row.run, here)
    return Cell(printed, **_empty(paper, column, row, run, found))
  base = scores[row.against][place] if row.against else {}
  p, paired = _tested(mine, base, column)
  if column.average:
    means = list(_means(mine, column).values())
    return Cell(printed, scale * sum(means) / len(means), n=len(means), p=p, paired=paired, evaluations=tuple(here))
  values = [mine[key] for key in sorted(mine)]
  low, high = stats.bootstrap_interval(values, seed=0)
  deviation = _deviation(column, here)
  return Cell(
    printed,
    scale * sum(values) / len(values),
    scale * low,
    scale * high,
    len(values),
    p,
    deviation=None if deviation is None else scale * deviation,
    paired=paired,
    evaluations=(*here, *second),
  )


def _empty(paper: Paper, column: Column, row: Row, run: Run | None, here: Sequence[Evaluation]) -> dict[str, str]:
  """Why a cell has no value of ours, or the command that fills it."""
  if column.average or run is None:
    return {}
  if MEASURES[column.measure].judged and run.system:
    config = "when_to_search" if paper.name == "when_to_search" else "arena:judge"  # each paper's own question
    return dict(why_not=f"it needs a judge: `ragrl judge --config={config} --config.judge.model=NAME --results FOLDER`")
  if run.system and MEASURES[column.measure].steps:
    return dict(command=commands_of.evaluation(paper, column, run))
  if len(here) > 1 and MEASURES[column.measure].whole:
    return dict(why_not=f"{len(here)} runs, but this measure is for one run")
  if here:
    return dict(why_not=f"{', '.join(one.folder for one in here)}: no value of this measure")
  return dict(command=commands_of.evaluation(paper, column, run))


def _means(scores: Scores, column: Column) -> dict[str, float]:
  """Data set → the mean of its questions."""
  found = {name: [value for (of, _), value in scores.items() if of == name] for name in column.sets}
  return {name: sum(values) / len(values) for name, values in found.items()}


def _tested(mine: Scores, base: Scores, column: Column) -> tuple[float | None, int]:
  """(p, number of pairs) of the two-sided paired test: by question, and for an average by set."""
  if not base:
    return None, 0
  if column.average:
    ours, theirs = _means(mine, column), _means(base, column)
    return stats.wilcoxon(list(ours.values()), list(theirs.values()))[1], len(ours)
  shared = sorted(mine.keys() & base.keys())
  if not shared:
    return None, 0
  return stats.paired_permutation([mine[key] for key in shared], [base[key] for key in shared])[1], len(shared)


def _foreign(paper: Paper, one: Evaluation, any_model: bool) -> str:
  """Why an evaluation fills no row."""
  facts = one.facts
  played = f"recipe {facts['recipe']}, preset {facts.get('preset')}"
  what = f"system {facts['system']}" if facts.get("system") else played
  rows = [row for table in paper.tables for row in table.rows if row.run is not None]
  fitting = [row for row in rows if fits(row.run, facts)]
  own = [row for row in fitting if _of_model(row.run, facts)]
  own = own or (fitting if any_model else [])
  if own:
    found = (
      f"its questions are {', '.join(one.sets)}" if one.sets else f"{facts['data']} names no data set of the tables"
    )
    asked = [column for table in paper.tables if own[0] in table.rows for column in table.columns]
    needed = [_conditions(column, one) for column in asked if column.sets[0] in one.sets]
    if needed:
      unmet = [f"{name}={of.get(name)}, not {value}" for of, name, value in needed[0] if not _holds(of, name, value)]
      found += f", but with {', '.join(unmet)}" if unmet else ""
    return f"{what} belongs into the row {own[0].name!r}, but fills none of its columns: {found}."
  if fitting:
    return (
      f"{what} belongs into the row {fitting[0].name!r}, but its model is {facts['model'] or 'not known here'}, not "
      f"{fitting[0].run.model}: --any_model lets other models fill a row, and says so below the table."
    )
  if any(row.run.reads is not None and fits(row.run.reads, facts) for row in rows):
    return (
      f"{what} extracts evidence that a generator must read, as in the paper, and none of the given runs reads this: "
      f"`ragrl make-lear-generator --predictions={one.folder}/predictions.jsonl …`, then `ragrl evaluate "
      "--config=lear:generator`; give both folders."
    )
  trained = [row for row in rows if row.run.train.partition(":")[0] == facts["recipe"]]
  if trained and not facts["trained"] and not facts.get("system"):
    return (
      f"{what}: no row of {paper.name}'s tables is of an untrained model in this recipe, and no config.json of a run "
      f"is beside its checkpoint {facts.get('checkpoint')}; copy the run's config.json into the evaluation's folder."
    )
  unmet: dict[str, dict[str, None]] = {}  # rows of this recipe by the first unmet fact; several may lack the same
  kind = lambda run: (bool(run.train), run.evaluate.partition(":")[0])
  near = [row for row in rows if not row.run.system and kind(row.run) == (facts["trained"], facts["recipe"])]
  for row in near or rows:
    unmet.setdefault(_unmet(row.run, facts), {})[row.name] = None
  said = "; ".join(f"{', '.join(names)}: {why}" for why, names in unmet.items())
  return f"{what} fills no row of {paper.name}'s tables; leave it out. What each row lacks first: {said}."
