"""Servers on real sockets in this process, and addresses at which nobody listens."""

import contextlib
import http.server
import socket
import threading
import time

import uvicorn

from ragrl_jax.retrieval import server as retrieval_server
from ragrl_jax.structs import Passage

LONG_S = 120.0  # only ends a test that would hang


@contextlib.contextmanager
def running(server):
  """Runs a uvicorn server in a thread, and gives its port."""
  thread = threading.Thread(target=server.run)
  thread.start()
  while not server.started:
    assert thread.is_alive()
    time.sleep(0.005)
  try:
    yield server.servers[0].sockets[0].getsockname()[1]
  finally:
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def serving(*retrievers, **settings):
  """Gives the addresses of the retrievers' servers; `settings` are those of `server.application`."""
  with contextlib.ExitStack() as stack:
    apps = [retrieval_server.Application(one, **settings) for one in retrievers]
    servers = [uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off")) for app in apps]
    yield [f"http://127.0.0.1:{stack.enter_context(running(one))}" for one in servers]


class Threads(http.server.ThreadingHTTPServer):
  """Answers by a handler, each request in a thread, until `server_close`."""

  daemon_threads, allow_reuse_address = True, True

  def __init__(self, handler, port=0):
    super().__init__(("127.0.0.1", port), handler)
    threading.Thread(target=self.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()

  @property
  def address(self):
    """With the port."""
    return f"http://127.0.0.1:{self.server_port}"

  def server_close(self):
    """Ends the thread too: else it polls the closed socket 100 times a second, to the end of all tests."""
    self.shutdown()
    super().server_close()


class Handler(http.server.BaseHTTPRequestHandler):
  """Logs nothing."""

  def reply(self, status, body=b"", **headers):
    """A whole answer."""
    self.send_response(status)
    for name, value in (headers | dict(content_length=len(body))).items():
      self.send_header(name.replace("_", "-"), str(value))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(body)

  def log_message(self, *arguments): ...


class Slow:
  """A retriever that answers with the query when it is allowed to (`go`), and records what it is asked."""

  def __init__(self, *, go=False):
    self.go, self.began, self.asked = threading.Event(), threading.Event(), []
    if go:
      self.go.set()

  def describe(self):
    return dict(kind="slow")

  def search(self, queries, k):
    """See `api.Retriever`. Raises ValueError for the query "bad"."""
    self.asked.append((list(queries), k))
    self.began.set()
    self.go.wait(LONG_S)
    if "bad" in queries:
      raise ValueError("bad")
    return [[Passage(query, "", query, 1.0)] * k for query in queries]


@contextlib.contextmanager
def nobody():
  """Gives an address that refuses connections."""
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    yield f"http://127.0.0.1:{taken.getsockname()[1]}"
