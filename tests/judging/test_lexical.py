"""Judges without a model."""

import pytest

from ragrl_jax.judging import api, lexical


@pytest.mark.parametrize(
  "premise,claim,share",
  [
    ("The Rhine passes Basel and Cologne.", "So the Rhine flows through COLOGNE", 2 / 3),  # rhine, flows, cologne
    ("Basel Basel", "basel", 1.0),
    ("Basel", "basel basel bern", 0.5),  # distinct words: a repeated one earns nothing
    ("", "basel", 0.0),
    ("What is it and how?", "what is it, and how", 0.0),  # stop words are no evidence
  ],
)
def test_overlap(premise, claim, share):
  assert lexical.overlap(premise, claim) == pytest.approx(share)


def test_copying_pays_and_padding_does_not():
  premise = "The Rhine passes Basel, Strasbourg and Cologne"
  assert lexical.overlap(premise, premise) == 1.0
  assert lexical.overlap(premise, f"{premise} {' '.join(f'w{i}' for i in range(100))}") < 0.1


def test_exact_takes_any_right_answer():
  premise = api.references(["Paris", "the City of Light"])
  answers = ["paris.", "City  of light", "Lyon", "Paris, the City of Light", "the"]
  assert lexical.Exact().judge([(premise, answer) for answer in answers]) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_exact_first_spares_the_other_judge():
  class Other:
    pace, asked = api.Pace(3, 2, 1.0), []

    def describe(self):
      return dict(kind="other")

    def judge(self, pairs):
      self.asked += pairs
      return [None] * len(pairs)

  judge = lexical.ExactFirst(Other())
  assert judge.judge([("a\nb", "B"), ("a", "c")]) == [1.0, None]
  assert judge.judge([("a", "A")]) == [1.0] and judge.judge([]) == []
  assert Other.asked == [("a", "c")] and judge.pace == Other.pace
  assert judge.describe() == dict(kind="other", exact_first=True)
