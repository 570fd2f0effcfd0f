"""Writes the lists of docs/howto/tables.md from ragrl_jax/evaluation/tables: python docs/site/paper_tables.py"""

import pathlib
import re

from ragrl_jax.evaluation.tables import papers
from ragrl_jax.evaluation.tables.layout import Paper

PAGE = pathlib.Path(__file__).parents[1] / "howto" / "tables.md"
LISTS = re.compile(r"(<!-- papers -->\n).*?(<!-- end -->\n)", re.DOTALL)


def written(text: str) -> str:
  """The page with its lists as the papers' files have them."""
  lists = "\n".join(contents(paper) for paper in papers.PAPERS.values())
  return LISTS.sub(lambda found: f"{found[1]}\n{lists}\n{found[2]}", text)


def contents(paper: Paper) -> str:
  """A paper's tables, how many of their rows can be filled, and why the others cannot."""
  lines = [f"### {paper.title}", "", "| Table | Shows | Rows | Rows without a run here |", "|---|---|---|---|"]
  for table in paper.tables:
    why: dict[str, list[str]] = {}
    for row in table.rows:
      if row.run is None:
        why.setdefault(row.why_not, []).append(row.name)
    lacking = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in why.items())
    filled = sum(row.run is not None for row in table.rows)
    lines.append(f"| {table.name} | {table.title} | {filled} of {len(table.rows)} | {lacking} |")
  lines += ["", "Not among these:", "", *(f"- {name}: {reason}." for name, reason in paper.others.items())]
  return "\n".join([*lines, "", f"Published numbers: {paper.source}.", ""])


if __name__ == "__main__":
  PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
