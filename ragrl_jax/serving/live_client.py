"""A client of an engine that reports text while a turn is sampled. A `rollout.engine_client.Client`."""

import asyncio
import contextlib
from collections.abc import Callable

from ragrl_jax.engine.messages import Group, Open, Turn, TurnEnded
from ragrl_jax.protocol.text_stream import TextStream
from ragrl_jax.serving.engine_thread import EngineThread, Slice


class LiveClient:
  """Call every method on the event loop on which the client was made. No method blocks.

  Args:
    thread: the engine's thread.
    said: called with (conversation, new text) while a turn is sampled. The joined texts are the turn's text.
    before: called before each turn.
  """

  def __init__(self, thread: EngineThread, said: Callable[[int, str], None], before: Callable[[], None]):
    engine = thread.engine
    self.tokenizer, self.stops = engine.tokenizer, engine.stops
    self.context, self.version, self.numbers = engine.context, engine.version, thread.numbers
    self._thread, self._said, self._before = thread, said, before
    self._loop = asyncio.get_running_loop()

  def open(self, message: Open) -> None:
    """See `Client`; so are the others."""
    self._thread.open(message)

  def submit(self, turn: Turn) -> asyncio.Future[TurnEnded]:
    """Starts a turn; returns a future of its result."""
    self._before()
    answer: asyncio.Future[TurnEnded] = self._loop.create_future()
    told = _Told(turn.conversation, TextStream(self.tokenizer), self._said, answer)

    def hear(heard: Slice | BaseException) -> bool:
      with contextlib.suppress(RuntimeError):  # the loop is closed
        self._loop.call_soon_threadsafe(told.take, heard)
      return True

    self._thread.submit(turn, hear)
    return answer

  def close(self, conversation: int) -> None:
    """Ends a conversation and its turn."""
    self._thread.close_conversation(conversation)

  def leave(self, group: Group) -> None:
    """Tells the engine that one sample of the group will never open a conversation."""
    self._thread.leave(group)


class _Told:
  """One turn, on the event loop: turns its slices into text, then into the turn's result."""

  def __init__(self, number: int, text: TextStream, said: Callable[[int, str], None], answer: asyncio.Future):
    self._number, self._text, self._said, self._answer = number, text, said, answer
    self._ids: tuple[int, ...] = ()
    self._logprobs: tuple[float, ...] = ()

  def take(self, heard: Slice | BaseException) -> None:
    """Receives a slice, or the error that ended the engine."""
    if self._answer.done():  # its episode was cancelled
      return
    if isinstance(heard, BaseException):
      self._answer.set_exception(heard)
      return
    self._ids += heard.ids
    self._logprobs += heard.logprobs
    self._text.feed(heard.ids)
    if text := self._text.piece(last=heard.stop is not None):
      self._said(self._number, text)
    if heard.stop is not None:
      self._answer.set_result(TurnEnded(self._number, self._ids, self._logprobs, heard.stop))
