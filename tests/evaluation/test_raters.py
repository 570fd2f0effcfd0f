import csv
import random

import numpy as np
import pytest
from refusals import refused

from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation import raters


def test_agreement_of_judges_by_hand():
  # Pairs 1 to 4: labels 111, 110, 000, 100. P_i = 1, 1/3, 1, 1/3, mean 2/3; p_1 = 6/12: κ = (2/3 - 1/2) / (1/2) = 1/3.
  labels = ("1110", "1100", "1000")  # as the judges say them, pairs 1, 2, 4, 3; two more pairs are one judge's alone
  judges = {name: dict(zip("abcd", said)) for name, said in zip("XYZ", labels)}
  judges["X"] |= dict(e="1", f="0")
  found = raters.agreement(judges)
  assert (found["n"], found["left_out"]) == (4, 2) and found["shares"]["X"] == {"0": 0.25, "1": 0.75}
  assert (found["agreement"], found["fleiss_kappa"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
  # X and Y: 3 of 4 agree, by chance 3/4 · 1/2 + 1/4 · 1/2 = 1/2: κ = 1/2. X and Z: 1/2, by chance 3/8: κ = 1/5.
  cohen = {name: of["cohen_kappa"] for name, of in found["pairs"].items()}
  assert cohen == {"X, Y": pytest.approx(1 / 2), "X, Z": pytest.approx(1 / 5), "Y, Z": pytest.approx(1 / 2)}
  for wrong in ({}, dict(x=judges["X"]), dict(x=dict(a="1"), y=dict(b="1"))):
    refused("in common", raters.agreement, wrong)


def test_the_coefficients_are_those_of_stats():
  draw = random.Random(0)
  for count in (2, 3, 5):
    judges = {str(j): {i: draw.choice("0012") for i in range(30)} for j in range(count)}
    found, of = raters.agreement(judges), list(judges.values())
    counts = [[sum(judge[i] == label for judge in of) for label in "012"] for i in range(30)]
    assert found["fleiss_kappa"] == pytest.approx(stats.fleiss_kappas(counts, np.ones((1, len(counts))))[0])
    for pair, numbers in found["pairs"].items():
      a, b = (list(judges[name].values()) for name in pair.split(", "))
      assert numbers["cohen_kappa"] == pytest.approx(stats.cohen_kappa(a, b))


def test_intervals_hold_the_value_and_shrink():
  said = lambda n: {"x": {i: str(i % 2) for i in range(n)}, "y": {i: str(int(i % 2 and i % 10 > 1)) for i in range(n)}}
  width = {}
  for n in (40, 1000):
    found = raters.agreement(said(n))
    (of,) = found["pairs"].values()
    # 9 of 10 agree; p_1 is 1/2 and 4/10, so that κ = (.9 - .5) / .5 = .8.
    assert of["cohen_kappa"] == pytest.approx(0.8) and of["agreement"] == pytest.approx(0.9)
    low, high = of["cohen_kappa_interval"]
    assert low < 0.8 < high
    width[n] = high - low
  # The agreement of 1,000 items: .9 ± 1.96 · sqrt(.9 · .1 / 1000) = ± .0186.
  low, high = raters.agreement(said(1000))["agreement_interval"]
  assert (low, high) == (pytest.approx(0.8814, abs=0.002), pytest.approx(0.9186, abs=0.002))
  assert width[1000] < width[40] / 3
  alike = raters.agreement({"x": dict(a="1", b="0"), "y": dict(a="1", b="0")})
  assert alike["fleiss_kappa_interval"] == [1.0, 1.0] == alike["agreement_interval"]


def test_a_sheet_has_no_formulas_and_gives_its_texts_back(tmp_path):
  path, texts = tmp_path / "sheet.csv", ["- a list", "=1+1", "'=x", "+49", "@a", "'a", "a - b"]
  raters.write_sheet(path, [(f"={text}", (text, "a\n=b")) for text in texts])
  with open(path, encoding="utf-8-sig", newline="") as file:
    rows = list(csv.reader(file))
  assert [row[1] for row in rows[1:]] == ["'- a list", "'=1+1", "''=x", "'+49", "'@a", "'a", "a - b"]
  with open(path, "w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows([rows[0], *([*row[:3], "1"] for row in rows[1:])])
  labelled = raters.labelled_by_hand(path)
  assert [(pair.id, pair.passages[0].text) for pair in labelled] == [(f"={text}", text) for text in texts]


def test_a_sheet_goes_to_a_person_and_comes_back(tmp_path):
  pairs = [("q1/0", ('Doc 1(Title: "A, B")\n=x', "a\nthought")), ("q1/1", ("é", "b")), ("q2/2", ("c", "c"))]
  path = tmp_path / "sheet.csv"
  raters.write_sheet(path, pairs)
  assert raters.read_sheet(path) == {}  # nobody has labelled it
  with open(path, encoding="utf-8-sig", newline="") as file:
    rows = list(csv.reader(file))
  assert [row[0] for row in rows] == ["id", "q1/0", "q1/1", "q2/2"] and all(not row[3] for row in rows[1:])
  rows[1][1:] = [rows[1][1].replace("\n", "  "), rows[1][2], " 1 "]  # as a spreadsheet saves it
  rows[2][3] = "0"
  with open(path, "w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows(rows)
  labels = raters.read_sheet(path)
  assert labels == {raters.same(*pairs[0][1]): "1", ("é", "b"): "0"}
  with open(path, "w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows([rows[0], [*rows[2][:3], "yes"]])
  refused(r"sheet\.csv:2: the label 'yes' must be 1, 0 or empty", raters.read_sheet, path)
  head, long = "id;premise;claim;label\n", "x" * 200_000
  path.write_text(f"{head}1;{long};b;1\n")  # a spreadsheet of a country with decimal commas
  assert raters.read_sheet(path) == {(long, "b"): "1"}
  for text, why in (
    ("id,claim\n1,b\n", "there is no column 'premise'"), (f"{head}1;Café;b;1\n", "2: not UTF-8.*save it as UTF-8"),
    (f"{head}1;a;b;1\n2;a; b;0\n", "sheet.csv:3: the label is '0', but an earlier row has the other"),
  ):  # fmt: skip
    path.write_text(text, encoding="cp1252")
    refused(why, raters.read_sheet, path)
