"""Reads the papers' tables: published numbers, columns, and the run of each row, from a TOML file per paper.

NAME.toml has `title`, `source`, `others`, `data` and `judge` of `Paper`; `sets`, name of a set → heading; and

  tables."NAME: TITLE"  `scale`, `digits` and `transposed` of `Table`; `rows` and `against` as in the function `rows`;
                        and the columns. It has the settings of `every_table`, too, and of the `columns` it is `like`.
  runs.NAME             the fields of `Run`, with flags in one text; or the reason why no run fills the row. `like` is a
                        run whose fields it has, too. `runs_of` names a paper whose runs and texts this one has, too.
  texts.NAME            replaces {NAME} in runs and columns, as {model} and {hub} (its name there) do in runs.

The columns are the `measures`, which may have headings ({heading: measure}), on the `sets`, by default all; with
`where`, `flags`, `data`, `made` and `both` of `Column`, in which {set}, {head} and {questions} are the set's. A column
is made for each of the texts `each`; then `head` is its heading. `average` is the heading of the mean over the sets.
`groups` are several such settings, one after the other.
"""

import itertools
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.records import MODELS, SETS
from ragrl_jax.evaluation.tables.layout import Column, Paper, Row, Run, Table

NOT_PRINTED = ("/", "-", "–")  # cells without a number in papers; also our mark for a number that the text lacks
Settings = Mapping[str, Any]


def paper(name: str) -> Paper:
  """The paper of NAME.toml beside this file."""
  file = _file(name)
  if "runs_of" in file:
    other = _file(file["runs_of"])
    file |= {part: other[part] | file[part] for part in ("runs", "texts")}
  tables = []
  for heading, table_settings in file["tables"].items():
    settings = file["every_table"] | _inherited(table_settings, file.get("columns", {}))
    parts = (
      columns(settings, file["sets"], file["texts"]),
      rows(settings["rows"], file["runs"], file["texts"], settings.get("against", "")),
    )
    tables.append(Table(*heading.split(": ", 1), *parts, **_named(settings, "scale", "digits", "transposed")))
  return Paper(name, file["title"], tuple(tables), file["others"], file["source"], **_named(file, "data", "judge"))


def columns(settings: Settings, heads: Mapping[str, str], texts: Settings) -> tuple[Column, ...]:
  """The columns of a table's settings, for sets with these headings."""
  if "groups" in settings:
    return tuple(one for group in settings["groups"] for one in columns(group, heads, texts))
  sets, measures, head = settings.get("sets", [*heads]), settings["measures"], settings.get("head", "{head}")
  pairs = measures.items() if isinstance(measures, dict) else [(head, one) for one in measures]
  own = _named(settings, "where", "flags", "data", "made", "both")
  result = []
  for name, values, (head, measure) in itertools.product(sets, settings.get("each", [{}]), pairs):
    of_set = {"set": name, "head": heads.get(name), "questions": SETS[name]["questions"], **values}
    result.append(_make(Column, dict(head=head, measure=measure, sets=[name], **own), texts | of_set))
  if settings.get("average"):
    result += [_make(Column, dict(head=settings["average"], measure=one, sets=sets, **own), texts) for one in measures]
  return tuple(result)


def rows(text: str, runs: Settings, texts: Settings, against: str = "") -> tuple[Row, ...]:
  """The rows of a table, a line each: NAME | RUN MODEL versus=RUN measure=MEASURE against ROW | NUMBERS.

  All but name, run and numbers may be left out; "# HEADING" begins a section, and a "|" between numbers means nothing.
  All rows that name no other one are compared with the row `against`.
  """
  result, section = [], ""
  for line in text.strip().splitlines():
    if line.startswith("# "):
      section = line[2:].strip()
      continue
    name, filled, numbers = (part.strip() for part in line.split("|", 2))
    filled, _, base = filled.partition(" against ")
    kind, *words = filled.split()
    options = dict(word.split("=") for word in words if "=" in word)
    model = next((word for word in words if "=" not in word), "")
    run, versus = (_run(one, model, runs, texts) if one else None for one in (kind, options.pop("versus", "")))
    printed = tuple(None if word in NOT_PRINTED else word for word in numbers.replace("|", " ").split())
    filling = dict(why_not=run) if isinstance(run, str) else dict(run=run, versus=versus)
    base = base or (against if against != name else "")
    result.append(Row(name, printed, against=base, section=section, **filling, **options))
  return tuple(result)


def _run(name: str, model: str, runs: Settings, texts: Settings) -> Any:
  """The run of this name with a model; a reason as it is."""
  if isinstance(runs[name], str):
    return runs[name]
  settings = _inherited(runs[name], runs) | dict(model=model)
  if "reads" in settings:
    settings["reads"] = _run(settings["reads"], model, runs, texts)
  return _make(Run, settings, texts | dict(model=model, hub=MODELS.get(model, {}).get("hub", "")))


def _inherited(settings: Settings, others: Settings) -> dict[str, Any]:
  """Settings with those of the one that they are like; their facts are joined."""
  base = _inherited(others[settings["like"]], others) if "like" in settings else {}
  return {**base, **settings, "where": base.get("where", {}) | settings.get("where", {})}


def _make(kind: type, settings: Settings, texts: Settings) -> Any:
  """The `Run` or `Column` of these fields. A list becomes a tuple, and a dash None: a fact that is not there."""

  def filled(value: Any) -> Any:
    if isinstance(value, dict):
      return {name: filled(one) for name, one in value.items()}
    if isinstance(value, list):
      return tuple(map(filled, value))
    if not isinstance(value, str):
      return value
    if value[:1] == "{" and value[1:-1] in texts:  # not in a text: a number stays one
      return filled(texts[value[1:-1]])
    return None if value == "-" else re.sub(r"{(\w+)}", lambda match: str(filled(texts[match[1]])), value)

  split = lambda name, value: tuple(value.split()) if name.endswith(("flags", "needs")) else value
  return kind(**{name: split(name, filled(value)) for name, value in settings.items() if name != "like"})


def _named(settings: Settings, *names: str) -> dict[str, Any]:
  return {name: settings[name] for name in names if name in settings}


def _file(name: str) -> dict[str, Any]:
  return tomllib.loads(pathlib.Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


_NAMES = ("arena", "care", "veritas", "lear", "when_to_search", "search_r1")
PAPERS: Mapping[str, Paper] = {name: paper(name) for name in _NAMES}
