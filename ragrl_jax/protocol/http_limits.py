"""Protects our servers from hostile clients: deadlines, a limit of connections, checks of headers."""

import dataclasses
import hmac
import math
import resource
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ragrl_jax.chat.http import is_loopback
from ragrl_jax.protocol.http_answer import Left, Refused

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
LEAST = 16 << 10  # bytes; see `Guard.read_s`
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclasses.dataclass(frozen=True)
class Guard:
  """Limits of connections.

  Attributes:
    header_s: seconds for the headers of a request, from the start of the connection or of a further request.
    body_s: seconds for the body, after the headers.
    read_s: seconds in which a client must read 16 KiB of the answer that waits for it, or the rest of it. Otherwise its
      connection is dropped.
    max_connections: most connections at a time. A new connection replaces the one that has been idle, or sending a
      request, for longest. If all connections wait for answers, the new one is refused with status 503.
    grace_s: seconds for answers in progress when the server shuts down.
  """

  header_s: float = 10.0
  body_s: float = 30.0
  read_s: float = 30.0
  max_connections: int = 2048
  grace_s: float = 3.0


def protocol(guard: Guard) -> type[H11Protocol]:
  """The class for `uvicorn.Config(http=…)`. Each server needs its own."""
  return type("Guarded", (_Guarded,), dict(guard=guard, replaceable={}))


class _Guarded(H11Protocol):
  guard: ClassVar[Guard]
  replaceable: ClassVar[dict["_Guarded", None]]  # connections without a complete request, the longest-waiting first

  def connection_made(self, transport):
    super().connection_made(transport)
    self._phase = self._timer = self._reader = None
    if len(self.connections) > self.guard.max_connections:
      oldest = next(iter(self.replaceable), None)
      if oldest is None:
        transport.write(BUSY)
        transport.close()
        return
      oldest.drop()
    self._look()

  def data_received(self, data):
    super().data_received(data)
    self._look()

  def on_response_complete(self):
    super().on_response_complete()
    self._look()

  def connection_lost(self, exc):
    super().connection_lost(exc)
    self._enter("closed")
    self._stop_watching()

  def pause_writing(self):
    super().pause_writing()
    self._watch()

  def resume_writing(self):
    super().resume_writing()
    if not self.transport.is_closing():  # a closing one is watched to its end
      self._stop_watching()

  def shutdown(self):
    if self._phase == "body":
      self.drop()
    else:
      super().shutdown()

  def timeout_keep_alive_handler(self):
    super().timeout_keep_alive_handler()
    self._look()

  def drop(self):
    """Closes the connection at once. Unsent data is lost."""
    self._enter("closed")
    self.connections.discard(self)
    self.transport.abort()

  def _look(self):
    """Updates the connection's phase; each phase has its own deadline."""
    client_state = self.conn.their_state
    if self.transport.is_closing():
      self._enter("closed")
    elif client_state is h11.SEND_BODY:
      self._enter("body")
    elif client_state is not h11.IDLE:
      self._enter("answer")
    elif self.cycle is not None and not self.conn.trailing_data[0]:
      self._enter("idle")  # uvicorn's own timer limits this phase
    else:
      self._enter("head")

  def _enter(self, phase):
    if phase == self._phase:
      return
    self._phase = phase
    if self._timer is not None:
      self._timer.cancel()
    seconds = dict(head=self.guard.header_s, body=self.guard.body_s).get(phase)
    self._timer = self.loop.call_later(seconds, self._late) if seconds else None
    self.replaceable.pop(self, None)
    if phase in ("head", "body", "idle"):
      self.replaceable[self] = None
    elif phase == "closed":  # the socket stays open until the client has read the rest
      self._watch()

  def _watch(self, unread=math.inf):
    """Drops the client if it has not read enough since `unread` bytes waited for it."""
    unread_now = self.transport.get_write_buffer_size()
    self._stop_watching()
    if unread_now > unread - LEAST:
      self.drop()
    elif unread_now:
      self._reader = self.loop.call_later(self.guard.read_s, self._watch, unread_now)

  def _stop_watching(self):
    if self._reader is not None:
      self._reader.cancel()
      self._reader = None

  def _late(self):
    self.transport.write(LATE)
    self.transport.close()
    self.loop.call_later(1.0, self.transport.abort)


def address(host: str, port: int) -> str:
  """The address of a server, with brackets around a host like ::1."""
  return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bound(host: str, port: int, flags: str = "--host or --port") -> socket.socket:
  """A server's socket, for `uvicorn.Server.run`: an address that is taken is refused before anything is loaded.

  Raises:
    OSError: the address cannot be used; the message names the flags.
  """
  listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind((host, port))
  except OSError as error:
    listener.close()
    raise OSError(f"{host}:{port}: {error.strerror}: choose another {flags}.") from None
  return listener


def configured(application: Any, *, host: str, port: int, guard: Guard | None = None) -> uvicorn.Config:
  """Settings of uvicorn for an ASGI application. The server ends at most five seconds after SIGTERM."""
  guard = guard or Guard()
  guard = dataclasses.replace(guard, max_connections=_descriptors(guard.max_connections))
  return uvicorn.Config(
    application,
    host=host,
    port=port,
    log_level="error",
    access_log=False,
    http=protocol(guard),
    ws="none",
    lifespan="off",
    proxy_headers=False,
    server_header=False,
    timeout_keep_alive=15,
    timeout_graceful_shutdown=guard.grace_s,
  )


async def read_body(receive, most: int) -> bytes:
  """The body of a request.

  Raises:
    Refused: it has more than `most` bytes. The rest was not read.
    Left: the client has disconnected.
  """
  raw = bytearray()
  while True:
    message = await receive()
    if message["type"] == "http.disconnect":
      raise Left
    raw += message.get("body", b"")
    if len(raw) > most:
      raise Refused(413, f"the body is longer than {most} bytes: send less per request.")
    if not message.get("more_body", False):
      return bytes(raw)


def check(scope, *, local: bool, key: str = "") -> None:
  """Checks a request's headers.

  Args:
    local: accept only requests whose Host header names this machine's loopback, at any port. This refuses a web page
      whose domain name resolves to this machine (DNS rebinding).
    key: the token that every request must bring ("Authorization: Bearer KEY"); "" for none.

  Raises:
    Refused: the request is not accepted.
  """
  headers, close = dict(scope["headers"]), (b"connection", b"close")
  if b"content-length" in headers and b"transfer-encoding" in headers:
    raise Refused(400, "Content-Length and Transfer-Encoding contradict each other: send one of them.", close)
  host = headers.get(b"host", b"").decode("latin-1")
  if local and not is_loopback(_name(host)):
    advice = f"Host {host[:80]!r}: this server answers only as localhost; --host opens it to other names."
    raise Refused(400, advice, close)
  origin = headers.get(b"origin")
  if origin is not None and origin.decode("latin-1") != f"http://{host}":
    raise Refused(403, "this server refuses requests from pages of other sites.", close)
  scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
  if key and not (scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), key.encode())):
    bearer = (b"www-authenticate", b"Bearer")
    raise Refused(401, "wrong or missing key: send Authorization: Bearer KEY.", bearer, code="invalid_api_key")


def check_page(page: str, method: str, pages: Mapping[str, str]) -> None:
  """Raises Refused if there is no such page, or if it needs another method. pages: page → its method."""
  if (needed := pages.get(page)) is None:
    raise Refused(404, f"no page {page[:80]!r}: use one of {', '.join(pages)}.")
  if method != needed:
    raise Refused(405, f"{page} needs {needed}.", (b"allow", needed.encode()))


def _name(host: str) -> str:
  """The name in a Host header, without the port."""
  try:
    return urllib.parse.urlsplit(f"//{host}").hostname or ""
  except ValueError:
    return ""


def _descriptors(count: int) -> int:
  """Number of connections for which there are file descriptors, at most `count`. Raises the soft limit if needed."""
  spare = 64  # for the index's files and for Python's own
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft < count + spare:
    soft = min(hard, count + spare) if hard != resource.RLIM_INFINITY else count + spare
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
  return max(min(count, soft - spare), 1)
