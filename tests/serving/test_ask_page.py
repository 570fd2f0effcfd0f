"""The page's server: events of an answer line by line, agreement, refusals. The page in a browser: test_ask_browser."""

import contextlib
import json
import threading

import asked
from patience import until
from small_server import CLIENT, running

from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.serving import ask_page


@contextlib.contextmanager
def page(texts, *, limits=ask_page.Limits(), count=1, examples=(), **more):  # noqa: B008  (frozen)
  askers = [asked.asker(texts, name=f"out/run {i} <b>", **more) for i in range(count)]
  try:
    with running(ask_page.Application(askers, limits, examples=examples)) as port:
      yield f"http://127.0.0.1:{port}", askers
  finally:
    for asker in askers:
      asker.close()


def in_turn(turn, prompt):
  return asked.SEARCHED[turn] if turn < 2 or b"Danbel" not in bytes(prompt) else ""


def ask(url, **body):
  said = CLIENT.post(f"{url}/ask", json=dict(question="Where was Kormin born?") | body)
  return said.status_code, [json.loads(line) for line in said.text.splitlines()]


def test_the_page_shows_example_questions():
  with page(in_turn, examples=["Who <b>?"]) as (url, _):
    assert 'type="button">Who &lt;b&gt;?</button>' in CLIENT.get(url).text
  with page(in_turn) as (url, _):
    assert "Such as" not in CLIENT.get(url).text


def test_an_answer_is_told_line_by_line():
  with page(in_turn, count=2) as (url, askers):
    for place in (0, 1):
      status, events = ask(url, checkpoint=place)
      assert status == 200 and events[0]["event"] == "prompt" and events[-1]["answer"] == "Tolper"
      assert [e["event"] for e in events].count("answer") == 1 and "agreement" not in str(events)
    assert [len(asker.player.engine.prompts) for asker in askers] == [1, 1]
    _, events = ask(url, earlier=[["Who is a smith?", "Kormin"]], samples=3, seed=5)
    assert events[-1] == dict(event="agreement", answers=[dict(answer="Tolper", count=3, share=1.0)])
    assert {e["sample"] for e in events if e["event"] == "said"} == {0, 1, 2}
    assert b"Earlier question: Who is a smith?\nEarlier answer: Kormin" in bytes(askers[0].player.engine.prompts[-1])


def test_the_page_allows_only_its_own_script_and_escapes_names():
  with page((), count=2) as (url, _):
    said = CLIENT.get(f"{url}/")
  assert said.headers["content-type"] == "text/html; charset=utf-8" and said.headers["x-frame-options"] == "DENY"
  assert "Ask out/run 0 &lt;b&gt; and out/run 1 &lt;b&gt;" in said.text and "out/run 0 <b>" not in said.text
  policy = said.text.partition('Content-Security-Policy" content="')[2].partition('"')[0]
  assert policy.startswith("default-src 'none'") and policy.endswith("connect-src 'self'") and "unsafe" not in policy


def test_refusals():
  limits = ask_page.Limits(max_bytes=2000, longest=100, max_waiting=3, timeout_s=0.5)
  with page(in_turn, limits=limits) as (url, _):
    for body, status, says in (
      *((body, 400, "the body must be") for body in (dict(question=3), dict(earlier=[["one"]]), dict(samples=True))),
      (dict(samples=99), 400, "samples=99"), (dict(checkpoint=1), 400, "checkpoint=1"),
      (dict(question=" "), 400, "the question is empty"), (dict(question="x" * 101), 400, "at most 100"),
      (dict(question="x" * 3000), 413, "2000 bytes"), (dict(samples=5), 429, "ask again later"),
    ):  # fmt: skip
      found, (error,) = ask(url, **body)
      assert (found, says in error["error"]["message"]) == (status, True), error
    assert CLIENT.post(f"{url}/ask", content=b"[").status_code == 400
    assert CLIENT.get(f"{url}/ask").status_code == 405 and CLIENT.get(f"{url}/x").status_code == 404
    assert CLIENT.get(f"{url}/", headers=dict(origin="http://elsewhere")).status_code == 403
    refused = CLIENT.get(f"{url}/", headers=dict(host="elsewhere"))
    assert refused.status_code == 400 and refused.headers["connection"] == "close"


class Broken(asked.Towns):
  """Has a bug."""

  def search(self, queries, k):
    raise KeyError("x")


def test_a_bug_is_logged_and_told():
  with page(in_turn, tools=RetrievalTools(Broken())) as (url, _):
    _, events = ask(url)
  assert events[-1]["error"]["message"] == "the command failed: its output shows the error."


class Slow(asked.Towns):
  """Searches until it is let go."""

  def __init__(self):
    self.searching, self.go = threading.Event(), threading.Event()

  def search(self, queries, k):
    self.searching.set()
    self.go.wait(120)
    return super().search(queries, k)


def test_the_time_limit_ends_an_answer():
  slow, found = Slow(), []
  with page(in_turn, limits=ask_page.Limits(timeout_s=0.3), tools=RetrievalTools(slow)) as (url, _):
    while 200 not in found:  # the limit may pass before the first event; then the status says it too
      status, events = ask(url)
      assert status in (200, 504) and "0.3 s" in events[-1]["error"]["message"]
      found.append(status)
      assert len(found) < 20
    slow.go.set()


def test_a_client_that_leaves_ends_its_answer():
  slow = Slow()
  with page(in_turn, tools=RetrievalTools(slow)) as (url, (asker,)):
    with CLIENT.stream("POST", f"{url}/ask", json=dict(question="Where?")):
      assert slow.searching.wait(120) and asker.player.engine._left
    until(lambda: not asker.thread._turns and not asker.player.engine._left)
    slow.go.set()
    assert ask(url, question="Where was he born?")[0] == 200
