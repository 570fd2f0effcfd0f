"""The server's queue: batches requests, takes turns between them, and drops requests of disconnected clients."""

import asyncio
import collections
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

PART = 16  # most texts that one request puts into a batch at its turn
LONGEST_PAUSE_S = 30  # longest Retry-After of a refused request


class Full(Exception):
  """Too many texts are waiting. After `retry_after_s` seconds, about half of them will be done."""

  def __init__(self, retry_after_s: int):
    super().__init__(f"ask again in {retry_after_s} s")
    self.retry_after_s = retry_after_s


class Batcher:
  """Runs requests on worker threads. While all workers are busy, requests wait and are batched.

  A batch takes a few texts of each request in turn, so that short requests do not wait for long ones. Cancelling a
  future drops its request. If a batch fails, its requests are run one by one, so a request fails only for its own
  texts.

  Args:
    work: `work(texts, key)` → one result per text. All texts of a batch have the same key.
    render: (a text's result, option) → the result for the client. Worker threads call `work` and `render`.
    waiting: most texts that may wait. A request beyond this limit is refused, unless no other request waits.
    done: called with (texts, seconds) after each batch, on the event loop.
  """

  def __init__(
    self,
    work: Callable[[list[str], Any], Sequence[Any]],
    render: Callable[[Any, Any], Any],
    *,
    workers: int,
    batch: int,
    waiting: int,
    done: Callable[[int, float], None] = lambda texts, seconds: None,
  ):
    self._work, self._render, self._batch, self._most, self._report = work, render, batch, waiting, done
    self._threads = workers
    self._unstarted, self._idle, self._texts, self._pace_s = workers, workers, 0, 0.0
    self._requests: collections.deque[_Request] = collections.deque()
    self._batches: queue.SimpleQueue[list[_Part]] = queue.SimpleQueue()

  @property
  def waiting(self) -> int:
    """Number of texts that wait."""
    return self._texts

  def submit(self, texts: Sequence[str], key: Hashable, option: Any) -> asyncio.Future[list[Any]]:
    """The rendered result of each text. Call it on the event loop; cancel the future to drop the request.

    Raises:
      Full: too many texts are waiting; ask again later.
    """
    if self._texts + len(texts) > self._most:
      self._forget()
      if self._texts and self._texts + len(texts) > self._most:
        seconds = math.ceil(self._pace_s * self._texts / self._threads / 2)
        raise Full(min(max(seconds, 1), LONGEST_PAUSE_S))
    loop = asyncio.get_running_loop()
    request = _Request(list(texts), key, option, loop.create_future())
    if not texts:
      request.future.set_result([])
      return request.future
    self._texts += len(texts)
    self._requests.append(request)
    if self._idle:  # call_soon: requests that arrive at the same time enter the same batch
      loop.call_soon(self._send)
    return request.future

  def _forget(self) -> None:
    """Drops cancelled requests."""
    self._requests = collections.deque(request for request in self._requests if not request.future.done())
    self._texts = sum(len(request.texts) - request.taken for request in self._requests)

  def _send(self) -> None:
    while self._idle and (parts := self._next()):
      self._idle -= 1
      if self._unstarted:  # start one more thread, until all workers exist
        loop = asyncio.get_running_loop()
        try:
          threading.Thread(target=self._run, args=(loop,), name="batches", daemon=True).start()
        except RuntimeError as error:  # a container's limit of processes: only these requests fail
          loop.call_soon(self._done, parts, [error] * len(parts), 0.0)
          continue
        self._unstarted -= 1
      self._batches.put(parts)

  def _next(self) -> "list[_Part]":
    """The next batch: a part of each request in turn, all with the same key."""
    parts, room, others = [], self._batch, []
    while room and self._requests:
      request = self._requests.popleft()
      left = len(request.texts) - request.taken
      if request.future.done():
        self._texts -= left
      elif parts and request.key != parts[0].request.key:
        others.append(request)
      else:
        part = _Part(request, request.taken, request.taken + min(left, room, PART))
        parts.append(part)
        request.taken = part.stop
        self._texts -= part.stop - part.start
        room -= part.stop - part.start
        if request.taken < len(request.texts):
          self._requests.append(request)  # at the end of the queue; it may get another turn in this batch
    self._requests.extendleft(reversed(others))
    return parts

  def _run(self, loop: asyncio.AbstractEventLoop) -> None:
    while True:
      parts = self._batches.get()
      begun = time.perf_counter()
      results = self._found(parts)
      try:
        loop.call_soon_threadsafe(self._done, parts, results, time.perf_counter() - begun)
      except RuntimeError:  # the loop is closed because the server has ended
        return

  def _found(self, parts: "list[_Part]") -> list[list[Any] | Exception]:
    """For each part its results, or the exception that it raised."""
    try:
      texts = [text for part in parts for text in part.request.texts[part.start : part.stop]]
      results = list(self._work(texts, parts[0].request.key))
      if len(results) != len(texts):
        raise ValueError(f"the retriever gave {len(results)} answers to {len(texts)} texts.")
      each = iter(results)
      return [[self._render(next(each), part.request.option) for _ in range(part.start, part.stop)] for part in parts]
    except BaseException as error:  # noqa: BLE001  (raised again by the requests' futures)
      if isinstance(error, StopIteration) or not isinstance(error, Exception):
        # A future takes no StopIteration. Any other would end this thread, unseen: panics of Rust are no Exception.
        error = RuntimeError(f"the retriever raised {type(error).__name__}: {error}")
      return [error] if len(parts) == 1 else [part_results for part in parts for part_results in self._found([part])]

  def _done(self, parts: "list[_Part]", found: list[list[Any] | Exception], seconds: float) -> None:
    self._idle += 1
    texts = sum(part.stop - part.start for part in parts)
    self._pace_s += (seconds / texts - self._pace_s) * (0.1 if self._pace_s else 1.0)  # a running mean
    self._report(texts, seconds)
    for part, results in zip(parts, found, strict=True):
      request = part.request
      if request.future.done():
        continue
      if isinstance(results, Exception):
        request.future.set_exception(results)
        continue
      request.results[part.start : part.stop] = results
      request.missing -= part.stop - part.start
      if not request.missing:
        request.future.set_result(request.results)
    self._send()


class _Request:
  def __init__(self, texts: list[str], key: Hashable, option: Any, future: asyncio.Future):
    self.texts, self.key, self.option, self.future = texts, key, option, future
    self.taken, self.missing, self.results = 0, len(texts), [None] * len(texts)


class _Part:
  def __init__(self, request: _Request, start: int, stop: int):
    self.request, self.start, self.stop = request, start, stop
