"""What all judges share: checks of pairs, blank claims, right answers as a premise, thresholds; and `judging.load`."""

import dataclasses
import types

import pytest
from refusals import refused

from ragrl_jax import judging
from ragrl_jax.judging import judge_api, lexical
from ragrl_jax.settings import Judge as settings

STEPS, LLM = ("information_think", "think_search"), settings(kind="llm", model="m", endpoint="http://localhost:1")


def test_each_asks_once_for_what_needs_asking():
  asked = []
  say = lambda pairs: asked.append(pairs) or [float(len(claim)) for _, claim in pairs]
  assert judge_api.each([["p", "ab"], ("p", " \n"), ("p", "a"), ("p", "ab")], say) == [2.0, 0.0, 1.0, 2.0]
  assert asked == [[("p", "ab"), ("p", "a")]]
  refuse = lambda pairs: pytest.fail("asked")
  assert judge_api.each([], refuse) == [] and judge_api.each([("p", "")], refuse) == [0.0]
  refused("shorter", judge_api.each, [("p", "a"), ("p", "b")], lambda pairs: [1.0])


@pytest.mark.parametrize("wrong", ["text", ["ab"], [("a",)], [("a", "b", "c")], [("a", None)], [(1, "b")]])
def test_only_pairs_of_strings_are_accepted(wrong):
  refused("pair", judge_api.checked, wrong)


def test_right_answers_as_a_premise_and_thresholds():
  golds = ["Paris", "City of\n Light ", "", "Lutetia"]
  assert judge_api.golds(judge_api.references(golds)) == ["Paris", "City of Light", "Lutetia"]
  assert [judge_api.graded(0.5, 0.5), judge_api.graded(0.49, 0.5), judge_api.graded(0.3, 0.0)] == [1.0, 0.0, 0.3]


def test_load_returns_each_kind(tmp_path, monkeypatch):
  assert judging.load(settings()) is None
  assert isinstance(judging.load(settings(kind="exact", cache="unused")), lexical.Exact)
  assert judging.load(settings(kind="lexical", threshold=0.0)).judge([("a fox ran", "fox sat")]) == [0.5]
  monkeypatch.setenv("SOME_KEY", "secret")
  llm = dict(kind="llm", model="m", key_variable="SOME_KEY")
  kept = judging.load(settings(**llm, cache=str(tmp_path / "new" / "verdicts")))
  assert isinstance(kept, judge_api.Cached) and (tmp_path / "new" / "verdicts").exists()
  assert isinstance(judging.load(settings(**llm, prompt="correctness")), lexical.ExactFirst)


def test_a_cache_has_verdicts_of_judges_in_other_dtypes_apart(tmp_path, monkeypatch):
  said = iter([[0.25], [0.75]])
  judge = types.SimpleNamespace(pace=judge_api.Pace(), describe=dict, judge=lambda pairs: next(said))
  monkeypatch.setattr(judging, "_make", lambda *_: judge)
  load = lambda dtype: judging.load(settings(kind="nli", cache=str(tmp_path / "verdicts")), dtype=dtype)
  given = [load(dtype).judge([("p", "c")]) for dtype in ("float32", "bfloat16", "float32", "bfloat16")]
  assert given == [[0.25], [0.75], [0.25], [0.75]]


def test_load_refuses():
  refused("config.judge.prompt", judging.load, settings(prompt="vibes"))
  for kind, named in dict(oracle="kind", nli="path", reward_model="path", llm="model").items():
    refused(f"config.judge.{named}", lambda kind: judging.load(settings(kind=kind)), kind)


def test_the_judge_of_a_step_is_asked_with_the_terms_own_prompt():
  llm = dataclasses.replace(LLM, prompt="correctness")
  of = lambda base, by_term: judging.of_steps(base, by_term, STEPS).items()
  named = lambda base, **by_term: {term: judge.describe()["prompt"] for term, judge in of(base, by_term)}
  assert named(llm) == dict(information_think="information_think", think_search="think_search")
  bare = dict(information_think="information_think_bare", think_search="think_search")
  assert named(dataclasses.replace(llm, prompt="information_think_bare")) == bare
  assert named(llm, information_think=dict(prompt="information_think_bare"), think_search=dict(prompt=None)) == bare
  with pytest.raises(ValueError, match="config.judges.think_search.prompt='answer'.*Use 'think_search'"):
    judging.of_steps(llm, dict(think_search=dict(prompt="answer")), STEPS)
  assert judging.of_steps(settings(), {}, STEPS) == {}


def test_a_wording_belongs_to_its_question(tmp_path):
  mine, other = (f"file:{tmp_path / name}" for name in ("it.txt", "ts.txt"))
  (tmp_path / "it.txt").write_text("Considered? {premise} {claim}", encoding="utf-8")
  (tmp_path / "ts.txt").write_text("Based on? {premise} {claim}", encoding="utf-8")
  llm = dataclasses.replace(LLM, wording=mine)
  terms = (*STEPS, "think_answer")
  used = lambda base, terms=terms, **by_term: {
    term: (its.prompt, its.wording) for term, its in judging.chosen(base, by_term, terms).items()
  }
  # config.judge.wording is that of config.judge.prompt (information_think); the other questions keep their own words.
  own = dict(think_search=("think_search", ""), think_answer=("think_answer", ""))
  assert used(llm) == {"": ("information_think", mine), "information_think": ("information_think", mine), **own}
  assert used(llm, think_search=dict(wording=other))["think_search"] == ("think_search", other)
  assert used(dataclasses.replace(llm, prompt="think_search"))["information_think"] == ("information_think", "")
  assert len({judge.describe()["wording"] for judge in judging.of_terms(llm, {}, terms).values()}) == 3
  # Other terms of a recipe are asked config.judge.prompt, so in its wording.
  assert used(llm, ("helpful",))["helpful"] == ("information_think", mine)

  wordless = dataclasses.replace(llm, wording="")
  for base, some, by_term, named in (
    (llm, ("think_search",), {}, f"config.judge.wording={mine}.*'information_think'.*think_search: llm asks"),
    (llm, terms[:1], dict(information_think=dict(kind="sub_em")), "nothing is asked in it .information_think: sub_em"),
    (wordless, terms, dict(think_answer=dict(kind="nli", wording=other)), "config.judges.think_answer.w"),
    (llm, terms, dict(think_search=dict(prompt="information_think")), "not the question of think_search"),
    (settings(kind="exact"), terms, {}, "compares an answer with right answers, but information_think has"),
    (settings(kind="lexical", wording=mine), (), {}, "config.judge.wording.*config.judge: lexical"),
  ):
    refused(named, judging.chosen, base, by_term, some)


def test_a_folder_has_a_wording_for_each_question(tmp_path):
  for name in STEPS:
    (tmp_path / f"{name}.txt").write_text(f"{name}: {{premise}} {{claim}}", encoding="utf-8")
  llm = dataclasses.replace(LLM, wording=f"file:{tmp_path}")
  judges = judging.of_steps(llm, {}, STEPS)
  said = {term: judge._prompt.messages("P", "C")[0]["content"] for term, judge in judges.items()}
  assert said == dict(information_think="information_think: P C", think_search="think_search: P C")
  refused("think_answer.txt: the file cannot be read", judging.of_steps, llm, {}, ("think_answer",))
  assert judging.of_steps(llm, dict(think_answer=dict(kind="sub_em")), ("think_answer",))  # asks nothing
  (tmp_path / "think-answer.txt").write_text("{premise} {claim}", encoding="utf-8")
  refused("think-answer.txt is named after no question", judging.of_steps, llm, {}, ("think_search",))
