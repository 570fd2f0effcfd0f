"""Every metric of a run: name, unit, meaning, and what a bad value means.

A row of metrics.jsonl has no other names: `tests/conftest.py` checks every row that a test's run writes.
docs/metrics.md shows these tables: `python docs/site/metrics.py` writes them there.
"""

import functools
import re
from collections.abc import Iterable, Mapping

from ragrl_jax.core.metrics.declared.measured import HELD_OUT, TIME, WARNINGS
from ragrl_jax.core.metrics.declared.metric import Metric
from ragrl_jax.core.metrics.declared.of_episodes import EPISODES, GROUPS
from ragrl_jax.core.metrics.declared.of_update import UPDATE

TABLES: Mapping[str, tuple[Metric, ...]] = dict(
  episodes=EPISODES, groups=GROUPS, update=UPDATE, time=TIME, held_out=HELD_OUT, warnings=WARNINGS
)
# Prefixes of a table's names in a row of metrics.jsonl; "development/" is the quickstart's.
PREFIXES: Mapping[str, tuple[str, ...]] = dict(held_out=("evaluation/", "development/"), warnings=("warning/",))


def names(table: str) -> list[str]:
  """The names in a table of TABLES, in order, without prefixes."""
  return [name for metric in TABLES[table] for name in metric.names.split()]


def undeclared(written: Iterable[str]) -> list[str]:
  """The names in a row that no table has."""
  return [name for name in written if not _known().fullmatch(name)]


def markdown(table: str) -> str:
  """A table of TABLES as Markdown, without a last column that would be empty."""
  rows = [
    [", ".join(f"`{name}`" for name in one.names.split()), one.unit, one.meaning, one.bad] for one in TABLES[table]
  ]
  heads = ["Name", "Unit", "What it is", "A bad value"]
  if not any(row[-1] for row in rows):
    heads, rows = heads[:-1], [row[:-1] for row in rows]
  return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)) + "\n"


@functools.cache
def _known() -> re.Pattern:
  """Matches every name that a row may contain."""
  part = lambda word: ".+" if word == "…" else "[^/]+" if word.isupper() else re.escape(word)
  found = []
  for table in TABLES:
    prefix = f"(?:{'|'.join(PREFIXES.get(table, ('',)))})"
    found += [prefix + "/".join(map(part, name.split("/"))) for name in names(table)]
  return re.compile("|".join(found))
