"""Reads the papers' tables: published numbers, columns, and the run of each row, from a TOML file per paper.

NAME.toml has `title`, `source`, `others`, `data` and `judge` of `Paper`; `sets`, name of a set → heading; and

  tables."NAME: TITLE"  `scale`, `digits` and `transposed` of `Table`; `rows` and `against` as in the function `rows`;
                        and the columns. `like` names a part of `columns` whose settings it has, too, and all have
                        those of `every_table`.
  runs.NAME             the fields of `Run`, with flags in one text; or the reason why no run fills the row. `like` is a
                        run whose fields it has, too. `runs_of` names a paper whose runs and texts this one has, too.
  texts.NAME            replaces {NAME} in runs and columns, as {model} and {hub} (its name there) do in runs.

The columns are the `measures`, which may have headings ({heading: measure}), on the `sets`, by default all; with
`where`, `flags`, `data` and `made` of `Column`, in which {set}, {head} and {questions} are the set's. `each` ({NAME:
values}) makes a column for every value, and then `head` is its heading; `quadrants` are the shares of questions that
both runs, only the first, only the second, and no run answer right, and name the two in the middle; `average` is the
heading of the mean over the sets. `groups` are several such settings, one after the other.
"""

import itertools
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.tables.layout import MODELS, SETS, Column, Paper, Row, Run, Table

NOT_PRINTED = ("/", "-", "–")  # cells without a number in papers; also our mark for a number that the text lacks
Given = Mapping[str, Any]


def paper(name: str) -> Paper:
  """The paper of NAME.toml beside this file."""
  file = _file(name)
  if "runs_of" in file:
    other = _file(file["runs_of"])
    file |= {part: other[part] | file[part] for part in ("runs", "texts")}
  tables = []
  for heading, own in file["tables"].items():
    given = file["every_table"] | file.get("columns", {}).get(own.get("like"), {}) | own
    found = columns(given, file["sets"], file["texts"])
    made = rows(given["rows"], file["runs"], file["texts"], given.get("against", ""))
    more = {key: given[key] for key in ("scale", "digits", "transposed") if key in given}
    tables.append(Table(*heading.split(": ", 1), found, made, **more))
  more = {key: file[key] for key in ("data", "judge") if key in file}
  return Paper(name, file["title"], tuple(tables), file["others"], file["source"], **more)


def columns(given: Given, heads: Mapping[str, str], texts: Given) -> tuple[Column, ...]:
  """The columns of a table's settings, for sets with these headings."""
  if "groups" in given:
    return tuple(one for group in given["groups"] for one in columns(group, heads, texts))
  sets, measures = given.get("sets", [*heads]), given["measures"]
  headed = measures.items() if isinstance(measures, dict) else [(given.get("head", "{head}"), one) for one in measures]
  ((variable, values),) = given.get("each", {"": [""]}).items()
  kinds: list[dict[str, Any]] = [{}]
  if "quadrants" in given:
    rights = itertools.product((True, False), repeat=2)
    kinds = [dict(head=f"{{head}}, {kind}", both=both) for kind, both in zip(given["quadrants"], rights)]
  own = {key: given[key] for key in ("where", "flags", "data", "made") if key in given}
  result = []
  for name, value, (head, measure), kind in itertools.product(sets, values, headed, kinds):
    of_set = {"set": name, "head": heads.get(name), "questions": SETS[name]["questions"], variable: value}
    result.append(_made(Column, dict(head=head, measure=measure, sets=[name], **own) | kind, texts | of_set))
  if given.get("average"):
    result += [_made(Column, dict(head=given["average"], measure=one, sets=sets, **own), texts) for one in measures]
  return tuple(result)


def rows(text: str, runs: Given, texts: Given, against: str = "") -> tuple[Row, ...]:
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
    own = dict(word.split("=") for word in words if "=" in word)
    model = next((word for word in words if "=" not in word), "")
    run, versus = (_run(one, model, runs, texts) if one else None for one in (kind, own.pop("versus", "")))
    printed = tuple(None if word in NOT_PRINTED else word for word in numbers.replace("|", " ").split())
    filling = dict(why_not=run) if isinstance(run, str) else dict(run=run, versus=versus)
    base = base or (against if against != name else "")
    result.append(Row(name, printed, against=base, section=section, **filling, **own))
  return tuple(result)


def _run(name: str, model: str, runs: Given, texts: Given) -> Any:
  """The run of this name with a model; a reason as it is."""
  if isinstance(runs[name], str):
    return runs[name]
  own = _inherited(name, runs) | dict(model=model)
  if "reads" in own:
    own["reads"] = _run(own["reads"], model, runs, texts)
  return _made(Run, own, texts | dict(model=model, hub=MODELS.get(model, {}).get("hub", "")))


def _inherited(name: str, runs: Given) -> dict[str, Any]:
  """The fields of a run with those of the run that it is like; their facts are joined."""
  own = dict(runs[name])
  if "like" not in own:
    return own
  base = _inherited(own.pop("like"), runs)
  return base | own | dict(where=base.get("where", {}) | own.get("where", {}))


def _made(kind: type, given: Given, texts: Given) -> Any:
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
    return None if value == "-" else re.sub(r"{(\w+)}", lambda found: str(filled(texts[found[1]])), value)

  split = lambda name, value: tuple(value.split()) if name.endswith(("flags", "needs")) else value
  return kind(**{name: split(name, filled(value)) for name, value in given.items()})


def _file(name: str) -> dict[str, Any]:
  return tomllib.loads(pathlib.Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


PAPERS: Mapping[str, Paper] = {
  name: paper(name) for name in ("arena", "care", "veritas", "lear", "when_to_search", "search_r1")
}
