"""One thread dispatches every JAX program. The others send it calls through a queue."""

import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax


class Dispatch:
  """A queue of calls for the thread that serves it.

  A pool thread that needs the accelerator (the encoder of a search, a local judge) uses `call`, and waits for the
  result. The event loop uses `post`, which never waits.
  """

  def __init__(self):
    self._calls: queue.SimpleQueue = queue.SimpleQueue()
    self._server: int | None = None  # identity of the serving thread

  def post(self, function: Callable[..., Any], *args: Any) -> None:
    """Has the serving thread call the function later. Calls are made in the order in which they were posted."""
    self._calls.put((function, args))

  def call(self, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result, computed by the serving thread; by this one if nobody serves. Raises what it raises."""
    # A thread that waited for itself would wait for ever.
    if self._server in (None, threading.get_ident()):
      return function(*args)
    answer: concurrent.futures.Future = concurrent.futures.Future()
    self.post(_answer, answer, function, args)
    return answer.result()

  def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, always run by the serving thread."""
    return lambda *args: self.call(function, *args)

  @contextlib.contextmanager
  def serving(self) -> Iterator[None]:
    """Makes this thread the one that `serve` is called from."""
    if self._server is not None:
      raise ValueError("this dispatcher is being served already: one run at a time, from one thread.")
    self._server = threading.get_ident()
    try:
      yield
    finally:
      self._server = None
      self.serve()  # what was asked for meanwhile must not wait for ever

  def serve(self, wait_s: float = 0.0) -> int:
    """Runs every call in the queue and returns their number. Waits for the first one, at most `wait_s` seconds."""
    served = 0
    # Calls that arrive meanwhile are served as well, without a wait: get(timeout) only as long as none has come.
    while True:
      try:
        function, args = self._calls.get(timeout=wait_s) if wait_s and not served else self._calls.get_nowait()
      except queue.Empty:
        return served
      function(*args)
      served += 1


class Work:
  """Work that the dispatching thread does piece by piece, whenever it would otherwise wait.

  Args:
    pieces: starts one program at a time and yields an array of its result, or None. What it returns is the work's
      result.
  """

  def __init__(self, pieces: Generator[Any, None, Any]):
    self._pieces, self._done, self._result = pieces, False, None

  def advance(self) -> bool:
    """Does one piece and waits for the device. Returns False if nothing is left. Raises what the piece raises."""
    if self._done:
      return False
    # Without the wait, programs would queue up on the device before the decode that a returning search needs.
    jax.block_until_ready(self._next())
    return True

  def finish(self) -> Any:
    """Starts all that is left, without waiting for the device; returns the result."""
    while not self._done:
      self._next()
    return self._result

  def _next(self) -> Any:
    try:
      return next(self._pieces)
    except StopIteration as end:
      self._done, self._result = True, end.value  # what the generator returned


class _Into:
  """Puts any exception of its block into a future: the thread that asked raises it."""

  def __init__(self, future: concurrent.futures.Future):
    self._future = future

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, trace) -> bool:
    if error is not None:
      self._future.set_exception(error)
    return error is not None  # True: the serving thread goes on


def _answer(future: concurrent.futures.Future, function: Callable[..., Any], args: tuple) -> None:
  with _Into(future):
    future.set_result(function(*args))
