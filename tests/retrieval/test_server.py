"""The server under attack: half-open connections, floods, clients that leave, requests from other sites."""

import concurrent.futures
import contextlib
import socket
import threading
import time
import types

import httpx
import pytest
import served
import uvicorn
from patience import until
from served import LONG_S, Slow

from ragrl_jax.protocol import http_limits as guard_lib
from ragrl_jax.protocol.http_limits import Guard
from ragrl_jax.retrieval import server


@contextlib.contextmanager
def running(retriever=None, limits=None, guard=None, host="127.0.0.1"):
  """Gives (port, server)."""
  retriever, limits = retriever or Slow(), limits or server.Limits()
  made = uvicorn.Server(server.configured(retriever, host=host, port=0, limits=limits, guard=guard))
  with served.running(made) as port:
    try:
      yield port, made
    finally:
      getattr(retriever, "go", threading.Event()).set()


def connected(port, said=b""):
  connection = socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
  connection.sendall(said)
  return connection


def post(port, *queries, k=1, **headers):
  address = f"http://127.0.0.1:{port}/retrieve"
  return httpx.post(address, json=dict(queries=queries, topk=k), headers=headers, timeout=LONG_S)


@contextlib.contextmanager
def connected_at_once(state, said):
  """A connection whose first bytes arrive together with it, whatever the scheduler does to this thread."""
  halted, go = threading.Event(), threading.Event()
  state.servers[0].get_loop().call_soon_threadsafe(lambda: (halted.set(), go.wait(LONG_S)))
  assert halted.wait(LONG_S)
  try:
    connection = connected(state.servers[0].sockets[0].getsockname()[1], said)
  finally:
    go.set()
  with connection:
    yield connection


def waiting(state):
  """Number of queries that the server has queued."""
  return state.config.app._work["/retrieve"].waiting


def request(body=b'{"queries": ["q"], "topk": 1}', *headers, host="localhost"):
  lines = ["POST /retrieve HTTP/1.1", f"Host: {host}", *(headers or [f"Content-Length: {len(body)}"])]
  return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HALF = (b"", b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nx", request()[:-1])


def test_half_open_connections_are_closed_for_a_new_one():
  with running(guard=Guard(max_connections=20)) as (port, _), contextlib.ExitStack() as open_:
    for i in range(100):
      open_.enter_context(connected(port, HALF[i % 3]))
    assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=LONG_S).status_code == 200


def test_a_new_client_is_refused_if_all_others_wait_for_answers():
  slow = Slow()
  with running(slow, guard=Guard(max_connections=2)) as (port, state), contextlib.ExitStack() as open_:
    for _ in range(2):
      open_.enter_context(connected(port, request()))
    slow.began.wait(LONG_S)
    until(lambda: len(state.server_state.tasks) == 2)
    with connected(port) as third:
      assert third.recv(1000).startswith(b"HTTP/1.1 503") and third.recv(10) == b""


@pytest.mark.parametrize("half", HALF, ids=["silent", "headers", "body"])
def test_deadlines_of_headers_and_bodies(half):
  with running(guard=Guard(header_s=0.1, body_s=0.1)) as (_, state), connected_at_once(state, half) as connection:
    assert connection.recv(1000).startswith(b"HTTP/1.1 408") and connection.recv(10) == b""


def test_a_second_request_that_drips_is_cut_off_too():
  slow, guard = Slow(go=True), Guard(header_s=0.2)
  with running(slow, guard=guard) as (_, state), connected_at_once(state, request()) as connection:
    assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
    with pytest.raises(OSError):  # the server closes it during the loop
      for _ in range(2000):
        connection.sendall(b"G")
        time.sleep(0.01)


def test_waiting_for_an_answer_has_no_deadline():
  slow, guard = Slow(), Guard(header_s=0.05, body_s=0.05)
  with running(slow, guard=guard) as (_, state), connected_at_once(state, request()) as connection:
    slow.began.wait(LONG_S)
    time.sleep(0.2)
    slow.go.set()
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("half", [HALF[1], HALF[2], request()], ids=["headers", "body", "unanswered"])
def test_the_server_stops_quickly_whatever_its_clients_do(half):
  slow = Slow()
  with running(slow, guard=Guard(grace_s=0.2)) as (port, state), connected(port, half):
    until(lambda: state.server_state.connections)
    if half == request():
      slow.began.wait(LONG_S)
    state.should_exit = True
    began = time.monotonic()
    until(lambda: not state.server_state.tasks)
    assert time.monotonic() - began < LONG_S / 2  # not as long as the search
  assert server.configured(slow).timeout_graceful_shutdown <= 4


def test_queries_of_clients_that_left_are_not_searched():
  slow = Slow()
  with running(slow, server.Limits(workers=1, batch=4)) as (port, state):
    first = connected(port, request())
    slow.began.wait(LONG_S)
    body = b'{"queries": [' + b",".join([b'"x"'] * 300) + b'], "topk": 100}'
    left = [connected(port, request(body)) for _ in range(10)]
    until(lambda: waiting(state) == 3000)
    for connection in left:
      connection.close()
    until(lambda: len(state.server_state.tasks) == 1)
    slow.go.set()
    assert post(port, "last").json() == dict(result=[[dict(id="last", contents="last")]])
    first.close()
  assert slow.asked == [(["q"], 1), (["last"], 1)]


def test_a_short_request_does_not_wait_for_a_long_one():
  slow, limits = Slow(), server.Limits(workers=1, batch=8)
  with running(slow, limits) as (port, state), concurrent.futures.ThreadPoolExecutor(2) as pool:
    long = pool.submit(post, port, *["long"] * 200)
    slow.began.wait(LONG_S)
    short = pool.submit(post, port, "short")
    until(lambda: waiting(state) == 200 - 8 + 1)
    slow.go.set()
    assert short.result(LONG_S).status_code == 200 and len(long.result(LONG_S).json()["result"]) == 200
  assert "short" in [query for queries, _ in slow.asked[:4] for query in queries]


def test_concurrent_requests_are_one_search_with_their_own_answers():
  slow = Slow()
  with running(slow, server.Limits(workers=1)) as (port, state), concurrent.futures.ThreadPoolExecutor(8) as pool:
    first = pool.submit(post, port, "first")
    slow.began.wait(LONG_S)
    others = [pool.submit(post, port, f"q{i}", "bad" if i == 3 else "x", k=2 if i == 5 else 1) for i in range(6)]
    until(lambda: waiting(state) == 12)
    slow.go.set()
    answers = [other.result(LONG_S) for other in others]
    assert first.result(LONG_S).status_code == 200
  assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 200, 200]
  assert all(answer.json()["result"][0][0]["id"] == f"q{i}" for i, answer in enumerate(answers) if i != 3)
  assert sorted(len(queries) for queries, _ in slow.asked) == sorted([1, 10, 2, 2, 2, 2, 2, 2])  # together, k=2, alone


def test_too_many_waiting_queries_are_refused_with_a_retry_time():
  slow = Slow()
  with running(slow, server.Limits(workers=1, max_waiting=3)) as (port, state), contextlib.ExitStack() as open_:
    for i in range(2):  # one is searched, one waits
      open_.enter_context(connected(port, request(b'{"queries": ["a", "b"]}')))
      slow.began.wait(LONG_S)
      until(lambda i=i: waiting(state) == 2 * i)
    refused = post(port, "c", "d")
    assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    assert "ask again" in refused.json()["error"]
    slow.go.set()


def answer_to(port, said):
  with connected(port, said) as connection:
    parts = iter(lambda: connection.recv(1 << 16), b"")
    first = next(parts)
    return first + b"".join(parts) if b"connection: close" in first else first


def test_lengths_that_contradict_each_other_are_refused():
  with running() as (port, _):
    for headers in (
      ("Content-Length: 5", "Transfer-Encoding: chunked"), ("Content-Length: 5", "Content-Length: 6"),
      ("Transfer-Encoding: chunked, identity",), ("Content-Length: -5",),
    ):  # fmt: skip
      said = answer_to(port, request(b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", *headers))
      assert said.startswith(b"HTTP/1.1 400") and said.count(b"HTTP/1.1 ") == 1  # the rest is no request


def test_only_local_names_are_served_on_loopback_and_any_on_an_open_address():
  asked = lambda port, host: answer_to(port, f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
  with running() as (port, _):
    for host in ("localhost", "localhost:1", "127.0.0.1:80", "[::1]:8000", "LOCALHOST"):
      assert asked(port, host).startswith(b"HTTP/1.1 200"), host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "[::1", ""):
      assert asked(port, host).startswith(b"HTTP/1.1 400"), host
  with running(host="0.0.0.0") as (port, _):
    assert asked(port, "search.lab").startswith(b"HTTP/1.1 200")
  assert guard_lib.address("::1", 80) == "http://[::1]:80"


def test_pages_of_other_sites_are_refused():
  with running(Slow(go=True)) as (port, _):
    for origin in ("http://evil.example", "null", "http://localhost:3000"):
      assert post(port, "q", origin=origin).status_code == 403
    assert post(port, "q", origin=f"http://127.0.0.1:{port}").status_code == 200


@pytest.mark.parametrize("waiting, dropped", [
  ((300_000, 283_616, 270_000), True),  # 16,384 bytes read in the first period, then 13,616
  ((300_000, 283_000, 0), False), ((300_000, 0), False),
  ((9_000, 8_000), True),  # neither 16 KiB nor the rest
])  # fmt: skip
def test_a_client_must_read_its_answer(waiting, dropped):
  made, sizes, timers = object.__new__(guard_lib.protocol(Guard(read_s=7.0))), iter(waiting), []
  made.transport = types.SimpleNamespace(get_write_buffer_size=lambda: next(sizes))
  timer = types.SimpleNamespace(cancel=lambda: None)
  made.loop = types.SimpleNamespace(call_later=lambda *given: timers.append(given) or timer)
  made._reader, made.drop = None, lambda: timers.append("dropped")
  made._watch()
  for _ in waiting[1:]:
    seconds, look, unread = timers.pop()
    assert seconds == 7.0
    look(unread)
  assert timers == (["dropped"] if dropped else [])
