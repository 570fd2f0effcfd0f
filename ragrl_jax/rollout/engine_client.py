"""The event loop's side of the engine: sends messages through a queue, and returns finished turns as futures."""

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Group, Open, Turn, TurnEnded
from ragrl_jax.rollout.dispatch import Dispatch

_NUMBERS = itertools.count()


class Client(Protocol):
  """What sends the messages of conversations: to the engine of a run, to a served one, or to a server.

  Attributes:
    tokenizer, stops, context, version: of the engine.
    numbers: numbers of conversations; never reused, so a late message finds no other conversation.
  """

  tokenizer: Any
  stops: Any
  context: int
  version: int
  numbers: itertools.count

  def open(self, message: Open) -> None:
    """Opens a conversation."""

  def submit(self, turn: Turn) -> Awaitable[TurnEnded]:
    """Starts a turn; returns the future of its result."""

  def close(self, conversation: int) -> None:
    """Ends a conversation and its turn."""

  def leave(self, group: Group) -> None:
    """One sample of the group will never open a conversation."""


class EngineClient:
  """Sends messages to the engine of one run. Every method is called on the event loop, and none of them waits.

  Args:
    engine: belongs to the thread that serves `dispatch`. Only values that never change during a run are read here.
    dispatch: the queue to that thread. It keeps the order of the messages.
  """

  def __init__(self, engine: Engine, dispatch: Dispatch):
    self.tokenizer, self.stops = engine.tokenizer, engine.stops
    self.context, self.version, self.numbers = engine.context, engine.version, _NUMBERS
    self._engine, self._dispatch = engine, dispatch
    self._answers: dict[int, asyncio.Future[TurnEnded]] = {}  # by conversation; each has one turn at a time

  def open(self, message: Open) -> None:
    """Opens a conversation. The engine does it later, on its own thread, before the messages that follow."""
    self._dispatch.post(self._engine.open, message)

  def submit(self, turn: Turn) -> asyncio.Future[TurnEnded]:
    """See `Client`; so are the others."""
    # Registered before the message is sent: the engine may answer at once, on its own thread.
    answer = asyncio.get_running_loop().create_future()
    self._answers[turn.conversation] = answer
    self._dispatch.post(self._engine.submit, turn)
    return answer

  def close(self, conversation: int) -> None:
    """Ends a conversation after its running turn."""
    self._dispatch.post(self._engine.close, conversation)

  def leave(self, group: Group) -> None:
    """Tells the engine that one sample of the group will never open a conversation."""
    self._dispatch.post(self._engine.leave, group)

  def deliver(self, turns: Sequence[TurnEnded]) -> None:
    """Gives the engine's answers to the coroutines that await them."""
    for turn in turns:
      answer = self._answers.pop(turn.conversation)
      if not answer.done():  # its episode was cancelled
        answer.set_result(turn)
