"""JSON over HTTP with servers that are not trusted: one deadline for a whole call, a cap on the answer, no raw errors.

A library's timeouts are for one read each: a server that sends a byte now and then meets none of them. So every call
runs on one event loop of this process, where a single wall-clock timeout holds from connecting to the last byte, and
closes the socket when it ends. The loop's thread is a daemon: no call keeps a process alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

SLACK_S = 1.0  # for the loop to close what it gave up, before its caller leaves without it
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_starting = threading.Lock()


class CallFailed(Exception):
  """A call without an answer that can be read. The message says why, without the request's headers."""


class NoAnswerInTime(CallFailed):
  """The deadline came before the last byte of the answer."""


class ConnectionFailed(CallFailed):
  """Nobody there, or the connection broke, or what came was no HTTP."""


class AnswerTooLarge(CallFailed):
  """More bytes than allowed: the rest was not read."""


class NotJSON(CallFailed):
  """A good status, and a body that is no JSON: wrong UTF-8, too deep, numbers too long, or compressed."""


@dataclasses.dataclass(frozen=True)
class Reply:
  """An answer.

  Attributes:
    status: HTTP's.
    headers: names in lower case.
    body: the parsed JSON. A refusal (status 300 and above) may have any body: None where it is no JSON.
    text: the first 300 bytes of the body, for messages.
  """

  status: int
  headers: Mapping[str, str]
  body: Any
  text: str

  @property
  def retry_after_s(self) -> float | None:
    """Seconds of the Retry-After header; None without one, or where it is a date or nonsense."""
    said = self.headers.get("retry-after", "").strip()
    return float(said) if SECONDS.fullmatch(said) else None


def post_json(
  url: str,
  payload: Any,
  *,
  deadline: float,
  max_bytes: int,
  headers: Mapping[str, str] | None = None,
  proxies: bool = False,
) -> Reply:
  """POSTs a value as JSON; callable from any thread.

  Args:
    url: "http(s)://…"; redirects are answers, not followed.
    payload: JSON.
    deadline: of the whole call, on the clock of time.monotonic().
    max_bytes: of the answer's body; a longer one is not read to its end. Compressed ones are refused.
    headers: further ones; a value that HTTP forbids is refused without being shown.
    proxies: use those of the environment.

  Raises:
    NoAnswerInTime, ConnectionFailed, AnswerTooLarge, NotJSON: all of them CallFailed.
    ValueError: no such address, or a header that cannot be sent.
  """
  return _call("POST", url, json.dumps(payload).encode(), deadline, max_bytes, headers, proxies)


def get_json(
  url: str, *, deadline: float, max_bytes: int, headers: Mapping[str, str] | None = None, proxies: bool = False
) -> Reply:
  """GETs a value; otherwise as `post_json`."""
  return _call("GET", url, None, deadline, max_bytes, headers, proxies)


def _call(
  method: str,
  url: str,
  content: bytes | None,
  deadline: float,
  max_bytes: int,
  headers: Mapping[str, str] | None,
  proxies: bool,
) -> Reply:
  sent = {"accept": "application/json", "accept-encoding": "identity"}
  if content is not None:
    sent["content-type"] = "application/json"
  for name, value in (headers or {}).items():
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
      raise ValueError(f"the header {name!r} holds signs that HTTP forbids there, such as a line break at its end.")
    sent[name.lower()] = value
  try:
    request = httpx.Request(method, url, content=content, headers=sent)
  except httpx.InvalidURL as error:
    raise ValueError(f"{url!r}: no address that can be called ({error}).") from None
  if request.url.scheme not in ("http", "https") or not request.url.host:
    raise ValueError(f"{url!r}: an address is http://HOST:PORT/… or https://….")
  with _starting:
    loop, client = _loop(), _client(proxies)
  left = deadline - time.monotonic()
  if left <= 0:
    raise NoAnswerInTime("no time was left for the call")
  work = asyncio.run_coroutine_threadsafe(_answer(client, request, left, max_bytes), loop)
  try:
    status, given, raw = work.result(left + SLACK_S)
  except concurrent.futures.TimeoutError:
    raise NoAnswerInTime(f"no whole answer within {left:.3g} s") from None
  finally:
    work.cancel()
  text = raw[:300].decode(errors="replace")
  try:
    body = _parsed(raw, given)
  except NotJSON:
    if status < 300:
      raise
    body = None
  return Reply(status, given, body, text)


async def _answer(
  client: httpx.AsyncClient, request: httpx.Request, left_s: float, max_bytes: int
) -> tuple[int, dict[str, str], bytes]:
  """(status, headers, body), read up to the limits of time and length."""
  raw = bytearray()
  try:
    async with asyncio.timeout(left_s):
      response = await client.send(request, stream=True)
      try:
        async for chunk in response.aiter_raw():
          raw += chunk
          if len(raw) > max_bytes:
            raise AnswerTooLarge(f"the answer is longer than {max_bytes} bytes")
      finally:
        await response.aclose()
  except TimeoutError:
    raise NoAnswerInTime(f"no whole answer within {left_s:.3g} s") from None
  except httpx.HTTPError as error:  # some have no text of their own
    raise ConnectionFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
  return response.status_code, dict(response.headers), bytes(raw)


def _parsed(raw: bytes, headers: Mapping[str, str]) -> Any:
  coding = headers.get("content-encoding", "identity")
  if coding != "identity":
    raise NotJSON(f"the answer is compressed ({coding!r:.40}), which was not asked for")
  try:
    return json.loads(raw)
  except RecursionError:
    raise NotJSON("the answer is no JSON that can be read: it is nested too deep") from None
  except ValueError as error:  # bad UTF-8 and integers of thousands of digits, too
    raise NotJSON(f"the answer is no JSON ({error!s:.120}): {raw[:80].decode(errors='replace')!r}") from None


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
  loop = asyncio.new_event_loop()
  threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
  return loop


@functools.cache
def _client(proxies: bool) -> httpx.AsyncClient:
  limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
  return httpx.AsyncClient(timeout=None, follow_redirects=False, trust_env=proxies, limits=limits)
