"""Episodes that come as a stream, and work that the running thread does for others."""

import asyncio
import itertools
import threading
import time

import jax.numpy as jnp
import pytest
import small_engine as kit
from patience import reached, until
from small_engine import engine, requests, rollout

from ragrl_jax import structs
from ragrl_jax.rollout import dispatch, multihost


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

  class Slow(kit.Tools):
    async def search(self, query, k=None):
      done = len(tape)
      await reached(lambda: len(tape) >= done + 20)
      return await super().search(query, k)

  played = rollout(engine(), tools=Slow())
  played.few = 0.0  # never while lanes sample
  work = dispatch.Work(pieces())
  beside = played.run(asked, step=0, beside=work)
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
    episodes = played.run(requests(4, 1), step=0, beside=dispatch.Work(pieces()))
    assert [kit.drawn(e) for e in episodes] == [kit.drawn(e) for e in plain]
    chunks = played.report.engine.chunks
    # 40 tokens are five chunks of 8. In the first chunk 4 + 4 + 4 + 8 of 32 lane steps sample, which is more than half.
    beside = [before for ident, busy, before in tape if busy]
    assert {ident for ident, _, _ in tape} <= {threading.get_ident()}
    assert beside == (list(range(2, chunks)) if few else []), (beside, chunks)


def grouped(asked):
  return [list(group) for _, group in itertools.groupby(asked, key=lambda request: request.prompt_index)]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_stream_plays_what_a_run_plays(at_once):
  asked = requests(4, 2)
  plain = {(e.prompt_index, e.sample): kit.drawn(e) for e in rollout(engine()).run(asked, step=4)}
  played = rollout(engine(), tools=kit.Tools(lambda query: 0.01 * (len(query) % 3)))
  found = list(played.stream(iter(grouped(asked)), step=4, at_once=at_once))
  assert len(found) == 8 and {(e.prompt_index, e.sample): kit.drawn(e) for e in found} == plain
  assert played.report.episodes == 8 and played.report.seconds > 0 and not kit.held(played.engine)


def test_a_stream_starts_the_next_question_when_one_has_ended():
  """One question waits for a slow search. With a barrier the others would wait with it."""
  started, slow = [], []

  class Slow(kit.Tools):
    async def search(self, query, k=None):
      while "e0" not in slow:
        await asyncio.sleep(0.001)
      return await super().search(query, k)

  async def play(example, policy, tools):
    started.append(example.id)
    return await kit.play(example, policy, Slow() if example.id == "e0" else tools)

  ended = []
  for episode in rollout(engine(), play).stream(grouped(requests(6, 1)), step=0, at_once=2):
    assert len(started) - len(ended) <= 2
    ended.append(episode.example_id)
    if len(ended) == 5:
      slow.append("e0")
  assert ended[-1] == "e0" and sorted(ended) == [f"e{i}" for i in range(6)]


def test_a_stream_that_is_left_cancels_what_it_plays():
  played = rollout(engine(), tools=kit.Tools(lambda _: 0.0))
  stream = played.stream(grouped(requests(5, 1)), step=0, at_once=3)
  next(stream)
  stream.close()
  assert not played.engine.busy and not played.engine._conversations
  assert len(played.run(requests(2, 2), step=0)) == 4


def test_a_stream_over_hosts_exchanges_every_part():
  asked = requests(5, 2)
  plain = rollout(engine()).run(asked, step=4)
  many = multihost.MultiHostRollout(rollout(engine()))
  assert list(many.stream(grouped(asked), step=4, at_once=2)) == plain


def test_a_bug_in_other_work_ends_the_run_and_leaves_the_engine_usable():
  def pieces():
    yield
    raise FloatingPointError("not finite")

  played = rollout(engine(), tools=kit.Tools(lambda _: 600.0))
  with pytest.raises(FloatingPointError):
    played.run(requests(2, 2), step=0, beside=dispatch.Work(pieces()))
  played.tools = kit.Tools()
  assert not played.engine.busy and len(played.run(requests(2, 2), step=0)) == 4


def test_work_for_the_accelerator_runs_on_the_running_thread():
  # The search's encoder must not run in the pool. It is given to the running thread, and the search waits for it.
  threads = []

  class Dense:
    def __init__(self, encode):
      self.encode = encode

    def search(self, queries, k):
      threads.append(threading.current_thread().name)
      self.encode(queries)
      return [[structs.Passage("0", "T", "x")] for _ in queries]

  from ragrl_jax.rollout import tools as tools_lib
  from ragrl_jax.rollout.dispatch import Dispatch

  dispatch, encoded = Dispatch(), []
  encode = dispatch.wrap(lambda queries: encoded.append((threading.get_ident(), len(queries))))
  encode(["before the run: no one serves, so it is done here"])
  tools = tools_lib.RetrievalTools(Dense(encode))
  played = rollout(engine(), tools=tools)
  played.dispatch = dispatch
  played.run(requests(2, 2), step=0)
  assert len(encoded) > 1 and {ident for ident, _ in encoded} == {threading.get_ident()}
  assert all(name.startswith("tools") for name in threads)


def test_an_error_on_the_running_thread_is_raised_in_the_caller():
  from ragrl_jax.rollout.dispatch import Dispatch

  dispatch, caught = Dispatch(), []

  def ask():
    try:
      dispatch.call(lambda: 1 // 0)
    except ZeroDivisionError as error:
      caught.append(error)

  with dispatch.serving():
    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
      dispatch.serve(wait_s=0.01)
    with pytest.raises(ValueError, match="one run at a time"):
      with dispatch.serving():
        pass
  assert len(caught) == 1
