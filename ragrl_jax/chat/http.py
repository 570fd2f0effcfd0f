"""JSON over HTTP with untrusted servers: one deadline per call, a limit on the answer, and errors of our own.

Time limits of HTTP libraries are per read, so a server that sends a byte now and then never exceeds them. Therefore
every call runs on an event loop of this process. A single wall-clock limit covers it from connecting to the last byte,
and closes the socket. The loop's thread is a daemon, so no call keeps a process alive.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import ipaddress
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

SLACK_S = 1.0  # seconds for the loop to close an abandoned call before the caller leaves without it
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
Headers = Mapping[str, str]
_starting = threading.Lock()


class CallFailed(Exception):
  """A call without a readable answer. The message says why, without the request's headers."""


class NoAnswerInTime(CallFailed):
  """The deadline passed before the last byte of the answer."""


class ConnectionFailed(CallFailed):
  """No server answers at the address, the connection broke, or the answer is not HTTP."""


class AnswerTooLarge(CallFailed):
  """The answer has more bytes than allowed. The rest was not read."""


class NotJSON(CallFailed):
  """The status is good, but the body is not JSON: wrong UTF-8, nested too deep, too long numbers, or compressed."""


@dataclasses.dataclass(frozen=True)
class Reply:
  """An answer.

  Attributes:
    headers: names in lower case.
    body: the parsed JSON. The body of a refusal (status 300 and above) is None if it is not JSON.
    text: the first 300 bytes of the body, for messages.
  """

  status: int
  headers: Mapping[str, str]
  body: Any
  text: str

  @property
  def retry_after_s(self) -> float | None:
    """Seconds in the Retry-After header. None if there is none, or if it is a date or invalid."""
    value = self.headers.get("retry-after", "").strip()
    return float(value) if SECONDS.fullmatch(value) else None


def post_json(
  url: str, payload: Any, *, deadline: float, max_bytes: int, headers: Headers | None = None, proxies: bool = False
) -> Reply:
  """POSTs a value as JSON. Any thread may call it.

  Args:
    url: "http(s)://…". Redirects are returned as answers, not followed.
    deadline: of the whole call, on the clock of time.monotonic().
    max_bytes: limit on the answer's body; a longer one is not read to its end. Compressed bodies are refused.
    headers: additional headers. A value that HTTP forbids is refused without being shown.

  Raises:
    NoAnswerInTime, ConnectionFailed, AnswerTooLarge, NotJSON: subclasses of CallFailed.
    ValueError: the address is invalid, or a header cannot be sent.
  """
  return _call("POST", url, json.dumps(payload).encode(), deadline, max_bytes, headers, proxies)


def get_json(url: str, *, deadline: float, max_bytes: int, headers: Headers | None = None) -> Reply:
  """GETs a value without proxies. Otherwise like `post_json`."""
  return _call("GET", url, None, deadline, max_bytes, headers, proxies=False)


def _call(
  method: str, url: str, content: bytes | None, deadline: float, max_bytes: int, headers: Headers | None, proxies: bool
) -> Reply:
  headers_sent = {"accept": "application/json", "accept-encoding": "identity"}
  if content is not None:
    headers_sent["content-type"] = "application/json"
  for name, value in (headers or {}).items():
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
      raise ValueError(f"the header {name!r} contains characters that HTTP forbids, such as a line break at its end.")
    headers_sent[name.lower()] = value
  try:
    request = httpx.Request(method, url, content=content, headers=headers_sent)
  except httpx.InvalidURL as error:
    raise ValueError(f"{url!r} is not a valid address ({error}).") from None
  if request.url.scheme not in ("http", "https") or not request.url.host:
    raise ValueError(f"{url!r}: an address must be http://HOST:PORT/… or https://….")
  with _starting:
    loop, client = _loop(), _client(proxies)
  remaining = deadline - time.monotonic()
  if remaining <= 0:
    raise NoAnswerInTime("no time was left for the call")
  work = asyncio.run_coroutine_threadsafe(_answer(client, request, remaining, max_bytes), loop)
  try:
    status, reply_headers, raw = work.result(remaining + SLACK_S)
  except concurrent.futures.TimeoutError:
    raise NoAnswerInTime(f"no whole answer within {remaining:.3g} s") from None
  finally:
    work.cancel()
  text = raw[:300].decode(errors="replace")
  try:
    body = _parsed(raw, reply_headers)
  except NotJSON:
    if status < 300:
      raise
    body = None
  return Reply(status, reply_headers, body, text)


def is_loopback(host: str) -> bool:
  """Whether a host name or an address is this machine's loopback."""
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host.lower() == "localhost"


async def _answer(
  client: httpx.AsyncClient, request: httpx.Request, left_s: float, max_bytes: int
) -> tuple[int, dict[str, str], bytes]:
  """(status, headers, body), read within the limits of time and length."""
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
  except httpx.HTTPError as error:  # some errors have no text
    raise ConnectionFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
  return response.status_code, dict(response.headers), bytes(raw)


def _parsed(raw: bytes, headers: Mapping[str, str]) -> Any:
  coding = headers.get("content-encoding") or "identity"
  if coding != "identity":
    raise NotJSON(f"the answer is compressed ({coding!r:.40}), which was not asked for")
  try:
    return json.loads(raw)
  except RecursionError:
    raise NotJSON("the answer is not valid JSON: it is nested too deep") from None
  except ValueError as error:  # also invalid UTF-8, and integers of thousands of digits
    raise NotJSON(f"the answer is not JSON ({error!s:.120}): {raw[:80].decode(errors='replace')!r}") from None


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
  loop = asyncio.new_event_loop()
  threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
  return loop


@functools.cache
def _client(proxies: bool) -> httpx.AsyncClient:
  limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
  try:
    return httpx.AsyncClient(timeout=None, follow_redirects=False, trust_env=proxies, limits=limits)
  except (ImportError, ValueError) as error:  # SOCKS without its package, or another scheme
    raise ValueError(f"the proxy in ALL_PROXY, HTTPS_PROXY or HTTP_PROXY cannot be used: {error}") from None
