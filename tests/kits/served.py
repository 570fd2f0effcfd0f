"""Servers on real sockets in this process, and addresses at which nobody listens."""

import contextlib
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


@contextlib.contextmanager
def nobody():
  """Gives an address that refuses connections."""
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    yield f"http://127.0.0.1:{taken.getsockname()[1]}"
