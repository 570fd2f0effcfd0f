"""The server's queue of searches: it batches requests, treats them fairly, and drops requests whose client has left."""

from __future__ import annotations

import asyncio
import collections
import queue
import threading
from collections.abc import Callable, Sequence

from ragrl_jax.retrieval.api import Answers
from ragrl_jax.structs import Passage

PART = 16  # most queries that one request puts into a batch at its turn


class Full(Exception):
  """Too many queries are waiting already."""


class Searches:
  """Runs requests on worker threads. While all workers are busy, requests queue up and are batched into one `search`.

  A batch takes a few queries of each request in turn, so that short requests do not wait for long ones. A cancelled
  future ends the work on its request. If a batch fails, its requests are searched one by one, so that a request fails
  only by its own queries.

  Args:
    search: `search(queries, k)`, called on the worker threads.
    render: (passages of one query, option) → bytes, called on the worker threads.
    workers: number of threads, each with one batch at a time.
    batch: queries in one batch.
    waiting: most queries that may wait. A request beyond that is refused, unless no other waits.
  """

  def __init__(
    self,
    search: Callable[[list[str], int], Answers],
    render: Callable[[list[Passage], bool], bytes],
    *,
    workers: int,
    batch: int,
    waiting: int,
  ):
    self._search, self._render, self._batch, self._most = search, render, batch, waiting
    self._workers, self._idle, self._queries = workers, workers, 0
    self._requests: collections.deque[_Request] = collections.deque()
    self._batches: queue.SimpleQueue[list[_Part]] = queue.SimpleQueue()

  def submit(self, queries: Sequence[str], k: int, option: bool) -> asyncio.Future[list[bytes]]:
    """The rendered passages of each query. Call it on the event loop; cancel the future to drop the request.

    Raises:
      Full: too many queries are waiting; ask again later.
    """
    if self._queries + len(queries) > self._most:
      self._forget()
      if self._queries and self._queries + len(queries) > self._most:
        raise Full
    loop = asyncio.get_running_loop()
    request = _Request(list(queries), k, option, loop.create_future())
    if not queries:
      request.future.set_result([])
      return request.future
    self._queries += len(queries)
    self._requests.append(request)
    if self._idle:  # call_soon: requests that are ready at this moment enter the same batch
      loop.call_soon(self._send)
    return request.future

  def _forget(self) -> None:
    """Drops the requests that were cancelled."""
    self._requests = collections.deque(request for request in self._requests if not request.future.done())
    self._queries = sum(len(request.queries) - request.taken for request in self._requests)

  def _send(self) -> None:
    while self._idle and (parts := self._next()):
      self._idle -= 1
      if self._workers:  # start one more thread, until all workers exist
        self._workers -= 1
        arguments = (asyncio.get_running_loop(),)
        threading.Thread(target=self._work, args=arguments, name="searches", daemon=True).start()
      self._batches.put(parts)

  def _next(self) -> list[_Part]:
    """The next batch: a part of each request in turn, all with the same k."""
    parts, room, others = [], self._batch, []
    while room and self._requests:
      request = self._requests.popleft()
      left = len(request.queries) - request.taken
      if request.future.done():
        self._queries -= left
      elif parts and request.k != parts[0].request.k:
        others.append(request)
      else:
        part = _Part(request, request.taken, request.taken + min(left, room, PART))
        parts.append(part)
        request.taken = part.stop
        self._queries -= part.stop - part.start
        room -= part.stop - part.start
        if request.taken < len(request.queries):
          self._requests.append(request)  # to the end of the queue; its next turn may be in this batch
    self._requests.extendleft(reversed(others))
    return parts

  def _work(self, loop: asyncio.AbstractEventLoop) -> None:
    while True:
      parts = self._batches.get()
      found = self._found(parts)
      try:
        loop.call_soon_threadsafe(self._done, parts, found)
      except RuntimeError:  # the loop is closed because the server has ended
        return

  def _found(self, parts: list[_Part]) -> list[list[bytes] | Exception]:
    """The answers of each part, or the exception that it raised."""
    try:
      texts = [query for part in parts for query in part.request.queries[part.start : part.stop]]
      answers = iter(self._search(texts, parts[0].request.k))
      return [
        [self._render(next(answers), part.request.option) for _ in range(part.start, part.stop)] for part in parts
      ]
    except Exception as error:  # noqa: BLE001  (raised again by the requests' futures)
      return [error] if len(parts) == 1 else [found for part in parts for found in self._found([part])]

  def _done(self, parts: list[_Part], found: list[list[bytes] | Exception]) -> None:
    self._idle += 1
    for part, answers in zip(parts, found, strict=True):
      request = part.request
      if request.future.done():
        continue
      if isinstance(answers, Exception):
        request.future.set_exception(answers)
        continue
      request.answers[part.start : part.stop] = answers
      request.missing -= part.stop - part.start
      if not request.missing:
        request.future.set_result(request.answers)
    self._send()


class _Request:
  def __init__(self, queries: list[str], k: int, option: bool, future: asyncio.Future):
    self.queries, self.k, self.option, self.future = queries, k, option, future
    self.taken, self.missing, self.answers = 0, len(queries), [b""] * len(queries)


class _Part:
  def __init__(self, request: _Request, start: int, stop: int):
    self.request, self.start, self.stop = request, start, stop
