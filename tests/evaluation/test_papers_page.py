"""The papers' table states the result of every claim that was run, and says which were not run."""

import dataclasses

import care
import page
import pytest
from miniature import Claim, Side


def rows(*values):
  """{(paper, arm, seed): row} from values (with, without), one pair per seed."""
  return {
    ("care", arm, seed): dict(
      paper="care",
      arm=arm,
      seed=seed,
      seconds=1.0,
      commit="c",
      curve={"0": dict(em=0.1), "4": dict(em=value)},
      reached=dict(held_out=dict(em=value)),
    )
    for seed, pair in enumerate(values)
    for arm, value in zip(("paper", "easy_only"), pair)
  }


@pytest.mark.parametrize(
  "claim, agree",
  [(dict(), 2), (dict(lower=True), 1), (dict(least=0.2), 1), (dict(least=-0.1), 3), (dict(lower=True, least=0.1), 1)],
)
def test_agreement(claim, agree):
  made = Claim("em", Side("paper", "em"), Side("easy_only", "em"), **claim)
  found = page.judged(care.PAPER, made, rows((0.5, 0.2), (0.5, 0.4), (0.4, 0.5)))
  assert (found["agree"], found["n"]) == (agree, 3)
  assert found["side"] == pytest.approx(1.4 / 3) and found["interval"][0] <= 0.1 <= found["interval"][1]


def test_claims_without_runs_are_marked():
  claims = (
    Claim("a", Side("paper", "em", step=4), Side("paper", "em", step=0)),
    Claim("b", Side("paper", "em"), 0.9),
    Claim("c", Side("paper", "em"), Side("no_retrieval", "em")),
  )
  paper = dataclasses.replace(care.PAPER, claims=claims)
  a, b, c = page.tables(dict(care=paper), rows((0.5, 0.2))).splitlines()[2:]
  assert a == "| care | a | 0.500 | 0.100 | one seed | 1 of 1 | yes |"
  assert b.endswith("| 0 of 1 | no |") and c == "| care | c | | | | not run | |"
