"""The judge behind HTTP, against a scripted server on a real socket."""

import threading
import time

import pytest
from scripted_server import completion, serving

from ragrl_jax.judging import api, llm
from ragrl_jax.judging.cache import Cached


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
  monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def judge(endpoint, **changed):
  quick = dict(model="m", prompt="information_think", timeout_s=5.0, retries=2, concurrency=4, backoff_s=0.01)
  return llm.LLM(endpoint=endpoint, **quick | changed)


def test_verdicts_come_in_order_and_the_key_is_sent_but_never_shown(monkeypatch):
  monkeypatch.setenv("JUDGE_KEY", "s3cret")
  with serving(lambda messages, n: "1" if "good" in messages[-1]["content"] else "0") as (endpoint, server):
    made = judge(endpoint, key_variable="JUDGE_KEY")
    pairs = [("p", f"{'good' if i % 3 else 'bad'} {i}") for i in range(9)]
    assert made.judge(pairs) == [float(bool(i % 3)) for i in range(9)]
  assert server.keys == ["Bearer s3cret"] * 9
  assert {(body["model"], body["temperature"]) for body in server.asked} == {("m", 0.0)}
  assert "s3cret" not in str(made.describe()) and "s3cret" not in str(vars(made))


def test_errors_that_may_pass_are_asked_again():
  script = [500, 429, "1"]
  with serving(lambda messages, n: script[n - 1]) as (endpoint, server):
    assert judge(endpoint).judge([("p", "c")]) == [1.0]
  assert len(server.asked) == 3


@pytest.mark.parametrize("reply", [b"{no json", b'"text"', {"choices": []}, {"choices": [{"message": None}]}, {},
                                   {"choices": [{"message": {"content": None}}]}, {"choices": "x"}])
def test_replies_that_are_no_completion_are_asked_again(reply):
  with serving(lambda messages, n: reply if n == 1 else "0") as (endpoint, server):
    assert judge(endpoint).judge([("p", "c")]) == [0.0]
  assert len(server.asked) == 2


def test_a_refusal_is_final():
  with serving(lambda messages, n: 401) as (endpoint, server):
    with pytest.raises(api.JudgeFailed, match="status 401.*so it goes.*config.judge"):
      judge(endpoint).judge([("p", "c")])
  assert len(server.asked) == 1


def test_an_answer_that_cannot_be_read_is_none_and_not_asked_for_again():
  with serving(lambda messages, n: "It depends.") as (endpoint, server):
    assert judge(endpoint).judge([("p", "c")]) == [None]
  assert len(server.asked) == 1


def test_a_slow_server_is_given_up_within_the_deadline():
  with serving(lambda messages, n: (1.5, "1")) as (endpoint, server):
    began = time.monotonic()
    with pytest.raises(api.JudgeFailed, match="Timeout"):
      judge(endpoint, timeout_s=0.2, retries=2).judge([("p", "c")])
    assert time.monotonic() - began < 1.5
  assert 1 <= len(server.asked) <= 3


def test_nobody_there():
  with pytest.raises(api.JudgeFailed, match="after 2 calls.*Connection"):
    judge("http://127.0.0.1:9/v1", retries=1).judge([("p", "c")])


def test_a_failure_names_its_pairs_and_hands_over_the_others():
  with serving(lambda messages, n: 400 if "bad" in messages[-1]["content"] else "1") as (endpoint, _):
    with pytest.raises(api.JudgeFailed) as failure:
      judge(endpoint).judge([("p", "good"), ("p", "bad"), ("p", "")])
  assert failure.value.queries == (("p", "bad"),) and failure.value.answered == {("p", "good"): 1.0}


def test_never_more_calls_at_a_time_than_allowed():
  with serving(lambda messages, n: (0.3, "1")) as (endpoint, server):
    made = judge(endpoint, concurrency=3)
    threads = [threading.Thread(target=made.judge, args=([("p", f"{t} {i}") for i in range(4)],)) for t in range(3)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert len(server.asked) == 12 and server.most == 3


def test_what_is_kept_is_not_asked_for_again(tmp_path):
  script = {"a": "1", "b": 400, "?": "well"}
  with serving(lambda messages, n: script[messages[-1]["content"].split("<think>\n")[1][0]]) as (endpoint, server):
    made = Cached(judge(endpoint), tmp_path / "verdicts")
    with pytest.raises(api.JudgeFailed):
      made.judge([("p", "a"), ("p", "b")])
    assert made.judge([("p", "a")]) == [1.0] and len(server.asked) == 2  # what was answered beside a failure is kept
    assert made.judge([("p", "?")]) == made.judge([("p", "?")]) == [None]
    assert len(server.asked) == 4  # what was not answered is asked again
    assert Cached(judge(endpoint), tmp_path / "verdicts").judge([("p", "a")]) == [1.0] and len(server.asked) == 4
    other = Cached(judge(endpoint, model="another"), tmp_path / "verdicts")
    assert other.judge([("p", "a")]) == [1.0] and len(server.asked) == 5


@pytest.mark.parametrize("wrong,message", [
  (dict(model=""), "judge.model"), (dict(endpoint="host/v1"), "http"), (dict(endpoint="", key_variable="NOPE"), "key"),
  (dict(timeout_s=0.0), "positive"), (dict(retries=-1), "retries"), (dict(concurrency=0), "concurrency"),
  (dict(prompt="?"), "judge prompt")])
def test_settings_it_cannot_work_with(wrong, message):
  with pytest.raises(ValueError, match=message):
    judge(**dict(endpoint="http://127.0.0.1:9/v1") | wrong)


def test_the_scripted_server_speaks_the_protocol():
  assert completion("x")["choices"][0]["message"]["content"] == "x"
