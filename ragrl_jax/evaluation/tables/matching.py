"""The rows that an evaluation may fill, by its facts and not by its folder's name; or why it fills none."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
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
  runs = {row.name: row.run for row in table.rows} | {row.name + VERSUS: row.versus for row in table.rows}
  of_row: dict[str, list[Evaluation]] = {name: [] for name in runs}
  for one in evaluations:
    fitting = [name for name, run in runs.items() if run and fits(run, one.facts)]
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


def fits(run: Run, facts: Mapping[str, Any]) -> bool:
  """Whether an evaluation fits a row, with any model."""
  return not _unmet(run, facts)


def _unmet(run: Run, facts: Mapping[str, Any]) -> list[str]:
  """The facts of an evaluation that do not fit a row, in words."""
  played = facts.get("switches.agent") if facts.get("recipe") == "released" else None
  if (facts.get("system") or played or "") != run.system:
    return [f"it is not of the system {run.system}" if run.system else "it is of another system"]
  if run.system:
    return _others({"switches.documents": ("search", None)} | dict(run.where), facts)  # None: of transcripts
  reads = facts.get("reads")  # the facts of the evaluation whose evidence it reads
  if run.reads and not reads and fits(run.reads, facts):
    return [
      "it extracts evidence that a generator must read: `ragrl make-lear-generator --predictions=FOLDER/"
      f"predictions.jsonl …`, then `ragrl evaluate --config={run.evaluate}`; give both folders"
    ]
  chosen, trained = _chosen(run.evaluate), facts["trained"]
  if run.train and not trained and not _others(chosen, facts):
    place = f"beside its checkpoint {facts.get('checkpoint')}"
    return [f"it is of no run: no config.json is {place}; copy the run's config.json into the evaluation's folder"]
  wanted = chosen | dict(trained=bool(run.train), step=run.checkpoint)
  if run.best and facts.get("chosen_by") == run.best:
    del wanted["step"]
  if run.train:
    wanted |= {"trained.objective": "sft" if run.transcripts else "rl"}
    wanted |= {f"trained.{name}": value for name, value in _chosen(run.train).items()}
  others = _others(wanted | dict(run.where), facts)
  of_evidence = bool(reads) == bool(run.reads) and (not run.reads or fits(run.reads, reads))
  return others if of_evidence else [*others, "it reads evidence of another evaluation, or none"]


def _of_model(run: Run, facts: Mapping[str, Any]) -> bool:
  """Whether the models of an evaluation that fits a row are the row's."""
  own = run.model in ("", facts["model"])
  return own and (run.reads is None or _of_model(run.reads, facts["reads"]))


def _unmet_by(column: Column, one: Evaluation) -> list[str]:
  """The conditions of a column that an evaluation does not meet. Those of evidence are those of its extraction."""
  facts = one.facts.get("reads") or one.facts
  return _others({**NO_NOISE, **column.where}, facts) + (_others(NO_NOISE, one.facts) if facts is not one.facts else [])


def _chosen(config: str) -> dict[str, str]:
  """Recipe and preset of a config with its variant."""
  name, _, variant = config.partition(":")
  chosen = variant.split(",")
  return dict(recipe=name, preset=",".join(one for one in recipes.presets(name) if one in chosen) or "paper")


def _others(wanted: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
  """The facts with other values than the wanted ones, in words."""

  def same(known: Any, value: Any) -> bool:
    if isinstance(value, str) and value.startswith("~"):
      return value[1:] in str(known).lower()
    return known in value if isinstance(value, tuple) else known == value

  return [f"{name}={facts.get(name)!r}, not {of!r}" for name, of in wanted.items() if not same(facts.get(name), of)]


def foreign(paper: Paper, one: Evaluation, any_model: bool) -> str:
  """Why an evaluation fills no row."""
  facts = one.facts
  played = f"recipe {facts['recipe']}, preset {facts.get('preset')}"
  what = f"system {facts['system']}" if facts.get("system") else played
  rows = [(row.name, row.run, table) for table in paper.tables for row in table.rows if row.run is not None]
  fitting = [row for row in rows if fits(row[1], facts)]
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
    lacking.setdefault([*_unmet(run, facts), other][0], {})[name] = None
  said = "; ".join(f"{', '.join(names)}: {why}" for why, names in lacking.items())
  return f"{what} fills no row of {paper.name}'s tables. What each row lacks first: {said}."
