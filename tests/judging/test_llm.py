"""The judge over HTTP, against a scripted server on a real socket."""

import asyncio
import base64
import concurrent.futures
import contextlib
import gzip
import json
import socket
import threading
import time

import pytest
from patience import reached
from scripted_server import completion, serving
from starlette.responses import Response

from ragrl_jax.chat import client
from ragrl_jax.judging import judge_api, llm
from ragrl_jax.judging.judge_api import Cached


def judge(endpoint, **changed):
  quick = dict(model="m", prompt="information_think", timeout_s=60.0, retries=2, concurrency=4, backoff_s=0.01)
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


@pytest.mark.parametrize("status, words, quoted", [
  *((status, "so it goes\x1b[31m\n" + "x" * 250 + "end", "so it goes") for status in (400, 401, 403, 404)),
  (401, "you sent s3cret-of-ours", "you sent"),
])  # fmt: skip
def test_a_refusal_is_final_and_its_message_is_quoted_cut_and_escaped(monkeypatch, status, words, quoted):
  monkeypatch.setenv("JUDGE_KEY", "s3cret-of-ours")
  with serving(lambda messages, n: Response(words, status)) as (endpoint, server):
    with pytest.raises(judge_api.JudgeFailed, match=f"status {status}.*{quoted}.*config.judge") as failure:
      judge(endpoint, key_variable="JUDGE_KEY").judge([("p", "c")])
  assert len(server.asked) == 1 and "after 1 call:" in str(failure.value)
  said = str(failure.value)
  assert said.isprintable() and "end" not in said and "s3cret" not in said  # nor is the key


def test_credentials_in_an_address_are_used_and_never_shown():
  with serving(lambda messages, n: "1" if n == 1 else 401) as (endpoint, server):
    made = judge(endpoint.replace("://", "://me:s3cret@"))
    assert made.judge([("p", "c")]) == [1.0] and server.keys == ["Basic " + base64.b64encode(b"me:s3cret").decode()]
    with pytest.raises(judge_api.JudgeFailed) as failure:
      made.judge([("p", "c")])
  assert made.describe()["endpoint"] == endpoint and endpoint in str(failure.value)
  assert "s3cret" not in str(failure.value)
  with pytest.raises(ValueError, match="http://") as refused:
    judge("ftp://me:s3cret@host/v1")
  assert "s3cret" not in str(refused.value)


DEEP, ZIPPED = b"[" * 100_000, gzip.compress(json.dumps(completion("1")).encode(), mtime=0)


def later(said):
  """A refusal for now, with an invalid time of waiting."""
  refusal = Response("later", 429)
  refusal.raw_headers.append((b"retry-after", said))
  return refusal


@pytest.mark.parametrize("reply", [
  b"{no json", b'"text"', {}, {"choices": []}, {"choices": "x"}, {"choices": [[]]}, {"choices": [{"message": None}]},
  {"choices": [{"message": "1"}]}, {"choices": [{"message": {"content": None}}]},
  {"choices": [{"message": {"content": ["1"]}}]}, pytest.param(DEEP, id="deep"),
  # the server has failed within its answer
  *(completion("1", finish_reason=reason) for reason in ("error", "abort", "insufficient_system_resource")),
  pytest.param(b'{"choices": ' + b"9" * 5000 + b"}", id="long integer"), b'{"choices": "\xff\xfe"}',
  pytest.param(b"x" * 3000, id="long"), Response(ZIPPED, headers={"content-encoding": "gzip"}), 500,
  *map(later, [b"\xb2", b"-1", b"nan", b"9" * 400, b"Wed, 21 Oct 2099 07:28:00 GMT"]),
])  # fmt: skip
def test_temporary_errors_and_replies_that_cannot_be_read_are_retried(monkeypatch, reply):
  monkeypatch.setattr(client, "MAX_BYTES", 2000 if reply == b"x" * 3000 else 1 << 20)
  with serving(lambda messages, n: (reply, 429, "0")[n - 1]) as (endpoint, server):
    assert judge(endpoint).judge([("p", "c")]) == [0.0]
  assert len(server.asked) == 3


def test_a_retry_after_beyond_the_deadline_is_not_waited_for():
  with serving(lambda messages, n: Response("later", 429, headers={"retry-after": "86400"})) as (endpoint, server):
    with pytest.raises(judge_api.JudgeFailed, match="status 429: 'later'; the deadline of 180 s is spent"):
      judge(endpoint).judge([("p", "c")])
  assert len(server.asked) == 1


@contextlib.contextmanager
def dribbling(start):
  """A server that sends `start` at once and then a byte every 30 ms, while the client listens."""
  listening, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

  def serve():
    while not over.is_set():
      with contextlib.suppress(OSError):
        talk, _ = listening.accept()
        with talk:
          talk.sendall(start)
          while not over.wait(0.03):
            talk.sendall(b"x")

  thread = threading.Thread(target=serve, daemon=True)
  thread.start()
  try:
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
  finally:
    over.set()
    listening.close()


@pytest.mark.parametrize("start", [b"X-Slow: ", b"Content-Length: 9999999\r\n\r\n"], ids=["headers", "body"])
def test_a_server_that_drips_bytes_is_given_up_within_the_deadline(start):
  with dribbling(b"HTTP/1.1 200 OK\r\n" + start) as endpoint:
    began = time.monotonic()
    # The first call may take the time of both.
    with pytest.raises(judge_api.JudgeFailed, match="after [12] calls?: NoAnswerInTime"):
      judge(endpoint, timeout_s=0.2, retries=1).judge([("p", "c")])
    assert time.monotonic() - began < 100  # it would continue for ever


CUT = [completion("I think 1", finish_reason=reason) for reason in ("length", "model_length", "content_filter")]
THOUGHTS = [
  dict(choices=[dict(finish_reason="length", message=dict(role="assistant", content=None) | {name: "I think 1"})])
  for name in ("reasoning", "reasoning_content")
]


@pytest.mark.parametrize(
  "said,why", [("It depends\n", "'It depends"), *((said, "cut off") for said in (*CUT, *THOUGHTS))]
)
def test_answers_without_a_verdict_are_none_and_not_retried_and_the_first_is_logged(caplog, said, why):
  with serving(lambda messages, n: said) as (endpoint, server):
    assert judge(endpoint).judge([("p", "a"), ("p", "b")]) == [None, None]
  assert len(server.asked) == 2 and len(caplog.records) == 1 and why in caplog.text


def test_a_slow_server_is_given_up_within_the_deadline_and_none_after_the_retries():
  with serving(lambda messages, n: (300.0, "1")) as (endpoint, server):
    began = time.monotonic()
    with pytest.raises(judge_api.JudgeFailed, match="NoAnswerInTime"):
      judge(endpoint, timeout_s=0.2, retries=2).judge([("p", "c")])
    assert time.monotonic() - began < 100
  assert len(server.asked) <= 3
  with pytest.raises(judge_api.JudgeFailed, match="after 2 calls.*Connection"):
    judge("http://127.0.0.1:9/v1", retries=1).judge([("p", "c")])


def test_a_failure_names_its_pairs_and_returns_the_other_verdicts():
  with serving(lambda messages, n: 400 if "bad" in messages[-1]["content"] else "1") as (endpoint, _):
    with pytest.raises(judge_api.JudgeFailed) as failure:
      judge(endpoint).judge([("p", "good"), ("p", "bad"), ("p", "")])
  assert failure.value.queries == (("p", "bad"),) and failure.value.answered == {("p", "good"): 1.0}


def test_calls_at_a_time_are_limited():
  async def three_have_come():
    await reached(lambda: server.most >= 3)
    await asyncio.sleep(0.1)  # for a fourth one

  with serving(lambda messages, n: (three_have_come, "1")) as (endpoint, server):
    made = judge(endpoint, concurrency=3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
      list(pool.map(made.judge, [[("p", f"{t} {i}") for i in range(4)] for t in range(3)]))
  assert len(server.asked) == 12 and server.most == 3


def test_stored_verdicts_are_not_asked_for_again(tmp_path):
  script = {"a": "1", "b": 400, "?": "well"}
  with serving(lambda messages, n: script[messages[-1]["content"].split("<think>\n")[1][0]]) as (endpoint, server):
    made = Cached(judge(endpoint), tmp_path / "verdicts")
    with pytest.raises(judge_api.JudgeFailed):
      made.judge([("p", "a"), ("p", "b")])
    assert made.judge([("p", "a")]) == [1.0] and len(server.asked) == 2  # answers that came before a failure are stored
    assert made.judge([("p", "?")]) == made.judge([("p", "?")]) == [None]
    assert len(server.asked) == 4  # unanswered pairs are asked again
    assert Cached(judge(endpoint), tmp_path / "verdicts").judge([("p", "a")]) == [1.0] and len(server.asked) == 4
    other = Cached(judge(endpoint, model="another"), tmp_path / "verdicts")
    assert other.judge([("p", "a")]) == [1.0] and len(server.asked) == 5


@pytest.mark.parametrize("wrong,message", [
  (dict(model=""), "judge.model"), (dict(endpoint="host/v1"), "http"), (dict(prompt="?"), "judge prompt"),
  (dict(endpoint="", key_variable="NOPE"), "key"),
])  # fmt: skip
def test_invalid_settings_are_refused(wrong, message):
  with pytest.raises(ValueError, match=message):
    judge(**dict(endpoint="http://127.0.0.1:9/v1") | wrong)
