"""An HTTP retriever and an HTTP judge. Their answers depend on the question alone, and they fail on command."""

import contextlib
import hashlib
import http.server
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence

from plans import Fault

from ragrl_jax.retrieval import corpus

TOO_LATE_S = 5.0  # longer than small_search.TIMEOUT_S
LINGER = struct.pack("ii", 1, 0)  # makes close() reset the connection
GARBAGE = {
  "html": b"<html><body>502 Bad Gateway</body></html>",
  "deep": b"[" * 200_000 + b"]" * 200_000,
  "score": b'{"result": [[{"document": {"id": "1", "contents": "a"}, "score": 1' + b"0" * 400 + b'}]], "choices": [1]}',
  "number": b'{"result": 1, "choices": 1' + b"0" * 10_000 + b"}",
  "nan": b'{"result": [[{"document": {"id": "1", "contents": "a"}, "score": NaN}]], "choices": NaN}',
  "bytes": b'{"result": "\xff\xfe\x80"}',
  "gzip": b"\x1f\x8b\x08\x00 not a stream",
}


def retrieve(passages: Sequence) -> Callable[[dict], dict]:
  """An answer of Search-R1's protocol: the first passages by a hash of query and passage number."""

  def found(query, k):
    first = int.from_bytes(hashlib.sha256(query.encode()).digest()[:4], "big")
    chosen = [passages[(first + n) % len(passages)] for n in range(k)]
    return [dict(document=dict(id=p.id, contents=corpus.contents(p)), score=1 / (n + 1)) for n, p in enumerate(chosen)]

  return lambda asked: dict(result=[found(query, asked["topk"]) for query in asked["queries"]])


def judge(asked: dict) -> dict:
  """A chat completion: 0 or 1, by a hash of the messages."""
  digit = hashlib.sha256(json.dumps(asked["messages"]).encode()).digest()[0] % 2
  choice = dict(index=0, finish_reason="stop", message=dict(role="assistant", content=str(digit)))
  return dict(id="c", object="chat.completion", created=0, model="scripted", choices=[choice])


class Tool:
  """A server on loopback, for the length of a `with` block. Its port stays the same, even while it refuses connections.

  For every request `faults` is called: (name, whether it is a request rather than a health check) → its fault or None.
  """

  def __init__(self, name: str, answer: Callable[[dict], dict]):
    self.name, self.answer, self.port = name, answer, 0
    self.faults: Callable[[str, bool], Fault | None] = lambda name, asks: None
    self._lock, self._server = threading.Lock(), None

  def __enter__(self) -> "Tool":
    self._open()
    return self

  def __exit__(self, *_) -> None:
    with self._lock:
      self._close()

  def refuse(self, seconds: float) -> None:
    """Refuses connections for a while."""

    def later():
      with self._lock:
        self._close()
        time.sleep(seconds)
        self._open()

    threading.Thread(target=later, daemon=True).start()

  def _open(self) -> None:
    self._server = _Server(("127.0.0.1", self.port), type("Bound", (_Handler,), dict(tool=self)))
    self.port = self._server.server_port
    threading.Thread(target=self._server.serve_forever, kwargs=dict(poll_interval=0.02), daemon=True).start()

  def _close(self) -> None:
    self._server.shutdown()
    self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
  daemon_threads = True

  def handle_error(self, request, client_address):
    if not isinstance(sys.exception(), ConnectionError):  # the client was killed
      super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
  tool: Tool
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True

  def do_GET(self):  # a name that http.server requires
    self._reply(lambda: dict(status="ok"))

  def do_POST(self):
    length = int(self.headers["content-length"])
    body = self.rfile.read(length)
    if len(body) < length:  # the client was killed
      self.close_connection = True
      return
    asked = json.loads(body)
    self._reply(lambda: self.tool.answer(asked))

  def _reply(self, answer):
    fault = self.tool.faults(self.tool.name, self.command == "POST")
    with contextlib.suppress(ConnectionError, TimeoutError):  # the client has left
      if fault is None:
        self._send(json.dumps(answer()).encode())
      else:
        getattr(self, f"_{fault.kind}")(fault.how, answer, fault)

  def _send(self, body: bytes, status: int = 200, cut: int | None = None, **headers: str):
    self.send_response(status)
    for name, value in (dict(content_type="application/json", content_length=str(len(body))) | headers).items():
      self.send_header(name.replace("_", "-"), value)
    self.end_headers()
    self.wfile.write(body[:cut])

  def _outage(self, how, answer, fault):
    self.close_connection = True
    if how == "status":
      return self._send(b'{"error": "away"}', 503, retry_after="0")
    if how == "silent":
      time.sleep(TOO_LATE_S)
    if how == "refused":
      self.tool.refuse(min(fault.lasts, 10) / 4)
    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    self.connection.close()

  def _garbage(self, how, answer, fault):
    self._send(GARBAGE[how], **({"content_encoding": "gzip"} if how == "gzip" else {}))

  def _half(self, how, answer, fault):
    said = answer()
    if how == "cut":
      self.close_connection = True
      body = json.dumps(said).encode()
      return self._send(body, cut=len(body) // 2)
    kept = {name: value[:-1] if isinstance(value, list) else value for name, value in said.items()}
    self._send(json.dumps(kept if how == "few" else {}).encode())

  def _slow(self, how, answer, fault):
    body = json.dumps(answer()).encode()
    if how != "dribbled":
      time.sleep(0.2 if how == "late" else TOO_LATE_S)
      return self._send(body)
    self.close_connection = True
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for byte in head:
      self.wfile.write(bytes([byte]))
      time.sleep(0.1)
    self.wfile.write(body)

  def log_message(self, *_):
    pass
