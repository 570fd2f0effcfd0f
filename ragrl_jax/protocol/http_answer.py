"""HTTP responses of our servers: complete or streamed, and errors as one line of JSON."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine
from typing import Any

from ragrl_jax.core.text.forms import well_formed

Header = tuple[bytes, bytes]
SLOW_S = 5.0  # time limit for sending an error, in seconds


class Refused(Exception):
  """A refused request.

  Args:
    message: the error, and what to change.
    header: one header of the response; None: the usual one of the status, if any.
    param, code: fields of OpenAI's error object.
  """

  def __init__(
    self, status: int, message: str, header: Header | None = None, *, param: str | None = None, code: str | None = None
  ):
    super().__init__(message)
    self.status, self.message, self.param, self.code = status, message, param, code
    self.header = header or {413: (b"connection", b"close"), 429: (b"retry-after", b"1")}.get(status)

  def body(self) -> dict[str, Any]:
    """The error as JSON."""
    kind = "rate_limit_error" if self.status == 429 else "invalid_request_error"
    kind = "server_error" if self.status >= 500 else kind
    return {"error": dict(message=self.message, type=kind, param=self.param, code=self.code)}


class Answer:
  """Sends one HTTP response over ASGI. `kind` and `last`: content type and last bytes of a streamed response."""

  def __init__(self, send, *, kind: bytes = b"text/event-stream; charset=utf-8", last: bytes = b""):
    self._send, self._kind, self._last, self._begun = send, kind, last, False

  async def whole(self, value: Any, status: int = 200, *headers: Header) -> None:
    """Sends a complete response: this value as JSON."""
    await self.text(json.dumps(value, ensure_ascii=False), b"application/json", status, *headers)

  async def text(self, text: str, kind: bytes, status: int = 200, *headers: Header) -> None:
    """Sends a complete response: this text, with the content type `kind`."""
    body = well_formed(text).encode()
    head = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
    await self._send(dict(type="http.response.start", status=status, headers=head))
    await self._send(dict(type="http.response.body", body=body))

  async def event(self, value: Any) -> None:
    """Streams a value as a server-sent event or as a line of JSON. The first event starts the response."""
    data = well_formed(json.dumps(value, ensure_ascii=False)).encode()
    await self._more(b"data: " + data + b"\n\n" if self._kind.startswith(b"text/event-stream") else data + b"\n")

  async def end(self) -> None:
    """Ends a stream."""
    await self._more(self._last, last=True)

  async def refuse(self, refused: Refused) -> None:
    """Sends an error. If a stream has started, the error is its last event."""
    with contextlib.suppress(TimeoutError):  # the client does not read the response, so sending stops
      async with asyncio.timeout(SLOW_S):
        if self._begun:
          await self.event(refused.body())
          await self.end()
          return
        await self.whole(refused.body(), refused.status, *filter(None, [refused.header]))

  async def _more(self, data: bytes, *, last: bool = False) -> None:
    if not self._begun:
      self._begun = True
      head = [(b"content-type", self._kind), (b"cache-control", b"no-store")]
      await self._send(dict(type="http.response.start", status=200, headers=head))
    await self._send(dict(type="http.response.body", body=data, more_body=not last))


class Left(Exception):
  """The client has disconnected before its request was complete."""


class Site:
  """An ASGI application. A subclass answers a request in `serve`, and may raise Refused or Left there."""

  stream, last = b"text/event-stream; charset=utf-8", b""  # content type and last bytes of streamed responses

  async def serve(self, scope, receive, answer: Answer) -> None:
    """Answers a request."""
    raise NotImplementedError

  def failed(self) -> str:
    """What a client is told about a bug."""
    return "the server has failed: see the server's log."

  async def __call__(self, scope, receive, send) -> None:
    if scope["type"] != "http":
      raise NotImplementedError(f"{scope['type']!r}: only HTTP is served.")
    answer = Answer(send, kind=self.stream, last=self.last)
    try:
      await self.serve(scope, receive, answer)
    except Left:
      pass
    except Refused as refused:
      await answer.refuse(refused)
    except Exception:
      logging.exception("%s failed", scope["path"].rpartition("/v1/")[2])  # what is before it may be a secret
      await answer.refuse(Refused(500, self.failed()))


async def answered(work: Coroutine[Any, Any, None], receive, timeout_s: float) -> None:
  """Runs the work that sends a response, and cancels it if the client disconnects.

  Args:
    receive: the `receive` of ASGI, from which the request's body has been read.

  Raises:
    Refused: `timeout_s` seconds have passed, or the work refused the request.
  """
  task = asyncio.current_task()
  assert task is not None
  watcher = asyncio.create_task(cancel_when_left(receive, task))
  try:
    async with asyncio.timeout(timeout_s):
      await work
  except TimeoutError:
    raise Refused(504, f"the reply took longer than {timeout_s:g} s: ask for fewer tokens or replies.") from None
  except asyncio.CancelledError:
    if not watcher.done():  # the server is shutting down
      raise
  finally:
    watcher.cancel()


async def cancel_when_left(receive, work: asyncio.Future) -> None:
  """Cancels the work when the client disconnects."""
  while (await receive())["type"] != "http.disconnect":
    pass
  work.cancel()
