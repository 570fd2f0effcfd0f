"""The metrics that docs/metrics.md explains. Rows of metrics.jsonl have no others: conftest.py checks every run's."""

import functools
import pathlib
import re
from collections.abc import Iterable

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"
TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
# Prefixes of a table's names in a row of metrics.jsonl; "development/" is the quickstart's.
PREFIXES = dict(held_out=("evaluation/", "development/"), warnings=("warning/",), detectors=("warning/",))


def table(page: str) -> list[list[str]]:
  """The rows of a Markdown table: the cells of each, without the head."""
  lines = [line.strip().strip("|") for line in page.splitlines() if line.startswith("|")]
  return [[cell.strip() for cell in line.split(" | ")] for line in lines[2:]]


TABLES = {name: table(body) for name, body in TABLE.findall(PAGE.read_text(encoding="utf-8"))}


def names(name: str) -> list[str]:
  """The metrics of a table, in order, without prefixes. Capitals stand for any name, "…" for any continuation."""
  return [metric for row in TABLES[name] for metric in re.findall("`([^`]+)`", row[0])]


def undeclared(written: Iterable[str]) -> list[str]:
  """The names in a row that no table has."""
  return [name for name in written if not _known().fullmatch(name)]


@functools.cache
def _known() -> re.Pattern:
  part = lambda word: ".+" if word == "…" else "[^/]+" if word.isupper() else re.escape(word)
  found = []
  for name in TABLES:
    prefix = f"(?:{'|'.join(PREFIXES.get(name, ('',)))})"
    found += [prefix + "/".join(map(part, metric.split("/"))) for metric in names(name)]
  return re.compile("|".join(found))
