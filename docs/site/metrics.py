"""Writes the tables of docs/metrics.md from ragrl_jax/core/metrics/declared: python docs/site/metrics.py"""

import pathlib
import re

from ragrl_jax.core.metrics import declared

PAGE = pathlib.Path(__file__).parents[1] / "metrics.md"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def written(text: str) -> str:
  """The page with its tables as they are declared."""
  return TABLE.sub(lambda found: f"{found[1]}\n{declared.markdown(found[2])}\n{found[3]}", text)


if __name__ == "__main__":
  PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
