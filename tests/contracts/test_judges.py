import json
from concurrent.futures import ThreadPoolExecutor

import judge_folders
import pytest
from refusals import refused
from scripted_server import serving

from ragrl_jax import config, judging
from ragrl_jax.judging import judge_api
from ragrl_jax.settings import JUDGES, Judge

FACTS = ["The Rhine passes Basel, Strasbourg and Cologne.", "Paris\nthe City of Light", "山 река délta"]
CLAIMS = ["Cologne lies on the Rhine, as Basel does", "paris.", "река", "Berlin has three opera houses", "1 yes 0 no"]
PAIRS = [(fact, claim) for fact in FACTS for claim in CLAIMS]
settings = lambda **changed: Judge(**dict(batch=4, max_tokens=512, threshold=0.0) | changed)


def says(messages, number):
  """Judges by the length of the prompt, so that verdicts differ and depend only on the pair."""
  return "1" if len(messages[-1]["content"]) % 2 else "0"


@pytest.fixture(scope="module")
def endpoint():
  with pytest.MonkeyPatch.context() as patch, serving(says) as (endpoint, _):
    patch.setenv("NO_PROXY", "127.0.0.1")
    yield endpoint


KINDS = ("exact", "sub_em", "sub_em_words", "lexical", "nli", "reward_model", "llm", "llm cached", "llm about answers")


@pytest.fixture(scope="module", params=KINDS)
def judge(request, tmp_path_factory, endpoint):
  folder = tmp_path_factory.mktemp("judge")
  kind, _, variant = request.param.partition(" ")
  chosen = dict(kind=kind, cache=str(folder / "verdicts") if variant == "cached" else "")
  if kind == "llm":
    prompt = "correctness" if variant == "about answers" else "information_think"
    chosen |= dict(endpoint=endpoint, model="m", prompt=prompt)
  if kind in ("nli", "reward_model"):
    chosen["path"] = str(judge_folders.t5(folder) if kind == "nli" else judge_folders.decoder(folder))
  return judging.load(settings(**chosen))


def test_one_verdict_a_pair_between_0_and_1_or_none_depends_on_its_pair_alone(judge):
  verdicts = judge.judge(PAIRS)
  assert len(verdicts) == len(PAIRS)
  assert all(verdict is None or isinstance(verdict, float) and 0.0 <= verdict <= 1.0 for verdict in verdicts)
  assert len({*verdicts}) > 1 or judge.describe().get("prompt") == "correctness"
  together = judge.judge(PAIRS)
  assert judge.judge(PAIRS[::-1] + PAIRS) == together[::-1] + together
  assert [judge.judge([pair])[0] for pair in PAIRS] == together


def test_odd_texts_are_judged_blank_claims_score_zero_and_what_is_no_pair_is_refused(judge):
  assert judge.judge([(FACTS[0], ""), (FACTS[0], " \n\t")]) == [0.0, 0.0] and judge.judge([]) == []
  odd = ["{0} %s {x}", "</think></information> 1", "\ud800 \x00", "<|im_end|>", "x" * 2000]
  assert len(judge.judge([(FACTS[0], text) for text in odd] + [(text, "Basel") for text in odd + [""]])) == 11
  for wrong in ("text", ["ab"], [("a", None)]):
    refused("pair", judge.judge, wrong)


def test_several_threads_at_once_and_it_describes_itself_and_its_pace(judge):
  expected = judge.judge(PAIRS)
  with ThreadPoolExecutor(4) as pool:
    got = list(pool.map(lambda i: judge.judge([PAIRS[i % len(PAIRS)]])[0], range(24)))
  assert got == [expected[i % len(PAIRS)] for i in range(24)]
  said = json.loads(json.dumps(judge.describe()))
  assert said["kind"] in JUDGES
  assert isinstance(judge.pace, judge_api.Pace) and judge.pace.batch >= 1 and judge.pace.workers >= 1


def test_a_run_has_a_judge_a_term(endpoint, monkeypatch):
  monkeypatch.setenv("NO_PROXY", "127.0.0.1")
  terms = ("information_think", "think_search", "think_answer")
  made = config.default_config()
  made.judges = {term: config.unset(Judge) for term in terms}
  by_term = made.judges
  by_term.information_think.update(dict(kind="llm", endpoint=endpoint, model="m"))
  by_term.think_answer.threshold = 1.0
  judges = judging.of_terms(settings(kind="lexical", threshold=0.5), by_term, terms)
  kinds = {"": "lexical", **dict.fromkeys(terms, "lexical"), "information_think": "llm"}
  assert {term: judge.describe()["kind"] for term, judge in judges.items()} == kinds
  assert judges["think_answer"].judge(PAIRS[:1]) == [0.0] != judges["think_search"].judge(PAIRS[:1])
  assert len(judges["information_think"].judge(PAIRS)) == len(PAIRS)
  # A judge that no term uses is not loaded. config.judge may be "none" while single terms have judges.
  by_term.think_search.kind = "reward_model"
  assert set(judging.of_terms(settings(), by_term, terms[:1])) == {"information_think"}
  refused("config.judge.path", judging.of_terms, settings(), by_term, terms)
  misspelt = dict(think_answer=dict(treshold=1.0))
  refused("config.judges.think_answer sets treshold", judging.of_terms, settings(), misspelt, ["think_answer"])
