"""Messages between hosts, over connections within this process, which takes itself for host 0."""

import socket
import struct
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
from linked import pair
from refusals import refused

from ragrl_jax.parallel import links


def end(connection):
  connection.shutdown(socket.SHUT_RDWR)
  connection.close()


def test_arrays_come_as_they_went():
  first, other, _ = pair()
  assert first.leads and not other.leads
  sent = [np.arange(6, dtype=np.int32).reshape(2, 3), np.float32([np.nan, -0.0, 1e-40]), np.zeros((3, 0), np.int8)]
  sent += [np.arange(4, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 2).T, np.array(True)]
  first.send("extend", *sent)
  first.send("done")
  name, got = other.receive()
  assert name == "extend" and other.receive() == ("done", ())
  for mine, theirs in zip(sent, got, strict=True):
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape) and mine.tobytes() == theirs.tobytes()


def test_the_end_of_either_host_is_one_error():
  first, other, (own, _) = pair()
  first.send("begin")
  end(own)
  assert other.receive().name == "begin"  # what came before is heard
  refused("host 0, which runs an engine together with", other.receive, error=links.Lost)
  with pytest.raises(links.Lost):
    other.receive()  # again, without a wait
  first, _, (_, theirs) = pair()
  end(theirs)
  with pytest.raises(links.Lost, match="host 1.*its own log says why"):
    for _ in range(1000):
      first.send("begin")


def test_a_slow_host_has_time_from_the_first_message_on(monkeypatch):
  """The limits of making a connection end with it, even if the thread that watches it has not run yet."""
  monkeypatch.setattr(links.threading.Thread, "start", lambda thread: None)
  one, two = socket.socketpair()
  with one, two:
    one.settimeout(links.HELLO_S)
    monkeypatch.setattr(links, "_keep_alive", lambda connection: None)  # a pair of sockets has no packets
    links.Link(0, {1: one})
    assert one.gettimeout() is None


def test_a_collective_that_fails_with_the_connection_tells_the_cause(monkeypatch):
  monkeypatch.setattr(links, "NOTICE_S", 60.0)
  first, _, (_, theirs) = pair()
  with pytest.raises(links.Lost, match="host 1") as raised, first.busy():
    threading.Timer(0.2, end, [theirs]).start()
    raise jax.errors.JaxRuntimeError("connection reset by peer")
  assert isinstance(raised.value.__cause__, jax.errors.JaxRuntimeError)


def test_a_failure_of_its_own_stays_what_it_is(monkeypatch):
  monkeypatch.setattr(links, "NOTICE_S", 0.05)
  first, _, _ = pair()
  with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"), first.busy():
    raise jax.errors.JaxRuntimeError("out of memory")


def test_a_process_that_cannot_raise_the_loss_is_ended(monkeypatch, capfd):
  """Its main thread waits for a device. Outside of a session it is left alone."""
  monkeypatch.setattr(links, "GRACE_S", 0.05)
  ended = threading.Event()

  def exit_(status):
    assert status == 1
    ended.set()
    threading.Event().wait()  # nothing follows, as in a process that has ended

  monkeypatch.setattr(links.os, "_exit", exit_)
  first, _, (_, theirs) = pair()
  end(theirs)
  assert not ended.wait(0.3)
  with first.busy():
    assert ended.wait(60)
  assert "error: host 1, which runs an engine" in capfd.readouterr().err


def test_only_who_knows_the_token_is_let_in(monkeypatch):
  monkeypatch.setattr(links, "WAIT_S", 1.0)
  monkeypatch.setattr(links, "HELLO_S", 0.1)
  with links._server() as server:
    port, token = server.getsockname()[1], "t" * 32

    def knock(said, number):
      guest = socket.create_connection(("127.0.0.1", port))
      guest.sendall(links.HELLO.pack(said.encode(), number))
      return guest

    strangers = [knock("x" * 32, 1), knock(token, 7), socket.create_connection(("127.0.0.1", port))]
    host = knock(token, 1)
    found = links._accepted(server, token, {1})
    assert list(found) == [1] and found[1].getpeername()[1] == host.getsockname()[1]
    for stranger in strangers:
      assert stranger.recv(1) == b""
    refused(r"hosts \[1\] have not connected within 1 s", links._accepted, server, token, {1}, error=links.Lost)


def test_a_header_has_its_size_first():
  one, two = socket.socketpair()
  two.sendall(struct.pack("<I", 21) + b'["a",[["int8",[2]]]] ' + b"\x05\x06")
  name, (got,) = links._message(one)
  assert name == "a" and got.dtype == np.int8 and got.tolist() == [5, 6]
