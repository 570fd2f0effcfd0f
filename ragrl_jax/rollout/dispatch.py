"""One thread dispatches every JAX program. Other threads send it calls through a queue."""

import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax


class Dispatch:
  """A queue of calls for the thread that serves it.

  A pool thread that needs the accelerator (the encoder of a search, a local judge) uses `call` and waits for the
  result. The event loop uses `post`, which does not wait.
  """

  def __init__(self):
    self._calls: queue.SimpleQueue = queue.SimpleQueue()
    self._server: int | None = None  # identity of the serving thread

  def post(self, function: Callable[..., Any], *args: Any) -> None:
    """Lets the serving thread call the function later. Calls are made in the order of posting."""
    self._calls.put((function, args))

  def call(self, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result, computed by the serving thread, or by this one if none serves. Raises its errors."""
    # The serving thread would wait for itself for ever.
    if self._server in (None, threading.get_ident()):
      return function(*args)
    answer: concurrent.futures.Future = concurrent.futures.Future()
    self.post(_answer, answer, function, args)
    if self._server is None:  # it has ended since, and may have looked into the queue before
      self.serve()
    return answer.result()

  def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """A version of the function that always runs on the serving thread."""
    return lambda *args: self.call(function, *args)

  @contextlib.contextmanager
  def serving(self) -> Iterator[None]:
    """Makes this thread the serving one."""
    if self._server is not None:
      raise ValueError("this dispatcher is being served already: one run at a time, from one thread.")
    self._server = threading.get_ident()
    try:
      yield
    finally:
      self._server = None
      self.serve()  # calls that arrived since must not wait for ever

  def serve(self, wait_s: float = 0.0) -> int:
    """Runs every call in the queue and returns their number. Waits at most `wait_s` seconds for the first one."""
    served = 0
    # Calls that arrive during this loop are served too, without waiting: get(timeout) only before the first one.
    while True:
      try:
        function, args = self._calls.get(timeout=wait_s) if wait_s and not served else self._calls.get_nowait()
      except queue.Empty:
        return served
      function(*args)
      served += 1


class Work:
  """Work that the dispatching thread does in pieces while it would otherwise wait.

  Args:
    pieces: starts one program at a time and yields an array of its result, or None. Its return value is the work's
      result.
  """

  def __init__(self, pieces: Generator[Any, None, Any]):
    self._pieces, self._done, self._result = pieces, False, None

  def advance(self) -> bool:
    """Does one piece and waits for the device. Returns False if nothing is left. Raises what the piece raises."""
    if self._done:
      return False
    # Without this wait, programs would queue up on the device ahead of the decoding that a returning search needs.
    jax.block_until_ready(self._next())
    return True

  def finish(self) -> Any:
    """Starts everything that is left, without waiting for the device; returns the result."""
    while not self._done:
      self._next()
    return self._result

  def _next(self) -> Any:
    try:
      return next(self._pieces)
    except StopIteration as end:
      self._done, self._result = True, end.value  # the generator's return value


def _answer(future: concurrent.futures.Future, function: Callable[..., Any], args: tuple) -> None:
  try:
    future.set_result(function(*args))
  except BaseException as error:
    goes_on = isinstance(error, Exception)
    # Ctrl-C is raised in this thread: the one that asked may run an event loop, which it would end.
    future.set_exception(error if goes_on else RuntimeError(f"interrupted by {type(error).__name__}"))
    if not goes_on:
      raise
