"""Reads the published numbers of a paper, and the run of each row, from its TOML file."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.tables.layout import HUB, Column, Paper, Row, Run, Table, columns, quadrants

NOT_PRINTED = ("/", "-", "–")  # cells without a number in papers; also our mark for a number that the text lacks


def paper(name: str, runs: Mapping[str, Run | str], named: Mapping[str, tuple[Column, ...]] | None = None) -> Paper:
  """The paper whose published numbers are in NAME.toml beside this file.

  The file has `title`, `source`, `others` and `data` of `Paper`; `sets`, name in SETS → heading; and `tables`, "NAME:
  TITLE" → a table's `scale`, `digits` and `transposed`, its `rows` and `against` as in the function `rows`, and its
  columns. These are the `measures` on all `sets`, unless the table has its own `sets`, with an `average` under this
  heading; or `quadrants` of one measure and two runs' names; or `columns`, a name in `named`. `every_table` has
  defaults.

  Args:
    name: the paper's name.
    runs: name in the rows → the run without its model, or the reason why no run fills the row.
    named: name in the tables → columns.
  """
  file = tomllib.loads(pathlib.Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
  tables = []
  for table, own in file["tables"].items():
    given = file["every_table"] | own
    found = _columns(given, file.get("sets", {}), named or {})
    made = rows(given.pop("rows"), runs, given.pop("against", ""))
    tables.append(Table(*table.split(": ", 1), found, made, **given))
  return Paper(name, file["title"], tuple(tables), file["others"], file["source"], file.get("data", {}))


def _columns(
  given: dict[str, Any], heads: Mapping[str, str], named: Mapping[str, tuple[Column, ...]]
) -> tuple[Column, ...]:
  """A table's columns, whose keys are taken out of `given`."""
  keys = ("columns", "sets", "measures", "average", "quadrants")
  name, sets, measures, average, halves = (given.pop(key, None) for key in keys)
  if name:
    return named[name]
  heads = {one: heads[one] for one in sets or heads}
  return quadrants(heads, *measures, *halves) if halves else columns(heads, tuple(measures), average=average or "")


def rows(text: str, runs: Mapping[str, Run | str], against: str = "") -> tuple[Row, ...]:
  """The rows of a table, a line each: NAME | RUN MODEL versus=RUN measure=MEASURE against ROW | NUMBERS.

  Args:
    text: the lines. All but name, run and numbers may be left out; "# HEADING" begins a section, and a "|" between
      numbers means nothing.
    runs: RUN → the run without its model, or the reason why no run fills the row.
    against: the row with which all others are compared, unless they name one.

  Raises:
    ValueError: a row's run is not in `runs`.
  """
  found, section = [], ""
  for line in text.strip().splitlines():
    if line.startswith("# "):
      section = line[2:].strip()
      continue
    name, filled, numbers = (part.strip() for part in line.split("|", 2))
    filled, _, base = filled.partition(" against ")
    kind, *words = filled.split()
    model = next((word for word in words if "=" not in word), "")
    own = dict(word.split("=") for word in words if "=" in word)
    if unknown := {kind, own.get("versus", kind)} - runs.keys():
      raise ValueError(f"{name}: {', '.join(unknown)} is none of the runs {', '.join(runs)}.")
    run, versus = (_of_model(runs[one], model) if one else None for one in (kind, own.pop("versus", "")))
    found.append(
      Row(
        name,
        tuple(None if word in NOT_PRINTED else word for word in numbers.replace("|", " ").split()),
        run if isinstance(run, Run) else None,
        why_not=run if isinstance(run, str) else "",
        against=base or (against if against != name else ""),
        section=section,
        versus=versus,
        **own,
      )
    )
  return tuple(found)


def _of_model(run: Run | str, model: str) -> Any:
  """The run of a model, whose name replaces {model} in the run's texts, and {hub} on the hub; a reason as it is."""
  if isinstance(run, str) or not model:
    return run
  texts = {name: getattr(run, name).format(model=model, hub=HUB.get(model, "")) for name in ("transcripts", "made")}
  return dataclasses.replace(run, model=model, reads=run.reads and _of_model(run.reads, model), **texts)
