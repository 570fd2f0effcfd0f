"""Judges without a model."""

import pytest

from ragrl_jax.judging import judge_api, lexical

RHINE = "The Rhine passes Basel and Cologne."


@pytest.mark.parametrize("premise,claim,share", [
  # Copying scores, and padding does not: four words of 104.
  (RHINE, RHINE, 1.0), (RHINE, f"{RHINE} {' '.join(f'w{i}' for i in range(100))}", 4 / 104),
  (RHINE, "So the Rhine flows through COLOGNE", 2 / 3),  # rhine, flows, cologne
  ("Basel", "basel basel bern", 0.5),  # distinct words: repetition earns nothing
  ("Basel Basel", "basel", 1.0), ("", "basel", 0.0),
  ("O’Brien’s well–known ｎｏｖｅｌ", "O'Brien's well-known novel", 1.0),
  ("公司位于奥斯陆。", "它位于奥斯陆", 5 / 6), ("โรม", "รม", 1.0),  # no spaces: each sign is a word
  ("What is it and how?", "what is it, and how", 0.0),  # stop words do not count
])  # fmt: skip
def test_overlap(premise, claim, share):
  assert lexical.overlap(premise, claim) == pytest.approx(share)


def test_exact_accepts_any_right_answer():
  premise = judge_api.references(["Paris", "the City of Light"])
  answers = ["paris.", "City  of light", "Lyon", "Paris, the City of Light", "the"]
  assert lexical.Exact().judge([(premise, answer) for answer in answers]) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_exact_first_saves_calls_of_the_other_judge_and_its_matches_survive_a_failure():
  class Other:
    pace, asked = judge_api.Pace(3, 2, 1.0), []

    def describe(self):
      return dict(kind="other")

    def judge(self, pairs):
      self.asked += pairs
      if len(pairs) > 1:
        raise judge_api.JudgeFailed("down", [pairs[0]], {pairs[1]: 1.0})
      return [None] * len(pairs)

  judge = lexical.ExactFirst(Other())
  assert judge.judge([("a\nb", "B"), ("a", "c")]) == [1.0, None]
  assert judge.judge([("a", "A")]) == [1.0] and judge.judge([]) == []
  assert Other.asked == [("a", "c")] and judge.pace == Other.pace
  assert judge.describe() == dict(kind="other", exact_first=True)
  with pytest.raises(judge_api.JudgeFailed) as failed:
    judge.judge([("Rome", "rome"), ("a", "b"), ("c", "d")])
  assert failed.value.answered == {("Rome", "rome"): 1.0, ("c", "d"): 1.0} and failed.value.queries == (("a", "b"),)


def test_exact_matches_do_not_hide_that_the_judge_is_down():
  class Down(judge_api.OfPairs):
    def _verdicts(self, pairs):
      raise judge_api.JudgeFailed("down", pairs)

  with pytest.raises(judge_api.JudgeFailed, match="down"):
    judge_api.verdicts(lexical.ExactFirst(Down()), [("Rome", "rome"), ("a", "b"), ("c", "d")])


def test_sub_em_looks_for_the_answer_in_the_thought():
  pairs = [("Both are Norwegian.", "no"), ("So the answer is No.", "no"), ("Oslo", ""), ("x y", "y x")]
  assert lexical.SubEM().judge(pairs) == [1.0, 1.0, 0.0, 0.0]
  assert lexical.SubEM(words=True).judge(pairs) == [0.0, 1.0, 0.0, 0.0]
  assert lexical.SubEM().describe() != lexical.SubEM(words=True).describe()
