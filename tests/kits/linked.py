"""Two linked hosts within one process."""

import socket

from ragrl_jax.parallel import links


def pair():
  """(the first host's link, the other's, the connection that each of them reads)."""
  server, there = socket.create_server(("127.0.0.1", 0)), socket.socket()
  there.connect(server.getsockname())
  here, _ = server.accept()
  server.close()
  return links.Link(0, {1: here}), links.Link(1, {0: there}), (here, there)
