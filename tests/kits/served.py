"""Servers on real sockets in this process, and addresses at which nobody listens."""

import contextlib
import http.server
import json
import socket
import threading
import time

import uvicorn

from ragrl_jax.retrieval import server as retrieval_server


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


class Threaded(http.server.ThreadingHTTPServer):
  """A server with such a handler, in threads of this process until it is closed."""

  daemon_threads = allow_reuse_address = True

  def __init__(self, handler, port=0):
    super().__init__(("127.0.0.1", port), handler)
    threading.Thread(target=self.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()

  @property
  def address(self):
    return f"http://127.0.0.1:{self.server_port}"

  def server_close(self):
    self.shutdown()
    super().server_close()


class Replying(http.server.BaseHTTPRequestHandler):
  """A handler that replies in JSON and logs nothing."""

  def reply(self, status, body, **headers):
    data = json.dumps(body).encode()
    self.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
      self.send_header(name, value)
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(data)

  def log_message(self, *_):
    pass


@contextlib.contextmanager
def nobody():
  """Gives an address that refuses connections."""
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    yield f"http://127.0.0.1:{taken.getsockname()[1]}"
