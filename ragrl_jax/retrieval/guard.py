"""uvicorn's HTTP protocol with protection against hostile clients: request deadlines and a limit on connections."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclasses.dataclass(frozen=True)
class Guard:
  """Limits of connections.

  Attributes:
    header_s: seconds for the headers of a request, from the start of the connection or of a further request.
    body_s: seconds for the body, after the headers.
    max_connections: most connections at a time. One more replaces the connection that has been idle, or sending a
      request, for longest. If all connections wait for answers, it is refused with status 503.
    grace_s: seconds for answers in progress when the server shuts down.
  """

  header_s: float = 10.0
  body_s: float = 30.0
  max_connections: int = 2048
  grace_s: float = 3.0


def protocol(guard: Guard) -> type[H11Protocol]:
  """The class for `uvicorn.Config(http=…)`. Each server needs its own."""
  return type("Guarded", (_Guarded,), dict(guard=guard, replaceable={}))


class _Guarded(H11Protocol):
  guard: ClassVar[Guard]
  replaceable: ClassVar[dict[_Guarded, None]]  # connections without a complete request, the longest-waiting first

  def connection_made(self, transport):
    super().connection_made(transport)
    self._phase = self._timer = None
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

  def shutdown(self):
    if self._phase == "body":
      self.drop()
    else:
      super().shutdown()

  def timeout_keep_alive_handler(self):
    super().timeout_keep_alive_handler()
    self.loop.call_later(self.guard.header_s, self.transport.abort)  # the client may never read its answer

  def drop(self):
    """Closes the connection at once, with unsent data lost."""
    self._enter("closed")
    self.connections.discard(self)
    self.transport.abort()

  def _look(self):
    """Updates the connection's phase; each phase has its own deadline."""
    theirs = self.conn.their_state
    if self.transport.is_closing():
      self._enter("closed")
    elif theirs is h11.SEND_BODY:
      self._enter("body")
    elif theirs is not h11.IDLE:
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

  def _late(self):
    self.transport.write(LATE)
    self.transport.close()
    self.loop.call_later(1.0, self.transport.abort)
