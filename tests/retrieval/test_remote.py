"""Client and server over real sockets on this machine."""

import concurrent.futures
import contextlib
import functools
import json
import socket
import threading
import time
import types

import httpx
import pytest
import served as kit
from patience import until
from refusals import refused

from ragrl_jax.retrieval import api, build_index, load_index, outage as outage_lib, remote as remote_lib, server, wire
from ragrl_jax.retrieval.remote import RemoteRetriever
from ragrl_jax.structs import Passage, ToolFailed

post, get = (functools.partial(ask, timeout=60) for ask in (httpx.post, httpx.get))
PASSAGES = [Passage(f"p{i}", f"Tïtle {i}", f"word{i % 4} fact\nsecond line 山") for i in range(12)]


class Scripted(kit.Threads):
  """Answers POST /retrieve with the next entry of a script: a dict, bytes, or a function of the handler."""

  def __init__(self, *script, health=404):
    self.script, self.health, self.asked = list(script), health, []
    super().__init__(Handler)


class Handler(kit.Handler):
  def do_GET(self):
    health = self.server.health
    self.reply(health(self.server) if callable(health) else health, b'{"status": "ok"}')

  def do_POST(self):
    self.server.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
    action = self.server.script.pop(0)
    if callable(action):
      action(self)
    elif isinstance(action, int):
      self.reply(action, b'{"error": "so it goes"}')
    else:
      self.reply(200, action if isinstance(action, bytes) else json.dumps(action).encode())


def drop(handler):
  handler.connection.shutdown(socket.SHUT_RDWR)


def client(scripted, **settings):
  return RemoteRetriever(scripted.address, **{**dict(timeout_s=60.0, backoff_s=0.01), **settings})


def hit(i, score=1.0):
  return dict(document=dict(id=f"d{i}", contents=f'"Title {i}"\ntext {i}'), score=score)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
  index = load_index(build_index(PASSAGES, "bm25", tmp_path_factory.mktemp("i") / "i", progress=False))
  limits = server.Limits(max_bytes=2000, max_queries=4, max_topk=6, default_topk=2)
  with kit.serving(index, limits=limits) as (address,):
    yield index, address


def test_client_and_server_return_the_results_of_the_index(served):
  index, address = served
  remote = load_index(address)
  queries = ["word1", "fact word3", "", "nothing"]
  assert remote.search(queries, 5) == index.search(queries, 5)
  many = [f"word{i % 4}" for i in range(10)]  # more than the server accepts in one request, so they are sent in batches
  assert RemoteRetriever(address, batch=4).search(many, 3) == index.search(many, 3)
  assert remote.describe()["server"]["retriever"]["kind"] == "bm25"


@pytest.mark.parametrize("title, text", [("", "one\ntwo"), ("", '"quoted"'), ("", "one"), ("T", "x\ny"), ("a  b", "x")])
def test_a_passage_is_the_same_after_the_way_over_http(title, text):
  passage = Passage("p", title, text, 0.5)
  assert remote_lib._item(json.loads(json.dumps(wire._hit(passage, True)))) == passage
  ordinary = wire._hit(Passage("p", "T", "x"), False)
  assert ordinary == dict(id="p", contents='"T"\nx')  # Search-R1's form


def test_both_forms_of_the_protocol(served):
  _, address = served
  asked = lambda **body: post(f"{address}/retrieve", json=body).json()["result"]
  scored = asked(queries=["word1"], topk=3, return_scores=True)
  bare = asked(queries=["word1"], topk=3)
  assert [h["document"] for h in scored[0]] == bare[0] and all(h["score"] > 0 for h in scored[0])
  assert bare[0][0] == dict(id="p1", contents='"Tïtle 1"\nword1 fact\nsecond line 山')
  for default in ({}, dict(topk=None), dict(topk=0)):
    assert len(asked(queries=["fact"], **default)[0]) == 2
  assert asked(queries=[]) == []


@pytest.mark.parametrize("body, status, says", [
  (b"{", 400, "must be JSON"), (b"[]", 400, "list of strings"), (b"[" * 1500, 400, "must be JSON"),
  (b'{"queries": "x"}', 400, "list of strings"), (b'{"queries": ["x", 1]}', 400, "list of strings"),
  (b'{"queries": ["x"], "topk": 7}', 400, "at most 6 passages"), (b'{"queries": ["x"], "topk": -1}', 400, "topk"),
  (b'{"queries": ["x"], "topk": "3"}', 400, "whole number"), (b'{"queries": ["x"], "topk": true}', 400, "whole"),
  (b'{"queries": ["a", "b", "c", "d", "e"]}', 400, "at most 4"),
  (b'{"queries": ["' + b"x" * 2000 + b'"]}', 413, "2000"),
])  # fmt: skip
def test_the_server_refuses_invalid_requests(served, body, status, says):
  _, address = served
  response = post(f"{address}/retrieve", content=body)
  assert response.status_code == status and says in response.json()["error"]


def test_other_paths_and_bodies_without_a_length(served):
  _, address = served
  assert get(f"{address}/health").json()["status"] == "ok" and get(f"{address}/retrieve").status_code == 405
  assert get(f"{address}/../../etc/passwd").status_code == 404
  assert post(f"{address}/retrieve", content=(b"x" * 500 for _ in range(20))).status_code == 413


def test_a_refused_topk_is_reported_at_once(served):
  _, address = served
  remote = RemoteRetriever(address, retries=5, backoff_s=10.0)
  with pytest.raises(api.RetrievalFailed, match=r"'word1' from .* after 1 calls: status 400: .*at most 6 passages"):
    remote.search(["word1"], 7)


def test_only_queries_that_the_server_refuses_alone_fail(served, monkeypatch):
  index, address = served
  queries = [f"word{i % 4} fact" for i in range(9)]  # more than the server takes at once
  for limits in ({}, dict(max_bytes=600)):  # or than the client reads at once
    assert RemoteRetriever(address, check=False, **limits).search(queries, 2) == index.search(queries, 2)
  long = ["word1 " + name * 2000 for name in "xy"]
  deadlines, call = [], remote_lib.http.post_json
  monkeypatch.setattr(remote_lib.http, "post_json", lambda *a, **k: deadlines.append(k["deadline"]) or call(*a, **k))
  with pytest.raises(api.RetrievalFailed, match="no passages for 'word1 xxx.* after 1 calls: status 413") as failure:
    load_index(address, retries=0).search([*queries[:4], long[0], *queries[:2], long[1]], 2)
  assert failure.value.queries == tuple(long) and len({*deadlines}) == 1 < len(deadlines)  # halves share their call's


def test_a_failing_retriever_behind_the_server_has_its_own_status():
  def search(queries, k):
    raise BaseException("a panic") if queries == ["panic"] else api.RetrievalFailed("the one behind is down", queries)

  with kit.serving(types.SimpleNamespace(describe=dict, search=search), limits=server.Limits(workers=1)) as (address,):
    for query, says in (("panic", "500"), ("x", "502: .*the one behind is down")):
      refused(f"after 2 calls: status {says}", load_index(address, retries=1).search, [query], 1, error=ToolFailed)


def test_requests_have_search_r1s_form():
  with Scripted(*[dict(result=[[hit(0)], []])] * 2) as peer:
    for page in ("", "/retrieve"):  # an address may end in it
      RemoteRetriever(peer.address + page).search(["a", "b"], 3)
    assert peer.asked == [("/retrieve", dict(queries=["a", "b"], topk=3, return_scores=True))] * 2


@pytest.mark.parametrize("items, expected", [
  ([hit(0, 2), hit(1, 1.5)], [Passage("d0", "Title 0", "text 0", 2.0), Passage("d1", "Title 1", "text 1", 1.5)]),
  ([dict(id=7, contents='"T"\nx')], [Passage("7", "T", "x", None)]),  # without scores
  ([dict(id="a", title="T", text="x")], [Passage("a", "T", "x", None)]),
  ([dict(id="a", contents="x\ny", title="", text="x\ny")], [Passage("a", "", "x\ny", None)]),  # untitled
  ([dict(id="a", contents='"T"\nx', text="y")], [Passage("a", "T", "x", None)]),
  ([dict(document='"T"\nx', score=0.5)], [Passage("", "T", "x", 0.5)]),  # a rerank server: plain text
  ([dict(document=dict(contents='"T"\nx'))], [Passage("", "T", "x", None)]),  # a search engine: no id
  (["plain"], [Passage("", "", "plain", None)]),
  ([hit(i) for i in range(9)], [Passage(f"d{i}", f"Title {i}", f"text {i}", 1.0) for i in range(3)]),  # more than k
])  # fmt: skip
def test_answers_of_other_servers(items, expected):
  with Scripted(dict(result=[items])) as peer:
    (found,) = client(peer).search(["q"], 3)
    for got, want in zip(found, expected, strict=True):
      assert (got.title, got.text, got.score) == (want.title, want.text, want.score)
      assert got.id == want.id or (want.id == "" and len(got.id) == 16)  # a hash of the contents replaces the id


def test_invalid_answers_are_refused_and_name_the_queries():
  for answer, says in [
    (dict(results=[]), "not {.result"), ([], "not {.result"), (dict(result=[[]]), "1 lists for 2 queries"),
    (dict(result=[[], "x"]), "not {.result"), (dict(result=[[3], []]), "a result is not"),
    (dict(result=[[dict(document=dict(id="a"))], []]), "a result is not"),
    (dict(result=[[hit(0, "high")], []]), "not a finite number"),
    (b'{"result": [[{"document": "x", "score": NaN}], []]}', "not a finite number"),
    (b'{"result": [[{"document": "x", "score": 1' + b"0" * 400 + b"}], []]}", "not a finite number"),
    (b'{"result": ' + b"[" * 100_000, "nested too deep"),  # more that is no JSON: tests/store/test_http.py
    (b'{"result": [["\xff"], []]}', "not JSON .*utf-8"),
    (b'{"result": [[' + b"[" * 500 + b"]" * 500 + b"], []]}", "a result is not"),
    (b'{"result": [["\\ud800"], []]}', "half a surrogate pair"),
    (dict(result=[[dict(hit(0)["document"], id=[])], []]), "id is"),
  ]:  # fmt: skip
    with Scripted(answer, answer) as peer:
      with pytest.raises(api.RetrievalFailed, match=f"'first', 'second' .* after 2 calls: .*{says}") as caught:
        client(peer, retries=1).search(["first", "second"], 3)
      assert caught.value.queries == ("first", "second")


def test_temporary_errors_are_retried_and_a_busy_server_when_it_says():
  with Scripted(503, drop, b"<html>", dict(result=[[hit(0)]])) as peer:
    assert client(peer, retries=3).search(["q"], 1)[0][0].id == "d0" and len(peer.asked) == 4
  busy = lambda handler: handler.reply(503, retry_after=0.05)
  with Scripted(*[busy] * 5, dict(result=[[hit(0)]])) as peer:
    start = time.monotonic()
    assert client(peer, retries=0).search(["q"], 1)[0][0].id == "d0"  # being busy is not a failure
    assert time.monotonic() - start >= 0.25


def dribble(handler):
  """A line of headers every 10 ms, without end."""
  handler.send_response(200)
  with contextlib.suppress(OSError):
    while True:
      handler.wfile.write(b"x: y\r\n")
      time.sleep(0.01)


@pytest.mark.parametrize("script, settings, calls, says", [
  ([500, 502, 503], dict(retries=2), {3}, "'q' from .* after 3 calls: status 503: .*so it goes"),
  ([404] * 6, dict(retries=5), {1}, "after 1 calls: status 404"),  # it will not change
  ([500] * 20, dict(retries=1, wait_s=60.0), {4}, "after 4 calls: status 500"),  # a healthy server is not waited for
  # Whatever is slow about the answer: tests/store/test_http.py.
  ([dribble] * 2, dict(retries=1, timeout_s=0.2), {1, 2}, "after [12] calls: no whole answer within 0.2 s"),
  # 49 doubling waits would take far too long.
  ([503] * 50, dict(retries=49, backoff_s=0.05, deadline_s=0.3), None, "the deadline of 0.3 s is spent"),
  ([b" " * 200_000], dict(retries=2, max_bytes=100_000), {1}, "after 1 calls: the answer is longer than 100000 bytes"),
])  # fmt: skip
def test_a_search_that_fails_ends_in_time_and_says_why(script, settings, calls, says):
  with Scripted(*script, health=200) as peer:
    start = time.monotonic()
    refused(says, client(peer, check=False, **settings).search, ["q"], 1, error=api.RetrievalFailed)
    assert time.monotonic() - start < 30 and len(peer.asked) in (calls or range(10))


def test_in_an_outage_one_poll_waits_for_all_threads(monkeypatch):
  monkeypatch.setattr(remote_lib, "HEALTH_S", 60.0)
  looks, polling, most, said = [], [], [], []

  def health(server):
    looks.append(threading.current_thread())
    polling.append(looks[-1])
    most.append(len(polling))
    until(lambda: len(server.asked) >= 8)  # all threads have met the outage
    time.sleep(0.1)  # for another poll
    polling.pop()
    return 503 if len(looks) < 3 else 200

  def gone_at_first(handler):
    if len(looks) < 3:
      drop(handler)
    else:
      handler.reply(200, json.dumps(dict(result=[[hit(0)]])).encode())

  with Scripted(*[gone_at_first] * 100, health=health) as peer:
    remote = client(peer, retries=0, wait_s=60.0, check=False, say=said.append)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
      found = list(pool.map(lambda i: remote.search([f"q{i}"], 1), range(8)))
  assert all(passages[0].id == "d0" for (passages,) in found)
  # Three looks are the first poll. A thread that failed before they ended and waits only now looks once more.
  assert len(looks) >= 3 and set(most) == {1}
  assert len(said) == 2 and "does not answer (" in said[0] and "up to 60 s (config.retrieval.wait_s)" in said[0]
  assert "answers again after" in said[1]


def test_an_outage_ends_in_a_failure_after_wait_s():
  said = []
  with kit.nobody() as address:
    remote = RemoteRetriever(address, check=False, retries=0, wait_s=0.5, say=said.append)
    refused("'q' from .* ConnectError.*; nobody answered for 0.5 s", remote.search, ["q"], 1, error=api.RetrievalFailed)
    assert len(said) == 1 and "waiting for it" in said[0]
    refused("nobody answered", remote.search, ["q"], 1, error=api.RetrievalFailed)
    assert len(said) == 1  # the same outage is not waited for twice


def test_an_outage_after_a_search_that_succeeded_is_waited_for_again():
  answer, health, said = dict(result=[[hit(0)]]), iter([503, 503, 503, 200]), []
  with Scripted(drop, answer, drop, answer, health=lambda _: next(health)) as peer:
    remote = client(peer, retries=0, wait_s=0.3, check=False, say=said.append)
    refused("nobody answered for 0.3 s", remote.search, ["q"], 1, error=api.RetrievalFailed)  # two looks, 0.25 s apart
    remote.search(["q"], 1)
    assert remote.search(["q"], 1)[0][0].id == "d0"
  assert ["waiting for it" in one for one in said] == [True, False] * 2


def test_each_outage_has_its_own_time(monkeypatch):
  now, answers, said = [0.0], [False], []
  monkeypatch.setattr(outage_lib, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
  outage = outage_lib.Outage("the server", lambda: answers[0], wait_s=10.0, say=said.append)

  def passes(seconds):
    now[0] += seconds
    answers[0] = now[0] >= 105.0
    return False

  monkeypatch.setattr(outage, "_closed", types.SimpleNamespace(wait=passes))
  assert outage.wait("down") is None and 5 < now[0] <= 10
  assert outage.wait("down") is None and now[0] <= 10  # the same outage
  outage.over()
  outage.over()
  assert len(said) == 2 and said[1] == f"the server answers again after {now[0]:.1f} s."
  now[0] = 100.0
  assert outage.wait("down") and now[0] >= 105.0 and len(said) == 4


def test_closing_ends_the_wait():
  waiting = threading.Event()
  with kit.nobody() as address, concurrent.futures.ThreadPoolExecutor(1) as pool:
    remote = RemoteRetriever(address, check=False, retries=0, wait_s=600.0, say=lambda said: waiting.set())
    search = pool.submit(remote.search, ["q"], 1)
    assert waiting.wait(60)
    remote.close()
    assert isinstance(search.exception(60), api.RetrievalFailed)


def test_health():
  for status, said in ((404, {}), (200, dict(status="ok"))):  # Search-R1's own server has no such page
    with Scripted(health=status) as peer:
      assert client(peer).health() == said
  with Scripted(health=500) as peer, pytest.raises(api.RetrievalFailed, match="not healthy: GET /health gave 500"):
    client(peer)


def test_settings_out_of_range_are_refused():
  for settings in (dict(timeout_s=0), dict(retries=-1), dict(batch=0), dict(max_bytes=0), dict(deadline_s=0)):
    refused("must be positive", RemoteRetriever, "http://127.0.0.1:1", check=False, **settings)
  refused("begins with http", RemoteRetriever, "127.0.0.1:8000")


def test_a_missing_server_is_reported_with_advice_and_without_the_credentials_in_its_address(caplog):
  with kit.nobody() as address:
    address = address.replace("http://", "http://me:s3cret@")
    with pytest.raises(api.RetrievalFailed, match="answers at http://127.0.0.1.* with `ragrl serve-index`") as missing:
      load_index(address)
    remote = RemoteRetriever(address, check=False, retries=1, backoff_s=0.01, wait_s=0.1)  # its outage is logged
    says = r"'asked' from the retriever at http://127.0.0.1\S* after 2 calls: ConnectError"
    with pytest.raises(api.RetrievalFailed, match=says) as failed:
      remote.search(["asked"], 1)
  for said in (str(missing.value), str(failed.value), str(remote.describe()), caplog.text):
    assert said and "s3cret" not in said
