"""What every judge shares: checks, blank claims, right answers as a premise, thresholds; and the door."""

import pytest

from ragrl_jax import config, judging
from ragrl_jax.judging import api, lexical, verdict_cache


def settings(**changed):
  return config.default_config().judge.to_dict() | changed


def test_each_asks_once_for_what_needs_asking():
  asked = []
  say = lambda pairs: asked.append(pairs) or [float(len(claim)) for _, claim in pairs]
  assert api.each([["p", "ab"], ("p", " \n"), ("p", "a"), ("p", "ab")], say) == [2.0, 0.0, 1.0, 2.0]
  assert asked == [[("p", "ab"), ("p", "a")]]


def test_nothing_to_ask_asks_nobody():
  refuse = lambda pairs: pytest.fail("asked")
  assert api.each([], refuse) == [] and api.each([("p", "")], refuse) == [0.0]


def test_a_judge_that_forgets_a_pair_is_found_out():
  with pytest.raises(ValueError, match="shorter"):
    api.each([("p", "a"), ("p", "b")], lambda pairs: [1.0])


@pytest.mark.parametrize("wrong", ["text", ["ab"], [("a",)], [("a", "b", "c")], [("a", None)], [(1, "b")]])
def test_only_pairs_of_strings(wrong):
  with pytest.raises(ValueError, match="pair"):
    api.checked(wrong)


def test_right_answers_as_a_premise():
  golds = ["Paris", "City of\n Light ", "", "Lutetia"]
  assert api.golds(api.references(golds)) == ["Paris", "City of Light", "Lutetia"]


def test_threshold():
  assert [api.graded(0.5, 0.5), api.graded(0.49, 0.5), api.graded(0.3, 0.0)] == [1.0, 0.0, 0.3]
  with pytest.raises(ValueError, match="config.judge.threshold"):
    api.in_range(1.5)


def test_load_by_kind(tmp_path, monkeypatch):
  assert judging.load(settings()) is None
  assert isinstance(judging.load(settings(kind="exact", cache="unused")), lexical.Exact)
  assert judging.load(settings(kind="lexical", threshold=0.0)).judge([("a fox ran", "fox sat")]) == [0.5]
  monkeypatch.setenv("SOME_KEY", "secret")
  llm = dict(kind="llm", model="m", key_variable="SOME_KEY")
  kept = judging.load(settings(**llm, cache=str(tmp_path / "new" / "verdicts")))
  assert isinstance(kept, verdict_cache.Cached) and (tmp_path / "new" / "verdicts").exists()
  assert isinstance(judging.load(settings(**llm, prompt="correctness")), lexical.ExactFirst)


def test_load_refuses():
  for changed, named in (
    (dict(kind="oracle"), "kind"),
    (dict(prompt="vibes"), "prompt"),
    (dict(kind="nli"), "path"),
    (dict(kind="reward_model"), "path"),
    (dict(kind="llm"), "model"),
  ):
    with pytest.raises(ValueError, match=f"config.judge.{named}"):
      judging.load(settings(**changed))
