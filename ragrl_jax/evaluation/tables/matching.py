"""The rows that an evaluation may fill, by its facts and not by its folder's name; or why it fills none."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.evaluation.tables import commands_of
from ragrl_jax.evaluation.tables.layout import Column, Paper, Run, Table
from ragrl_jax.evaluation.tables.measures import MEASURES
from ragrl_jax.evaluation.tables.results import Evaluation

VERSUS = " / versus"
_JUDGES = ("switches.correctness", "switches.accuracy")  # switches that may ask a judge about the answer
NO_NOISE: Mapping[str, Any] = {"noise": (0, None)}  # the default of a column's condition


def assigned(table: Table, evaluations: Sequence[Evaluation], any_model: bool) -> dict[str, list[Evaluation]]:
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


def of_column(column: Column, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations of a row that have questions of a column's sets, and meet its conditions."""
  judged = MEASURES[column.measure].judged
  return [
    one
    for one in evaluations
    if (not judged or "judge" in map(one.facts.get, _JUDGES) or any("judged" in row for row in one.rows))
    and any(one.sets.get(name) for name in column.sets)
    and all(_holds(*condition) for condition in _conditions(column, one))
  ]


def fits(run: Run, facts: Mapping[str, Any]) -> bool:
  """Whether an evaluation fits a row, with any model."""
  return not _unmet(run, facts)


def _unmet(run: Run, facts: Mapping[str, Any]) -> str:
  """The first fact of an evaluation that does not fit a row, in words; "" if all do."""
  if run.system:
    played = facts.get("recipe") == "released" and facts.get("switches.agent") == run.system
    if not played and facts.get("system") != run.system:
      return f"it is not of the system {run.system}"
    return _first_unmet({"switches.documents": ("search", None)} | dict(run.where), facts)  # None: of transcripts
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


def foreign(paper: Paper, one: Evaluation, any_model: bool) -> str:
  """Why an evaluation fills no row."""
  facts = one.facts
  played = f"recipe {facts['recipe']}, preset {facts.get('preset')}"
  what = f"system {facts['system']}" if facts.get("system") else played
  rows = [row for table in paper.tables for row in table.rows if row.run is not None]
  fitting = [row for row in rows if fits(row.run, facts)]
  if own := [row for row in fitting if _of_model(row.run, facts)] or (fitting if any_model else []):
    asked = [column for table in paper.tables if own[0] in table.rows for column in table.columns]
    found = f"its questions are {', '.join(one.sets)}"
    if not one.sets:
      found = f"{facts['data']} names no data set of the tables"
    needed = next((_conditions(column, one) for column in asked if column.sets[0] in one.sets), [])
    if unmet := [f"{name}={of.get(name)}, not {value}" for of, name, value in needed if not _holds(of, name, value)]:
      found += f", but with {', '.join(unmet)}"
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
  trained = any(row.run.train.partition(":")[0] == facts["recipe"] for row in rows)
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
