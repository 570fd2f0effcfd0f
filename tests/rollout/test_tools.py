"""Searches collected into batches, deadlines, and failures that name their queries."""

import asyncio
import concurrent.futures
import threading
import time

import numpy as np
import pytest
from patience import until

from ragrl_jax.chat import client
from ragrl_jax.judging import judge_api
from ragrl_jax.retrieval.api import RetrievalFailed
from ragrl_jax.rollout import dispatch
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.structs import Passage, ToolFailed


class Retriever:
  def __init__(self, answer=lambda queries, k: None):
    self.batches, self.answer = [], answer

  def search(self, queries, k):
    self.batches.append((tuple(queries), k))
    given = self.answer(queries, k)
    return [[Passage(q, "", q)] * k for q in queries] if given is None else given


def together(calls):
  """What these calls return or raise, all at once."""

  async def gathered():
    return await asyncio.gather(*calls(), return_exceptions=True)

  return asyncio.run(gathered())


def ask(tools, *queries):
  return together(lambda: map(tools.search, queries))


def test_passages_of_any_length_are_cut():
  long = Passage("p", "T" * (2 << 20), "x" * (3 << 20), 0.5)
  ((found,),) = ask(RetrievalTools(Retriever(lambda queries, k: [[long]])), "a")
  assert found == Passage("p", "T" * (1 << 20), "x" * (1 << 20), 0.5)


def test_simultaneous_searches_for_as_many_passages_are_one_batch():
  retriever = Retriever()
  tools = RetrievalTools(retriever, top_k=1)
  found = together(lambda: (tools.search("a"), tools.search("b", 3), tools.search("c")))
  assert sorted(retriever.batches) == [(("a", "c"), 1), (("b",), 3)]
  assert found == [(Passage(q, "", q),) * k for q, k in (("a", 1), ("b", 3), ("c", 1))]


@pytest.mark.parametrize("call, setting", [
  (lambda tools: tools.search("a"), "config.retrieval.index"),
  (lambda tools: tools.judge([("a", "b")]), "config.judge.kind"),
  (lambda tools: tools.embed(["a"]), "config.retrieval.query_encoder"),
])  # fmt: skip
def test_what_a_run_lacks_is_named_by_its_setting(call, setting):
  (error,) = together(lambda: [call(RetrievalTools(None))])
  assert isinstance(error, ValueError) and setting in str(error)


def test_searches_collect_while_the_worker_is_busy():
  release = threading.Event()
  retriever = Retriever(lambda queries, k: release.wait(60) and None)

  async def staggered():
    tools = RetrievalTools(retriever, workers=1, max_batch=3)
    tasks = []
    for i in range(8):
      tasks.append(asyncio.create_task(tools.search(str(i))))
      await asyncio.sleep(0.005)
    release.set()
    return await asyncio.gather(*tasks)

  assert len(asyncio.run(staggered())) == 8 and [len(queries) for queries, _ in retriever.batches] == [1, 3, 3, 1]


def test_a_failure_that_names_its_queries_fails_only_those():
  def answer(queries, k):
    if "bad" in queries:
      raise RetrievalFailed("'bad' is too long", ["bad"])

  retriever = Retriever(answer)
  first, bad, last = ask(RetrievalTools(retriever), "x", "bad", "y")
  assert isinstance(bad, ToolFailed) and "too long" in str(bad) and first[0].id == "x" and last[0].id == "y"
  assert [queries for queries, _ in retriever.batches] == [("x", "bad", "y"), ("x", "y")]


def raising(error):
  """A retriever's answer that is this error."""

  def answer(queries, k):
    raise error

  return answer


@pytest.mark.parametrize("answer, kind, says", [
  *((raising(error), ToolFailed, "down") for error in (ToolFailed("down"), RetrievalFailed("down", ["a", "b"]))),
  (raising(OSError("no route")), ToolFailed, "search failed: no route"),
  (lambda queries, k: [[]], ToolFailed, "1 answers to 2"),
  (raising(ZeroDivisionError("a bug")), ZeroDivisionError, "a bug"),  # raised in every caller
])  # fmt: skip
def test_a_failure_of_the_whole_batch_fails_all_of_it(answer, kind, says):
  retriever = Retriever(answer)
  got = ask(RetrievalTools(retriever), "a", "b")
  assert all(isinstance(x, kind) and says in str(x) for x in got) and len(retriever.batches) == 1


class PanicException(BaseException):
  """As Rust's libraries raise it."""


@pytest.mark.parametrize("raised", [
  StopIteration(), SystemExit(3), KeyboardInterrupt(), concurrent.futures.CancelledError(), PanicException("lost"),
])  # fmt: skip
def test_what_no_event_loop_can_raise_is_raised_as_another_error(raised):
  (error,) = ask(RetrievalTools(Retriever(raising(raised))), "a")
  assert type(error) is RuntimeError and type(raised).__name__ in str(error) and error.__cause__ is raised


def test_an_interruption_ends_the_thread_that_serves():
  calls = dispatch.Dispatch()
  with pytest.raises(KeyboardInterrupt), calls.serving():
    asked = client.daemon(calls.call, raising(KeyboardInterrupt()), [], 1)
    while True:
      calls.serve(wait_s=60)
  told = asked.exception(60)
  assert type(told) is RuntimeError and str(told) == "interrupted by KeyboardInterrupt"


def test_a_call_that_comes_when_the_serving_has_just_ended_is_made():
  calls = dispatch.Dispatch()
  calls._server, post = -1, calls.post  # another thread, which stops after this look
  calls.post = lambda *call: setattr(calls, "_server", None) or post(*call)
  assert client.daemon(calls.call, lambda: "made").result(9) == "made"


def test_a_search_for_which_no_thread_starts_is_an_error(monkeypatch):
  monkeypatch.setattr(threading.Thread, "start", lambda self: raising(RuntimeError("no new thread"))((), 0))
  with pytest.raises(RuntimeError, match="no new thread"):
    asyncio.run(asyncio.wait_for(RetrievalTools(Retriever()).search("a"), 9))


def test_a_search_that_was_given_up_does_not_disturb_others():
  async def one_gives_up():
    tools = RetrievalTools(Retriever(lambda *_: time.sleep(0.05)))
    tasks = [asyncio.create_task(tools.search(q)) for q in "ab"]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    return await tasks[1]

  assert asyncio.run(one_gives_up())[0].id == "b"


def test_a_deadline_fails_its_searches_and_a_running_one_does_not_keep_the_process_alive():
  release, threads = threading.Event(), []

  def stuck(*_):
    threads.append(threading.current_thread())
    release.wait(60)

  tools = RetrievalTools(Retriever(stuck), timeout_s=0.05, workers=1)
  count = lambda: sum(thread.name == "tools-search" for thread in threading.enumerate())
  got = ask(tools, "a", "b") + ask(tools, "c")
  until(lambda: threads and count() == 1)  # its thread may start after the deadline; that of "c" waits no longer
  assert all(isinstance(x, ToolFailed) and "0.05 s" in str(x) for x in got)
  assert threads[0].is_alive() and threads[0].daemon
  release.set()
  until(lambda: not count())
  assert len(threads) == 1  # "c", which was given up before its turn, is not asked


class Judge:
  """1 for equal texts, None for "?"; fails on the pairs in `fails`."""

  def __init__(self, fails=(), **pace):
    self.asked, self.fails, self.pace = [], fails, judge_api.Pace(**pace)

  def judge(self, pairs):
    self.asked.append(list(pairs))
    if lost := [pair for pair in pairs if pair in self.fails]:
      raise judge_api.JudgeFailed("down", lost)
    return [None if claim == "?" else float(premise == claim) for premise, claim in pairs]


def verdicts(judge, *asked):
  return together(lambda: map(RetrievalTools(Retriever(), judges={"": judge}).judge, asked))


def test_each_judge_has_its_own_limits():
  judge = Judge(batch=2, workers=1)
  assert verdicts(judge, [("a", claim) for claim in "ab?c"], [("b", "b")]) == [(1.0, 0.0, None, 0.0), (1.0,)]
  assert [len(pairs) for pairs in judge.asked] == [2, 2, 1]


def test_a_term_can_have_its_own_judge():
  every, own = Judge(), Judge(fails=[("a", "x")])
  tools = RetrievalTools(Retriever(), judges={"": every, "search": every, "answer": own})
  asked = ("aa", ""), ("ab", "search"), ("a?", "thought"), ("bb", "answer"), ("aa ax", "answer")  # premise, claim
  *known, lost = together(lambda: [tools.judge(list(map(tuple, pairs.split())), term) for pairs, term in asked])
  assert known == [(1.0,), (0.0,), (None,), (1.0,)] and isinstance(lost, ToolFailed) and str(lost) == "down"
  assert every.asked == [[("a", "a"), ("a", "b"), ("a", "?")]]  # one batch for all terms of one judge
  assert own.asked == [[("b", "b"), ("a", "a"), ("a", "x")], [("b", "b"), ("a", "a")]]
  with pytest.raises(ValueError, match="config.judge.kind"):
    asyncio.run(RetrievalTools(Retriever(), judges={"answer": own}).judge([("a", "b")], "search"))


def test_a_judge_that_does_not_answer_in_time_fails():
  judge, over = Judge(deadline_s=0.05), threading.Event()
  judge.judge = lambda pairs: over.wait(60)
  (got,) = verdicts(judge, [("a", "a")])
  over.set()
  assert isinstance(got, ToolFailed) and "config.judge.timeout_s" in str(got)


def test_equal_questions_of_a_moment_are_asked_once():
  retriever, asked = Retriever(), ["a"] * 8 + ["b", "a"]
  found = ask(RetrievalTools(retriever, top_k=1), *asked)
  assert retriever.batches == [(("a", "b"), 1)] and [passage.id for (passage,) in found] == asked
  several = ask(RetrievalTools(Retriever(lambda queries, k: [[]] * 3)), "a", "a", "b")
  assert all("3 answers to 2" in str(one) for one in several)  # no answer for each who asked


def test_vectors_have_length_one_and_are_short():
  asked = []

  def encode(texts):
    asked.append(tuple(texts))
    return np.array([[len(text), 1.0] for text in texts], np.float32) * (np.array(texts) != "none")[:, None]

  tools = RetrievalTools(Retriever(), encode=encode)
  first, second = together(lambda: (tools.embed(["a", "bcd"]), tools.embed(["none"])))
  assert asked == [("a", "bcd", "none")]
  assert first == ((0.7071, 0.7071), (0.9487, 0.3162)) and second == ((0.0, 0.0),)  # 3 and 1 over √10
