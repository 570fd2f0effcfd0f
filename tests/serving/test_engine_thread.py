import contextlib
import queue
import types

import pytest
import small_engine as kit
from small_server import drawn

from ragrl_jax.engine.messages import Open, Turn
from ragrl_jax.rollout.conversation import key_of
from ragrl_jax.rollout.dispatch import Dispatch
from ragrl_jax.serving.engine_thread import Closed, EngineThread

IDS = kit.TOKENIZER.encode("Question?")


@contextlib.contextmanager
def running(engine):
  """Gives the engine's thread."""
  thread = EngineThread(engine)
  thread.start()
  try:
    yield thread
  finally:
    thread.close()
    engine.reset()


def listened(thread, number=0, key=(7, 0), **how):
  """Opens a conversation and starts a turn. Returns the queue of its slices."""
  heard = queue.SimpleQueue()
  thread.open(Open(number, tuple(IDS), key))
  thread.submit(Turn(number, **how), lambda one: heard.put(one) or True)
  return heard


def in_slices(engine, keys, **how):
  """(ids, logprobs, stop, number of slices) of a turn for each key, all at once."""
  found = []
  with running(engine) as thread:
    heard = [listened(thread, number, key, **how) for number, key in enumerate(keys)]
    for one in heard:
      slices = [one.get(timeout=60)]
      while slices[-1].stop is None:
        slices.append(one.get(timeout=60))
      thread.close_conversation(len(found))  # others wait for its row
      ids, logprobs = ([x for s in slices for x in getattr(s, name)] for name in ("ids", "logprobs"))
      found.append((ids, logprobs, slices[-1].stop, len(slices)))
  return found


@pytest.mark.slow  # compiles an engine with other stop strings
def test_a_compiled_stop_string_may_straddle_slices():
  first = kit.SIZES["chunk"]
  # A draw whose 8th and 9th bytes are ASCII and stand there for the first time together.
  for seed in range(200):
    ids = drawn(kit.engine(), IDS, seed=seed, budget=40)[0]
    pair = bytes(i for i in ids[first - 1 : first + 1] if 32 <= i < 127)
    if len(pair) == 2 and bytes(min(i, 255) for i in ids).find(pair) == first - 1:
      break
  else:
    pytest.fail("no draw has such a pair")
  engine = kit.engine(texts=(pair.decode(),))
  accept = engine.stops.mask([pair.decode()])
  ((found, _, stop, slices),) = in_slices(engine, [key_of(seed, 0, 0, 0, 0)], budget=40, accept=accept)
  assert found == ids[: first + 1] and engine.stops.names[stop] == pair.decode() and slices == 2


def test_many_turns_share_the_lanes_slice_by_slice():
  engine, keys = kit.engine(), [(7, number) for number in range(11)]  # 4 lanes, 6 rows
  whole = []
  for key in keys:
    engine.open(Open(0, tuple(IDS), key))
    engine.submit(Turn(0, budget=30, accept=engine.stops.mask(kit.STOPS[:2])))
    (ended,) = kit.finished(engine)
    engine.close(0)
    whole.append((list(ended.ids), list(ended.logprobs), ended.stop))
  found = in_slices(engine, keys, budget=30, accept=engine.stops.mask(kit.STOPS[:2]))
  assert [one[:3] for one in found] == whole
  assert max(slices for *_, slices in found) == 4 and len({stop for _, _, stop in whole}) > 1


def test_a_call_alone_waits_for_the_slices_of_clients_that_left():
  with running(kit.engine()) as thread:
    assert listened(thread, budget=30).get(timeout=60).stop is None  # the next slice is under way
    thread.close_conversation(0)
    assert thread.alone(lambda: thread.engine.busy) is False


def test_closing_tells_turns_that_are_under_way_and_later_ones():
  late = []
  with running(kit.engine()) as thread:
    thread.failed = late.append
    first = listened(thread, budget=10_000)
    first.get(timeout=60)
  said = [first.get() for _ in range(first.qsize())]
  assert isinstance(said[-1], Closed) and late == []  # the engine has not failed
  thread.submit(Turn(1, budget=1), late.append)
  assert late == [thread.error]


def test_every_turn_hears_the_engines_error_once():
  def step():
    raise RuntimeError("the device is lost")

  class Late(Dispatch):
    """Lets a turn come after the last call of the queue is served, and before the error is known."""

    @contextlib.contextmanager
    def serving(self):
      with super().serving():
        try:
          yield
        finally:
          self.ended = True

    def serve(self, wait_s=0.0):
      served = super().serve(wait_s)
      if getattr(self, "ended", False):
        self.ended = False
        thread.submit(Turn(1), heard[1].append)
      return served

  heard = [[], [], []]
  sizes = types.SimpleNamespace(ahead=8)
  engine = types.SimpleNamespace(check=lambda: None, busy=True, step=step, submit=lambda turn: None, sizes=sizes)
  thread = EngineThread(engine, Late())
  thread.submit(Turn(0), heard[0].append)
  thread.start()
  thread._thread.join(60)
  thread.submit(Turn(2), heard[2].append)
  assert [[str(said) for said in one] for one in heard] == [["the device is lost"]] * 3
