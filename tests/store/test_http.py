"""One deadline per call, a limit on the reply, and named errors, against misbehaving servers on real sockets."""

import contextlib
import json
import re
import socket
import sys
import threading
import time

import pytest
import served
from refusals import refused

from ragrl_jax.chat import http


@contextlib.contextmanager
def peer(*parts, drip=b""):
  """The address of a server that answers every connection with these bytes, then drips until its client is gone."""
  listening, asked = socket.create_server(("127.0.0.1", 0)), []

  def answer(connection):
    with contextlib.suppress(OSError), connection:
      said = connection.makefile("rb")
      head = b"".join(iter(said.readline, b"\r\n"))
      length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
      asked.append((head, said.read(int(length[1]) if length else 0)))
      connection.sendall(b"".join(parts))
      while drip:
        connection.sendall(drip)
        time.sleep(0.01)

  def accept():
    with contextlib.suppress(OSError):
      while True:
        threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

  threading.Thread(target=accept, daemon=True).start()
  with listening:
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/page", asked


def response(body, *headers, status="200 OK"):
  # A peer closes; a client that was not told may send its next request there.
  lines = [f"HTTP/1.1 {status}", "connection: close", f"content-length: {len(body)}", *headers]
  return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def post(url, seconds=60.0, max_bytes=20_000, **settings):
  return http.post_json(url, dict(a="é"), deadline=time.monotonic() + seconds, max_bytes=max_bytes, **settings)


def test_a_reply_and_a_refusal_which_may_have_any_body():
  with peer(response(b'{"x": [1]}', "Retry-After: 2")) as (url, asked):
    reply = post(url, headers={"Authorization": "Bearer secret"})
  assert (reply.status, reply.body, reply.retry_after_s) == (200, dict(x=[1]), 2.0)
  head, body = asked[0]
  assert head.startswith(b"POST /page HTTP/1.1") and b"authorization: Bearer secret" in head
  assert b"accept-encoding: identity" in head and json.loads(body) == dict(a="é")
  with peer(response(b"[]")) as (url, asked):
    assert http.get_json(url, deadline=time.monotonic() + 60, max_bytes=10).body == []
  assert asked[0][0].startswith(b"GET /page")
  with peer(response(b"<html>" * 100, "retry-after: \xb2", status="503 Busy")) as (url, _):
    reply = post(url)
  assert (reply.status, reply.body, reply.retry_after_s) == (503, None, None) and len(reply.text) == 300


@pytest.mark.parametrize("start, drip", [
  (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), (b"HTTP/1.1 200 OK\r\n\r\n", b" "), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
], ids=["headers", "body", "continue"])  # fmt: skip
def test_one_deadline_covers_the_whole_call(start, drip):
  with peer(start, drip=drip) as (url, _):
    begun = time.monotonic()
    refused("no whole answer within", post, url, 0.2, error=http.NoAnswerInTime)
    assert time.monotonic() - begun < 50  # it would drip for ever


def test_silence_ends_at_the_deadline_too_which_may_be_past():
  with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(http.NoAnswerInTime):
    post(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.1)
  refused("no time was left", post, "http://127.0.0.1:1", 0.0, error=http.NoAnswerInTime)


@pytest.mark.parametrize("said, says", [
  ([b"[" * 100_000], "nested too deep"), ([b'{"a":' * 100_000], "nested too deep"),
  ([b"1" * 9000], "not JSON .*digits"), ([b'"\xff"'], "not JSON .*utf-8"), ([b""], "not JSON"),
  ([b"<html>"], "not JSON .*<html>"), ([b"\x1f\x8b", "content-encoding: gzip"], "compressed"),
])  # fmt: skip
def test_a_reply_that_is_not_json_is_reported(said, says):
  with peer(response(*said)) as (url, _), pytest.raises(http.NotJSON, match=says):
    post(url, max_bytes=1_000_000)


def test_a_long_reply_is_not_read_to_its_end():
  with peer(b"HTTP/1.1 200 OK\r\n\r\n", drip=b" " * 100_000) as (url, _):
    refused("longer than 20000 bytes", post, url, error=http.AnswerTooLarge)


@pytest.mark.parametrize("answer", [
  b"", b"SSH-2.0-x\r\n\r\n", response(b"xyz")[:-1], b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 40_000,
], ids=["closed", "no HTTP", "cut", "endless headers"])  # fmt: skip
def test_a_broken_connection(answer):
  with peer(answer) as (url, _), pytest.raises(http.ConnectionFailed):
    post(url)


def test_no_server_at_the_address_and_a_header_or_proxy_that_cannot_be_used(monkeypatch):
  with served.nobody() as address, pytest.raises(http.ConnectionFailed, match="ConnectError"):
    post(address)
  with pytest.raises(ValueError, match="header 'authorization' contains characters") as caught:
    post("http://127.0.0.1:1", headers={"authorization": "Bearer hunter2\n"})
  assert "hunter2" not in str(caught.value)
  monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
  monkeypatch.setitem(sys.modules, "socksio", None)  # it is not installed
  refused("the proxy in ALL_PROXY.*socksio", http._client.__wrapped__, True)


@pytest.mark.parametrize("url", ["ftp://x", "http://x:port", "127.0.0.1:80", "http://"])
def test_an_invalid_address(url):
  refused("address", post, url)


def test_many_threads_share_the_event_loop():
  with peer(response(b"1")) as (url, _):
    got = []
    threads = [threading.Thread(target=lambda: got.append(post(url).body)) for _ in range(32)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert got == [1] * 32
  assert all(thread.daemon for thread in threading.enumerate() if thread.name == "http")  # none keeps a process alive
