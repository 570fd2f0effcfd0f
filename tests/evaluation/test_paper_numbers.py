"""The papers' numbers, against a second reading."""

import hashlib

import pytest

from ragrl_jax.evaluation.tables import filling, papers, writing

# A second reading of one table a paper, by columns; each number as printed.
SECOND = {
  ("arena", "Table 4"): ["0.568 0.598 0.628", "0.711 0.741 0.762", "0.764 0.796 0.812", "0.642 0.578 0.660",
    "0.732 0.671 0.752", "0.734 0.680 0.774", "0.394 0.404 0.400", "0.504 0.519 0.520", "0.486 0.478 0.508"],
  ("care", "Table 3"): ["46.64 42.24 37.66 38.33 48.11", "58.47 47.08 62.59 64.10 63.45",
    "46.96 61.51 70.57 70.69 70.11", "30.78 33.82 43.85 47.49 45.57", "58.38 59.21 57.26 60.60 64.56",
    "48.25 48.77 54.39 56.24 58.36"],
  ("veritas", "Table 3, Info-Think"): ["0.762 0.429 0.933 0.795 0.929", "0.745 0.534 0.821 0.778 0.811",
    "0.695 0.452 0.819 0.792 0.820", "0.614 0.364 0.718 0.698 0.712", "0.349 0.190 0.354 0.332 0.356",
    "0.442 0.256 0.490 0.452 0.489", "0.651 0.317 0.744 0.717 0.732", "0.608 0.363 0.697 0.652 0.693"],
  ("lear", "Table 6"): ["39.89 40.27 39.53 40.02 40.44 41.14", "56.97 57.38 56.17 57.31 57.26 56.84",
    "20.30 19.73 20.13 20.34 20.23 20.46", "38.72 39.13 38.61 39.22 39.31 39.48"],
  ("when_to_search", "Table 4"): ["0.57 0.57 0.36 0.55 0.48", "1.07 1.33 0.12 1.71 2.02", "0.54 0.53 0.25 0.54 0.52",
    "1.06 1.14 0.31 1.72 1.93", "0.83 0.81 0.65 0.81 0.69", "1.03 1.14 0.61 1.23 2.03", "0.55 0.52 0.31 0.53 0.55",
    "1.11 1.21 0.48 1.75 2.09", "0.24 0.22 0.14 0.23 0.19", "1.25 1.34 0.23 2.33 2.48", "0.61 0.54 0.34 0.57 0.54",
    "1.33 1.44 0.39 2.52 1.93", "0.61 0.59 0.40 0.59 0.38", "1.14 1.19 0.31 1.49 1.96"],
  ("search_r1", "Table 7"): ["0.426 0.480 0.479", "0.614 0.638 0.634", "0.422 0.457 0.440", "0.393 0.433 0.394",
    "0.296 0.382 0.343", "0.146 0.196 0.156", "0.328 0.432 0.352", "0.375 0.431 0.400"],
}  # fmt: skip


@pytest.mark.parametrize("paper,name", SECOND)
def test_published_numbers_against_a_second_reading(paper, name):
  (table,) = [table for table in papers.PAPERS[paper].tables if table.name == name]
  by_column = [" ".join(words) for words in zip(*(row.published for row in table.rows if any(row.published)))]
  assert by_column == SECOND[paper, name]


# Averages that the papers print and that are not the mean of the numbers beside them: copied as they are.
PRINTED = {("veritas", row) for row in ("IRCoT", "ReSearch-7B-Base", "+ Format (Baseline)")}
PRINTED |= {("lear", "Rationale"), ("search_r1", "IRCoT")}


def test_printed_averages_are_means():
  """A digit misread in a row of seven would show in its average."""
  checked = 0
  for paper in papers.PAPERS.values():
    for table in paper.tables:
      if not table.columns[-1].average or len({column.measure for column in table.columns}) > 1:
        continue
      for row in table.rows:
        *words, average = row.published
        if average is not None and all(words) and (paper.name, row.name) not in PRINTED:
          mean = sum(map(float, words)) / len(words)
          digits = len(average.partition(".")[2])
          assert abs(mean - float(average)) <= 1.1 * 10**-digits, f"{paper.name}, {table.name}, {row.name}: {mean}"
          checked += 1
  assert checked > 90


# Paper → (cells, digest) of its tables as CSV without runs, recorded before its rows and columns became data.
PRINTED_TABLES = {
  "arena": (363, "171527b7f9100a1a"), "care": (156, "d793a8b03d9803c2"), "when_to_search": (744, "97bccc8cdc8c0775"),
  "lear": (248, "977d8fdb3c4ea717"), "veritas": (572, "35dbf25695409ac6"), "search_r1": (400, "55e8fb95ab8cf8ed"),
}  # fmt: skip


@pytest.mark.parametrize("name", papers.PAPERS)
def test_every_cell_is_printed_as_recorded(name):
  """A change of a number, row, column, command or reason shows here: compare `ragrl tables --format csv` before it."""
  text = writing.FORMATS["csv"](papers.PAPERS[name], filling.fill(papers.PAPERS[name], []))
  assert (text.count("\n") - 1, hashlib.sha256(text.encode()).hexdigest()[:16]) == PRINTED_TABLES[name]
