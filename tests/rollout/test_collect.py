"""Runs of many episodes: their order, their failures, their report."""

import asyncio
import functools
import threading
import time
import types

import jax.numpy as jnp
import pytest
import small_engine as kit
from patience import LIMIT_S, reached, until
from small_engine import engine, requests, rollout

from ragrl_jax import structs
from ragrl_jax.chat import client
from ragrl_jax.rollout import collect, dispatch, multihost, tools as tools_lib


def blocked(played):
  """Whether the running thread waits for a message, as a function. Patches the rollout's dispatch."""
  serve, waits = played.dispatch.serve, []

  def served(wait_s=0.0):
    waits.append(wait_s > 0)
    try:
      return serve(wait_s)
    finally:
      waits.pop()

  played.dispatch.serve = served
  return lambda: waits[-1:] == [True]


@functools.cache
def usual():
  return [kit.drawn(episode) for episode in rollout(engine()).run(requests(2, 2), step=0)]


def check_usable(played):
  """Checks that nothing is left of an earlier run, and that the usual episodes can follow."""
  assert not played.engine.busy and not played.engine._conversations and not kit.held(played.engine)
  played.play, played.tools = kit.play, kit.Tools()
  assert [kit.drawn(episode) for episode in played.run(requests(2, 2), step=0)] == usual()


def test_episodes_come_in_the_order_of_their_requests():
  asked = requests(3, 2, first=40)
  ended, mine = [], threading.get_ident()

  def on_episode(episode):
    assert threading.get_ident() == mine
    ended.append(episode)

  tools = kit.Tools(lambda query: 0.01 * (len(query) % 3))
  episodes = rollout(engine(), tools=tools).run(asked, step=0, on_episode=on_episode)
  order = [(r.prompt_index, r.sample, r.example.id) for r in asked]
  assert [(e.prompt_index, e.sample, e.example_id) for e in episodes] == order
  assert sorted(map(id, ended)) == sorted(map(id, episodes)) and rollout(engine()).run([], step=0) == []


def test_a_failed_tool_ends_only_its_episode():
  async def broken(query):
    raise structs.ToolFailed("the index at http://x is down")

  async def play(example, policy, tools):
    return await kit.play(example, policy, kit.Tools(before=broken) if example.id == "e1" else tools)

  played = rollout(engine(), play)
  episodes = played.run(requests(3, 2), step=0)
  for episode in episodes:
    if episode.example_id == "e1":
      assert (episode.ended, episode.failure) == ("failed", "the index at http://x is down")
      assert [s.owner for s in episode.segments] == ["environment", "model"]
    else:
      assert episode.ended != "failed" and len(episode.segments) > 2
  assert (played.report.episodes, played.report.failed) == (6, 2) and not kit.held(played.engine)


def test_an_episode_without_a_verdict_gives_the_reason():
  class Tools(kit.Tools):
    async def judge(self, pairs, term=""):
      if pairs == ["e1"]:
        raise structs.ToolFailed("status 401: 'no key'")
      return (None,) if pairs == ["e2"] else (1.0,)

  async def play(example, policy, tools):
    verdicts = await tools.judge([example.id])
    return policy.start([1, 2, 3]).end("answer", said=verdicts)

  good, failed, unread = rollout(engine(), play, tools=Tools(lambda _: 0.0)).run(requests(3, 1), step=0)
  assert good.facts == {"said": (1.0,)}
  assert failed.ended == "failed" and failed.facts == {structs.NO_VERDICT: "status 401: 'no key'"} and failed.failure
  assert unread.ended == "answer" and "could not be read" in unread.facts[structs.NO_VERDICT]


def test_the_pending_turn_of_a_failed_episode_disturbs_no_other():
  # A probe fails while the conversation beside it still samples. Its row must not be reused while its lane is active.
  async def play(example, policy, tools):
    if example.id != "e1":
      return await kit.play(example, policy, tools)

    talk = policy.start(kit.TOKENIZER.encode(example.question))

    async def fails():
      seen = played.engine._conversations
      while talk.number not in seen or not seen[talk.number].pages:  # until it has pages, and soon after a lane
        await asyncio.sleep(0.001)
      raise structs.ToolFailed("no judge")

    goes_on = talk.generate(max_new_tokens=60, stop=kit.STOPS, ends=lambda text: False)
    await asyncio.gather(goes_on, fails())

  played = rollout(engine(), play)
  asked = requests(4, 4)
  straight = rollout(engine()).run(asked, step=0)
  for a, b in zip(played.run(asked, step=0), straight):
    assert a.ended == "failed" if a.example_id == "e1" else kit.drawn(a) == kit.drawn(b)
  assert not kit.held(played.engine) and not played.engine.busy


def test_a_task_left_over_from_an_episode_opens_no_conversation():
  refused = []

  async def play(example, policy, tools):
    async def late():
      await asyncio.sleep(0.05)
      with pytest.raises(ValueError, match="episode has ended"):
        policy.start([1, 2, 3])
      refused.append(example.id)

    if example.id == "e0":
      tasks.append(asyncio.create_task(late()))
      raise structs.ToolFailed("no index")
    await reached(lambda: refused)
    return policy.start([1, 2, 3]).end("answer")

  tasks = []
  played = rollout(engine(), play)
  failed, answered = played.run(requests(2, 1), step=0)
  assert (failed.ended, answered.ended, refused) == ("failed", "answer", ["e0"]) and not played.engine._conversations


def test_the_engine_sleeps_while_all_rows_wait():
  # More episodes than rows, and every row waits for a search: the thread must not spin.
  searching = []

  async def slow(query):
    searching.append(query)
    if len(searching) <= kit.SIZES["rows"]:
      await reached(lambda: len(searching) == kit.SIZES["rows"] and waits())
      await asyncio.sleep(0.2)

  played = rollout(engine(), tools=kit.Tools(before=slow))
  waits = blocked(played)
  steps, step = [], played.engine.step
  played.engine.step = lambda: steps.append(1) or step()
  played.run(requests(4, 4), step=0)
  del played.engine.step
  assert len(steps) < 200 and played.report.wait_s > 0.2


def test_waits_for_verdicts_and_for_searches_are_reported_apart(monkeypatch):
  """By a clock that only the tools move: all four search for 0.15 s, then all four are judged for 0.3 s."""
  now, come = [0.0], []
  for module in (collect, tools_lib):
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

  async def all_wait(count, then):
    come.append(then)
    await reached(lambda: len(come) >= count and waits())
    now[0] = then

  class Tools(kit.Tools):
    async def search(self, query, k=None):
      await all_wait(4, then=0.15)
      return ()

    async def judge(self, pairs, term=""):
      await all_wait(8, then=0.45)
      return (1.0,) * len(pairs)

  async def play(example, policy, tools):
    await tools.search("q")
    await tools.judge([("a", "b")])
    return policy.start([1, 2, 3]).end("answer")

  played = rollout(engine(), play, tools=Tools())
  waits = blocked(played)
  played.run(requests(2, 2), step=0)
  assert (played.report.wait_s, played.report.judge_wait_s) == (pytest.approx(0.15), pytest.approx(0.3))
  metrics = played.report.metrics()
  assert metrics["tool_wait_s"] == played.report.wait_s + played.report.judge_wait_s


@pytest.mark.parametrize("error, kind, says", [
  (KeyError("a bug"), KeyError, "'a bug'"),
  # As if a library had cancelled one of its own tasks. Without an end the run would wait for ever.
  (asyncio.CancelledError(), RuntimeError, "the play of 'e2' raised CancelledError: something that it awaits was"),
  (SystemExit("usage: …"), RuntimeError, "the play of 'e2' raised SystemExit: usage: …"),  # ends an event loop
])  # fmt: skip
def test_a_bug_in_a_recipe_is_raised_and_leaves_the_engine_usable(error, kind, says):
  async def play(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    await talk.generate()
    if example.id == "e2":
      raise error
    await asyncio.sleep(60)

  played = rollout(engine(), play)
  raised = client.daemon(lambda: played.run(requests(4, 2), step=0)).exception(LIMIT_S)
  assert type(raised) is kind and str(raised).startswith(says)
  check_usable(played)


@pytest.mark.parametrize("count", [1, 4])
def test_an_interruption_is_not_repeated_by_episodes_that_ended_meanwhile(count, monkeypatch):
  """An interruption ends the run once: during one episode, or while several ended ones wait to be handled."""
  played = rollout(engine(), kit.play)
  ended, post, told = threading.Semaphore(0), played.dispatch.post, []

  def posted(function, *args):
    post(function, *args)
    if getattr(function, "__name__", "") == "_keep":
      ended.release()

  def interrupt(episode):
    told.append(episode)
    for _ in range(count):  # all have ended, and the others wait for this thread
      assert ended.acquire(timeout=60)
    raise KeyboardInterrupt

  async def at_once(example, policy, tools):
    return structs.Episode((structs.Segment("environment", (1,), "x"),), ended="answer")

  monkeypatch.setattr(played.dispatch, "post", posted)
  played.play = at_once
  with pytest.raises(KeyboardInterrupt):
    played.run(requests(count, 1), step=0, on_episode=interrupt)
  assert len(told) == 1
  check_usable(played)


def test_plays_that_sample_nothing_or_build_their_own_episode():
  async def play(example, policy, tools):
    if example.id == "e0":
      await tools.search("q")
      return structs.Episode((structs.Segment("environment", (1,), "x"),), ended="answer")
    talk = policy.start([1, 2, 3])
    return talk.end("answer") if example.id == "e1" else await kit.play(example, policy, tools)

  played = rollout(engine(), play)
  episodes = played.run(requests(3, 3), step=0)
  assert [e.sample for e in episodes] == [0, 1, 2] * 3 and [e.version for e in episodes] == [7] * 9
  assert kit.held(played.engine) == 0


def test_the_report_gives_the_time_of_each_part():
  played = rollout(engine(), tools=kit.Tools(lambda query: 0.03, before=lambda query: reached(waits)))
  waits = blocked(played)
  episodes = played.run(requests(2, 2), step=0)
  metrics = played.report.metrics()
  said = sum(len(s.ids) for e in episodes for s in e.segments if s.owner == "model")
  assert [metrics[name] for name in ("sampled_tokens", "episodes", "episodes_failed")] == [said, 4, 0]
  assert 0.03 < metrics["tool_wait_s"] < metrics["rollout_s"] and min(metrics["decode_s"], metrics["prefill_s"]) > 0
  parts = metrics["decode_s"] + metrics["prefill_s"] + metrics["tool_wait_s"]
  assert 0 < metrics["lane_occupancy"] <= 1 and parts <= metrics["rollout_s"]
  assert metrics["prefill_filled"] == metrics["prefilled_tokens"] / (64 * played.report.engine.extensions)  # 2 × 32
  assert metrics["tokens_per_s"] == pytest.approx(said / metrics["rollout_s"])


def test_a_later_batch_draws_in_the_lanes_that_an_earlier_one_leaves_idle():
  """Both batches give the episodes of two separate runs. The later batch samples while the earlier one waits."""

  async def play(example, policy, tools):
    if example.id == "e0":
      await reached(lambda: len(ended) == 8)  # the whole later batch
    return await kit.play(example, policy, tools)

  first, later = requests(1, 2), requests(2, 4, first=2)
  plain = [rollout(engine()).run(asked, step=step) for asked, step in ((first, 4), (later, 5))]
  ended = []
  played = rollout(engine(), play)
  with played.session(on_episode=lambda episode: ended.append(episode.prompt_index)) as session:
    started = [session.start(first, step=4), session.start(later, step=5)]
    found = [session.finish(started[0])]
    assert set(ended[:8]) == {2, 3} and ended[8:] == [0, 0]
    found.append(session.finish(started[1]))
  assert [[kit.drawn(e) for e in batch] for batch in found] == [[kit.drawn(e) for e in batch] for batch in plain]
  assert [[e.prompt_index for e in batch] for batch in found] == [[r.prompt_index for r in a] for a in (first, later)]
  assert played.report.episodes == 10 and not kit.held(played.engine)


def test_a_host_alone_exchanges_its_episodes_with_itself():
  """Episodes are encoded as bytes as between hosts. Other work is done only while no lane samples."""
  asked, given = [requests(2, 2), requests(1, 2, first=2)], rollout(engine())
  plain = [rollout(engine()).run(batch, step=step) for batch, step in zip(asked, (4, 5))]
  many = multihost.MultiHostRollout(given)
  with many.session() as session:
    started = [session.start(batch, step=step) for batch, step in zip(asked, (4, 5))]
    work = dispatch.Work(iter(()))
    assert [session.finish(one, work) for one in started] == plain
  assert not work.advance() and given.few == 0.0
  assert many.report.episodes == 6 and many.report.engine.sampled_tokens == given.report.engine.sampled_tokens > 0
  assert many.run(asked[0], step=4) == plain[0] and many.report.episodes == 4


def test_a_turn_that_does_not_fit_into_the_context_is_refused():
  with pytest.raises(ValueError, match="max_new_tokens"):
    rollout(engine(), max_new_tokens=kit.CONTEXT)


def test_other_work_is_done_while_every_conversation_waits():
  asked, tape, left = requests(2, 2), [], [None]
  plain = rollout(engine()).run(asked, step=0)

  def pieces():
    while left:
      if left[0] is not None:  # the run has ended
        left.pop()
      tape.append((threading.get_ident(), played.engine.busy))
      time.sleep(0.001)
      yield jnp.float32(1.0)
    return "done"

  def slow(query):
    done = len(tape)
    return reached(lambda: len(tape) >= done + 20)

  played = rollout(engine(), tools=kit.Tools(before=slow))
  played.few = 0.0  # never while lanes sample
  work = dispatch.Work(pieces())
  beside = played.run(asked, step=0, work=work)
  assert [kit.drawn(e) for e in beside] == [kit.drawn(e) for e in plain]
  # On this thread, only while the engine had nothing to sample, and in place of every wait.
  assert set(tape) == {(threading.get_ident(), False)}
  assert 0.02 < played.report.beside_s < played.report.seconds and played.report.wait_s == 0.0
  done, left[:] = len(tape), [1, 2, 3]
  assert work.finish() == "done" and len(tape) == done + 3


def test_other_work_takes_its_turns_once_few_lanes_draw(monkeypatch):
  """Four conversations sample 4, 4, 4 and 40 tokens. From the second chunk on, one of four lanes samples."""

  async def play(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    await talk.generate(max_new_tokens=40 if example.id == "e3" else 4)
    return talk.end()

  plain = rollout(engine(), play, max_new_tokens=40).run(requests(4, 1), step=0)
  played, tape, turns = rollout(engine(), play, max_new_tokens=40), [], []
  post, step = played.dispatch.post, played.engine.step

  def posted(function, *args):
    post(function, *args)
    turns.extend(args if getattr(function, "__name__", "") == "submit" else ())

  def stepped():  # the first chunk waits for all four, so that every run has the same chunks
    until(lambda: len(turns) == 4)
    played.dispatch.serve()
    return step()

  monkeypatch.setattr(played.dispatch, "post", posted)
  monkeypatch.setattr(played.engine, "step", stepped)

  def pieces():
    while True:
      tape.append((threading.get_ident(), played.engine.busy, played.report.engine.chunks))
      yield jnp.float32(1.0)

  for few in (0.5, 0.0):
    played.few = few
    tape.clear()
    turns.clear()
    episodes = played.run(requests(4, 1), step=0, work=dispatch.Work(pieces()))
    assert [kit.drawn(e) for e in episodes] == [kit.drawn(e) for e in plain]
    chunks = played.report.engine.chunks
    # 40 tokens are five chunks of 8. In the first chunk 4 + 4 + 4 + 8 of 32 lane steps sample, which is more than half.
    beside = [before for ident, busy, before in tape if busy]
    assert {ident for ident, _, _ in tape} <= {threading.get_ident()}
    assert beside == (list(range(2, chunks)) if few else []), (beside, chunks)


def grouped(prompts, samples):
  return [requests(1, samples, first=i) for i in range(prompts)]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_stream_plays_what_a_run_plays(at_once):
  plain = {(e.prompt_index, e.sample): kit.drawn(e) for e in rollout(engine()).run(requests(4, 2), step=4)}
  played, taken = rollout(engine(), tools=kit.Tools(lambda query: 0.01 * (len(query) % 3))), []
  stream = played.stream((taken.append(group) or group for group in grouped(4, 2)), step=4, at_once=at_once)
  found = [next(stream)]
  assert len(taken) == {1: 1, 3: 2, 100: 4}[at_once]  # 2 episodes are fewer than 3, so a second group is started
  found += stream
  assert len(found) == 8 and {(e.prompt_index, e.sample): kit.drawn(e) for e in found} == plain
  assert played.report.episodes == 8 and played.report.seconds > 0 and not kit.held(played.engine)


def test_a_stream_starts_the_next_question_when_one_has_ended():
  """One question waits for a slow search. With a barrier the others would wait with it."""
  started, ended = [], []
  slow = kit.Tools(before=lambda query: reached(lambda: len(ended) == 5))

  async def play(example, policy, tools):
    started.append(example.id)
    return await kit.play(example, policy, slow if example.id == "e0" else tools)

  for episode in rollout(engine(), play).stream(grouped(6, 1), step=0, at_once=2):
    assert len(started) - len(ended) <= 2
    ended.append(episode.example_id)
  assert ended[-1] == "e0" and sorted(ended) == [f"e{i}" for i in range(6)]


def test_a_stream_over_hosts_exchanges_every_part():
  plain = rollout(engine()).run(requests(5, 2), step=4)
  many = multihost.MultiHostRollout(rollout(engine()))
  assert list(many.stream(grouped(5, 2), step=4, at_once=2)) == plain


def test_what_is_left_is_cancelled_and_the_engine_stays_usable():
  """A stream, a session that is closed, and a run that a bug in other work ends."""

  def pieces():
    yield
    raise FloatingPointError("not finite")

  played = rollout(engine())
  stream = played.stream(grouped(5, 1), step=0, at_once=3)
  next(stream)
  stream.close()
  check_usable(played)
  played.tools = kit.Tools(lambda _: 600.0)
  with played.session() as session:
    session.start(requests(2, 2), step=0)
  check_usable(played)
  played.tools = kit.Tools(lambda _: 600.0)
  with pytest.raises(FloatingPointError):
    played.run(requests(2, 2), step=0, work=dispatch.Work(pieces()))
  check_usable(played)


def test_work_for_the_accelerator_runs_on_the_running_thread():
  # The search's encoder must not run in the pool. It is given to the running thread, and the search waits for it.
  threads = []

  class Dense:
    def search(self, queries, k):
      threads.append(threading.current_thread().name)
      encode(queries)
      return [[structs.Passage("0", "T", "x")] for _ in queries]

  calls, encoded = dispatch.Dispatch(), []
  encode = calls.wrap(lambda queries: encoded.append((threading.get_ident(), len(queries))))
  encode(["before the run: no one serves, so it is done here"])
  played = rollout(engine(), tools=tools_lib.RetrievalTools(Dense()))
  played.dispatch = calls
  played.run(requests(2, 2), step=0)
  assert len(encoded) > 1 and {ident for ident, _ in encoded} == {threading.get_ident()}
  assert all(name.startswith("tools") for name in threads)


def test_an_error_on_the_running_thread_is_raised_in_the_caller():
  calls = dispatch.Dispatch()
  with calls.serving():
    asked = client.daemon(calls.call, lambda: 1 // 0)
    while not asked.done():
      calls.serve(wait_s=0.01)
    with pytest.raises(ValueError, match="one run at a time"), calls.serving():
      pass
  assert isinstance(asked.exception(), ZeroDivisionError)
