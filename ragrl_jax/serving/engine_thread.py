"""Runs an engine in its own thread, and turns in slices, so that clients see tokens while a turn is sampled.

    event loops  ── open, submit, close ──►  engine's thread  ── Slice, Slice, … ──►  the turn's `hear`

A turn of 100 tokens is sampled as several turns of one chunk each. So a turn can end between two chunks: at a stop
string that the engine was not compiled for, or when its client has left. The tokens do not depend on the slices, since
every position has its own random number. Conversations in the cache share the lanes slice by slice.
"""

import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.lanes import FULL
from ragrl_jax.engine.messages import Group, Open, Turn, TurnEnded
from ragrl_jax.rollout.dispatch import Dispatch

WAIT_S = 1.0  # while the thread is idle: seconds between two checks whether it must end


@dataclasses.dataclass(frozen=True)
class Slice:
  """A part of a turn.

  Attributes:
    ids, logprobs: tokens sampled since the last slice, and the log-probability of each.
    stop: None while the turn continues; else as in `TurnEnded`.
  """

  ids: tuple[int, ...]
  logprobs: tuple[float, ...]
  stop: int | None


# Called on the engine's thread with a slice, or with the error that ended the engine. It must not block. It returns
# whether the turn may continue.
Hear = Callable[[Slice | BaseException], bool]


class Closed(RuntimeError):
  """The thread was closed; unfinished and later turns are told so."""


class EngineThread:
  """The thread that runs every JAX program of an engine, from `start` to `close`.

  Args:
    engine: with weights. After `start` only the thread may use it.
    dispatch: the queue to the thread, shared with tools that need the accelerator; by default a new queue.

  Attributes:
    failed: called on the thread with the error that ended it; does nothing unless it is replaced.
    numbers: unique numbers for conversations and groups.
    error: the error that ended the thread, such as a lost device; None if there was none.
  """

  def __init__(self, engine: Engine, dispatch: Dispatch | None = None):
    self.engine, self.dispatch = engine, dispatch or Dispatch()
    self.failed: Callable[[BaseException], None] = lambda error: None
    self.numbers = itertools.count()
    self.error: BaseException | None = None
    self._turns: dict[int, _Turn] = {}  # unfinished turns, by conversation
    self._over = False
    # A turn that comes before the error is queued, and the thread tells it; a turn that comes later is told at once.
    self._order = threading.Lock()
    self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

  def start(self) -> None:
    """Starts the thread."""
    self.engine.check()
    self._thread.start()

  def close(self) -> None:
    """Ends the thread and all unfinished turns."""
    self.dispatch.post(self._end)
    self._thread.join()

  # ---- from any thread -----------------------------------------------------------------------------------------------

  def open(self, message: Open) -> None:
    """See `Engine.open`."""
    self.dispatch.post(self._use, self.engine.open, message)

  def submit(self, turn: Turn, hear: Hear) -> None:
    """Starts a turn. `hear` is called with every slice, the last one included."""
    with self._order:
      if self.error is None:
        self.dispatch.post(self._submit, turn, hear)
        return
    hear(self.error)

  def close_conversation(self, number: int) -> None:
    """Ends a conversation and its turn. No more slices follow."""
    self.dispatch.post(self._close, number)

  def leave(self, group: Group) -> None:
    """See `Engine.leave`."""
    self.dispatch.post(self._use, self.engine.leave, group)

  def alone(self, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result, called on the thread when the slices under way have ended.

    All clients must have left. The slice of a client that has disconnected is still under way.
    """
    return self.dispatch.call(self._alone, function, args)

  # ---- on the thread -------------------------------------------------------------------------------------------------

  def _alone(self, function: Callable[..., Any], args: tuple) -> Any:
    while self.engine.busy:
      self._step()
    return function(*args)

  def _step(self) -> None:
    for ended in self.engine.step():
      self._after(ended)

  def _run(self) -> None:
    try:
      with self.dispatch.serving():
        while not self._over:
          self.dispatch.serve(wait_s=0.0 if self.engine.busy else WAIT_S)
          if self.engine.busy:
            self._step()
        raise Closed("the server was closed.")
    except BaseException as error:  # passed to all waiting turns, and to `failed`
      with self._order:
        self.error = error
      if not isinstance(error, Closed):
        logging.exception("the engine has failed")
      for turn in self._turns.values():
        turn.hear(error)
      self.dispatch.serve()  # turns that were queued since the engine's last step
      if not isinstance(error, Closed):
        self.failed(error)

  def _end(self) -> None:
    self._over = True

  def _use(self, method: Callable[..., None], *args: Any) -> None:
    """Calls a method of the engine, unless the engine has failed."""
    if self.error is None:
      method(*args)

  def _submit(self, turn: Turn, hear: Hear) -> None:
    if self.error is not None:
      hear(self.error)
      return
    self._turns[turn.conversation] = _Turn(turn, hear, turn.budget)
    self.engine.submit(dataclasses.replace(turn, budget=min(turn.budget, self.engine.sizes.ahead)))

  def _close(self, number: int) -> None:
    self._turns.pop(number, None)
    self._use(self.engine.close, number)

  def _after(self, ended: TurnEnded) -> None:
    """Continues a turn after a slice, unless the turn is complete."""
    turn = self._turns.get(ended.conversation)
    if turn is None:  # it was closed meanwhile
      return
    turn.left -= len(ended.ids)
    over = ended.stop != FULL or not turn.left
    if turn.hear(Slice(ended.ids, ended.logprobs, ended.stop if over else None)) and not over:
      budget = min(turn.left, self.engine.sizes.ahead)
      self.engine.submit(dataclasses.replace(turn.turn, new_ids=(), budget=budget, resumed=True))
    else:
      del self._turns[ended.conversation]


@dataclasses.dataclass
class _Turn:
  """An unfinished turn; `left` is the rest of its token budget."""

  turn: Turn
  hear: Hear
  left: int
