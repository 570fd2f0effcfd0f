"""The rows that an evaluation may fill, by its facts and not by its folder's name; or why it fills none."""

from collections.abc import Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.evaluation.records import Evaluation
from ragrl_jax.evaluation.tables.layout import Column, Facts, Paper, Run, Table
from ragrl_jax.evaluation.tables.measures import MEASURES

VERSUS = " / versus"
_JUDGES = ("switches.correctness", "switches.accuracy")  # switches that may ask a judge about the answer
NO_NOISE: Facts = {"noise": (0, None)}  # the default of a column's condition


def assigned(table: Table, evaluations: Sequence[Evaluation], any_model: bool) -> dict[str, list[Evaluation]]:
  """Row → its evaluations: those of its model, and with any_model those whose model fits no row.

  The evaluations of a row's second run have the key NAME + VERSUS.
  """
  runs = {row.name: row.run for row in table.rows} | {row.name + VERSUS: row.versus for row in table.rows}
  of_row: dict[str, list[Evaluation]] = {name: [] for name in runs}
  for one in evaluations:
    fitting = [name for name, run in runs.items() if run and not unmet(run, one.facts)]
    exact = [name for name in fitting if _of_model(runs[name], one.facts)]
    for name in exact or (fitting[:1] if any_model else []):
      of_row[name].append(one)
  return of_row


def of_column(column: Column, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
  """The evaluations of a row that have questions of a column's sets, and meet its conditions."""
  judged = MEASURES[column.measure].judged
  return [
    one
    for one in evaluations
    if (not judged or "judge" in map(one.facts.get, _JUDGES) or any("judged" in row for row in one.rows))
    and any(name in one.sets for name in column.sets)
    and not _unmet_by(column, one)
  ]


def unmet(run: Run, facts: Facts) -> list[str]:
  """The facts of an evaluation that do not fit a row, in words; without a look at the model."""
  played = facts.get("switches.agent") if facts.get("recipe") == "released" else None
  if (facts.get("system") or played or "") != run.system:
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
  wanted = preset | dict(trained=bool(run.train), step=run.checkpoint)
  if run.best and facts.get("chosen_by") == run.best:
    del wanted["step"]
  if run.train:
    wanted |= {"trained.objective": "sft" if run.transcripts else "rl"}
    wanted |= {f"trained.{name}": value for name, value in _preset(run.train).items()}
  others = _others(wanted | dict(run.where), facts)
  if bool(reads) != bool(run.reads) or (run.reads and unmet(run.reads, reads)):
    others.append("it reads evidence of another evaluation, or none")
  return others


def _of_model(run: Run, facts: Facts) -> bool:
  """Whether the models of an evaluation that fits a row are the row's."""
  own = run.model in ("", facts["model"])
  return own and (run.reads is None or _of_model(run.reads, facts["reads"]))


def _unmet_by(column: Column, one: Evaluation) -> list[str]:
  """The conditions of a column that an evaluation does not meet. Those of evidence are those of its extraction."""
  facts = one.facts.get("reads") or one.facts
  return _others({**NO_NOISE, **column.where}, facts) + (_others(NO_NOISE, one.facts) if facts is not one.facts else [])


def _preset(config: str) -> dict[str, str]:
  """Recipe and preset of a config with its variant."""
  name, _, variant = config.partition(":")
  chosen = [preset for preset in recipes.presets(name) if preset in variant.split(",")]
  return dict(recipe=name, preset=",".join(chosen) or "paper")


def _others(wanted: Facts, facts: Facts) -> list[str]:
  """The facts with other values than the wanted ones, in words."""

  def same(known: Any, value: Any) -> bool:
    if isinstance(value, str) and value.startswith("~"):
      return value[1:] in str(known).lower()
    return known in value if isinstance(value, tuple) else known == value

  return [f"{name}={facts.get(name)!r}, not {of!r}" for name, of in wanted.items() if not same(facts.get(name), of)]


def foreign(paper: Paper, one: Evaluation, any_model: bool) -> str:
  """Why an evaluation fills no row."""
  facts = one.facts
  system, played = facts.get("system"), f"recipe {facts['recipe']}, preset {facts.get('preset')}"
  what = f"system {system}" if system else played
  rows = [(row.name, row.run, table) for table in paper.tables for row in table.rows if row.run is not None]
  fitting = [row for row in rows if not unmet(row[1], facts)]
  if own := [row for row in fitting if _of_model(row[1], facts)] or (fitting if any_model else []):
    name, _, table = own[0]
    reasons = [_unmet_by(column, one) for column in table.columns if column.sets[0] in one.sets]
    sets = ", ".join(one.sets)
    asked = f"its questions are {sets}" if sets else f"{facts['data']} names no data set of the tables"
    why = ", but with ".join([asked, *(", ".join(reason) for reason in reasons[:1] if reason)])
    return f"{what} belongs into the row {name!r}, but fills none of its columns: {why}."
  lacking: dict[str, dict[str, None]] = {}  # reason → rows; several may lack the same
  for name, run, _ in fitting or [row for row in rows if row[1].evaluate.partition(":")[0] == facts["recipe"]] or rows:
    other = f"its model is {facts['model'] or 'not known here'}, not {run.model}: --any_model lets other models fill it"
    lacking.setdefault([*unmet(run, facts), other][0], {})[name] = None
  reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in lacking.items())
  return f"{what} fills no row of {paper.name}'s tables. What each row lacks first: {reasons}."
