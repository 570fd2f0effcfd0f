"""Sends messages (a name and small arrays) from one host to a few others over TCP. Received bytes are never executed.

    size of the header, uint32 | header, JSON: [name, [[dtype, shape], …]] | the arrays' bytes, one after the other

Use a link from one thread. A separate thread watches each connection, so a lost host is noticed while the device waits
for it. If a process ends, its connection ends at once. If a machine dies, its connection ends after SILENT_S.

JAX's coordination service is no substitute. On one machine it takes 1.4 ms for 20 kB and an answer, and 65 ms for 1 MB,
where a link takes 0.07 and 1.5 ms.
"""

import contextlib
import json
import math
import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax  # also adds the dtype bfloat16 to NumPy
import numpy as np

from ragrl_jax.parallel import hosts

WAIT_S = 60.0  # longest wait for the other hosts' connections, after all hosts have reached `connect`
HELLO_S = 5.0  # longest wait for the first bytes of a connection
SILENT_S = 30  # a machine that does not answer packets for this long is lost
NOTICE_S = 5.0  # a collective operation that fails within this time of a connection's end has the same cause
GRACE_S = 10.0  # time that the main thread has to raise the loss; then the process is ended

HEADER = struct.Struct("<I")
HELLO = struct.Struct("<32sI")  # token, number of the host


class Lost(RuntimeError):
  """Another host of the group has ended, or cannot be reached."""


class Message(NamedTuple):
  """A message from one host to the others."""

  name: str
  arrays: tuple[np.ndarray, ...] = ()


def connect(size: int) -> "Link":
  """Connects this host with the other hosts of its group. A group is `size` successive hosts. All hosts call it.

  The first host of a group sends, the others receive. Raises Lost if one has not connected within WAIT_S.
  """
  first = hosts.number() // size * size
  if hosts.number() == first:
    with _server() as server:
      token = secrets.token_hex(16)
      hosts.exchange([hosts.address(), server.getsockname()[1], token])
      return Link(first, _accepted(server, token, set(range(first + 1, first + size))))
  address, port, token = hosts.exchange(None)[first]
  try:
    connection = socket.create_connection((address, port), timeout=WAIT_S)
  except OSError as error:
    raise Lost(
      f"host {first} does not answer at {address}:{port} ({error}): is there a firewall between them?"
    ) from error
  connection.sendall(HELLO.pack(token.encode(), hosts.number()))
  return Link(first, {first: connection})


def _server() -> socket.socket:
  if socket.has_dualstack_ipv6():
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
  return socket.create_server(("", 0))


def _accepted(server: socket.socket, token: str, missing: set[int]) -> dict[int, socket.socket]:
  """The connections of these hosts. A connection that does not send the token is closed."""
  result: dict[int, socket.socket] = {}
  end = time.monotonic() + WAIT_S
  while missing - result.keys():
    server.settimeout(max(0.01, end - time.monotonic()))
    try:
      connection, _ = server.accept()
    except TimeoutError as error:
      raise Lost(f"hosts {sorted(missing - result.keys())} have not connected within {WAIT_S:.0f} s.") from error
    connection.settimeout(HELLO_S)
    try:
      said, number = HELLO.unpack(_read(connection, HELLO.size))
    except OSError:  # the other side sent nothing, or closed the connection
      connection.close()
      continue
    if secrets.compare_digest(said, token.encode()) and number in missing:
      result[number] = connection
    else:
      connection.close()
  return result


class Link:
  """Open connections to other hosts.

  Args:
    first: number of the host that sends; the others receive.
    peers: number of a host → connection to it.
  """

  def __init__(self, first: int, peers: dict[int, socket.socket]):
    self.leads = hosts.number() == first
    self._peers = peers
    self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    self._gone, self._busy = threading.Event(), threading.Event()
    self._lost: int | None = None
    for number, connection in peers.items():
      connection.settimeout(None)  # here, not in the thread: the first message may be sent before it runs
      _keep_alive(connection)
      threading.Thread(target=self._watch, args=(number, connection), name=f"host {number}", daemon=True).start()

  def send(self, name: str, *arrays: np.ndarray) -> None:
    """Sends a message to the other hosts. Raises Lost if one of them is lost."""
    self._check()
    header = json.dumps([name, [[x.dtype.name, x.shape] for x in arrays]]).encode()
    parts = [HEADER.pack(len(header)), header, *(np.ascontiguousarray(x).tobytes() for x in arrays)]
    for number, connection in self._peers.items():
      try:
        connection.sendall(b"".join(parts))
      except OSError:
        self._note(number)
    self._check()

  def receive(self) -> Message:
    """Waits for the next message and returns it. Raises Lost if the sending host is lost."""
    message = self._messages.get()
    if message is None:
      self._messages.put(None)  # for the next call
      raise self._error()
    return message

  @contextlib.contextmanager
  def busy(self) -> Iterator[None]:
    """Within this block, the loss of a host ends the process, even if the main thread waits for a device.

    Raises:
      Lost: in place of the error of a collective operation that failed because a host is lost.
    """
    self._busy.set()
    try:
      yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # ValueError: of a program that a CPU runs at once
      of_program = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)
      if of_program and self._gone.wait(NOTICE_S):
        raise self._error() from error
      raise
    finally:
      self._busy.clear()

  def _check(self) -> None:
    if self._lost is not None:
      raise self._error()

  def _error(self) -> Lost:
    return Lost(
      f"host {self._lost}, which runs an engine together with this host {hosts.number()} (config.rollout.mesh), has "
      "ended or cannot be reached; its own log says why."
    )

  def _note(self, number: int) -> None:
    self._lost = number if self._lost is None else self._lost
    self._gone.set()

  def _watch(self, number: int, connection: socket.socket) -> None:
    """Reads what a host sends, until its connection ends. In a thread of its own."""
    try:
      while True:
        self._messages.put(_message(connection))
    except (OSError, ValueError):  # it was closed there, or the machine is silent; what came is no message
      self._note(number)
      self._messages.put(None)
    # The main thread may wait for a device that will never answer. Only ending the process ends this wait.
    while True:
      self._busy.wait()
      time.sleep(GRACE_S)
      if self._busy.is_set():
        print(f"error: {self._error()}", file=sys.stderr, flush=True)
        os._exit(1)


def _keep_alive(connection: socket.socket) -> None:
  """Lets the kernel probe a silent machine, and sends small messages at once."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  probes = dict(
    TCP_KEEPIDLE=SILENT_S // 3, TCP_KEEPINTVL=SILENT_S // 6, TCP_KEEPCNT=4, TCP_USER_TIMEOUT=1000 * SILENT_S
  )
  for name, value in probes.items():
    if hasattr(socket, name):  # the names differ between systems
      connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _message(connection: socket.socket) -> Message:
  name, kinds = json.loads(_read(connection, *HEADER.unpack(_read(connection, HEADER.size))))
  arrays = []
  for dtype, shape in kinds:
    kind = np.dtype(dtype)
    arrays.append(np.frombuffer(_read(connection, math.prod(shape) * kind.itemsize), kind).reshape(shape))
  return Message(name, tuple(arrays))


def _read(connection: socket.socket, size: int) -> bytes:
  """Reads this number of bytes. Raises ConnectionError if the connection ends before."""
  data = bytearray(size)
  view, at = memoryview(data), 0
  while at < size:
    got = connection.recv_into(view[at:])
    if not got:
      raise ConnectionError("the connection has ended.")
    at += got
  return bytes(data)
