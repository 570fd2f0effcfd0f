"""The server's pages beside /retrieve, its key, its deadline, its metrics, and the exchange of an index under load."""

import asyncio
import base64
import contextlib
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import httpx
import numpy as np
import pytest
import served
from patience import until
from prometheus_client import parser

from ragrl_jax.retrieval import application, batching, build_index, load_index, server
from ragrl_jax.retrieval.server import Reloading
from ragrl_jax.structs import Passage

ROOT = pathlib.Path(__file__).parents[2]
passages = lambda word, count=40: [Passage(f"{word}{i}", f"Title {i}", f"{word} fact{i % 5}") for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return build_index(passages("old"), "hashing", tmp_path_factory.mktemp("i") / "i", progress=False)


@contextlib.contextmanager
def serving(retriever, limits=None, **settings):
  """A client of the retriever's server."""
  with served.serving(retriever, limits=limits or server.Limits(), **settings) as (address,):
    with httpx.Client(base_url=address, timeout=120) as client:
      yield client


def test_embeddings_are_the_encoders_vectors(folder):
  index = load_index(folder)
  with serving(index) as client:
    assert client.get("/v1/models").json()["data"] == [dict(id="hashing", object="model")]
    texts = ["old fact1", "Title 3"]
    passages = index.encoder.passages([Passage("", "", text) for text in texts])
    for kind, wanted in (("query", index.encoder.queries(texts)), ("passage", passages)):
      ask = dict(input=texts, model="hashing", input_type=kind)
      said = client.post("/v1/embeddings", json=ask).json()
      assert (said["object"], said["model"], [row["index"] for row in said["data"]]) == ("list", "hashing", [0, 1])
      np.testing.assert_array_equal(np.array([row["embedding"] for row in said["data"]], np.float32), wanted)
      assert said["usage"] == dict(prompt_tokens=4, total_tokens=4)  # four words
      packed = client.post("/v1/embeddings", json=dict(ask, encoding_format="base64")).json()["data"][1]["embedding"]
      np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), wanted[1])
    one = client.post("/v1/embeddings", json=dict(input="old fact1")).json()["data"]
    assert len(one) == 1 and len(one[0]["embedding"]) == index.encoder.dim


def test_embeddings_that_cannot_be_made_are_refused_in_openais_form(folder):
  with serving(load_index(folder), server.Limits(max_queries=4)) as client:
    for ask, status, says in (
      (dict(input=[]), 400, '"input"'), (dict(input=""), 400, '"input"'), (dict(input=[[1, 2]]), 400, "token ids"),
      (dict(input=["a"] * 5), 400, "at most 4"), (dict(input="a", model="gpt"), 400, "only has 'hashing'"),
      (dict(input="a", dimensions=8), 400, "dimensions"), (dict(input="a", input_type="title"), 400, "input_type"),
      (dict(input="a", encoding_format="int8"), 400, "encoding_format"),
      (dict(input="a", timeout_s=0), 400, "timeout_s"), (dict(input="a", timeout_s=10**400), 200, ""),
    ):  # fmt: skip
      said = client.post("/v1/embeddings", json=ask)
      assert said.status_code == status
      assert status == 200 or (says in said.json()["error"]["message"] and "invalid" in said.json()["error"]["type"])


def test_a_retriever_without_an_encoder_has_no_embeddings():
  with serving(served.Slow()) as client:
    said = client.post("/v1/embeddings", json=dict(input="a"))
    assert said.status_code == 404 and "dense index" in said.json()["error"]["message"]
    assert client.get("/v1/models").json()["data"] == []


def test_a_key_is_asked_of_every_page(folder):
  with serving(load_index(folder), key="s3cret-ü") as client:
    for page in ("/health", "/metrics", "/v1/models", "/nowhere"):
      assert client.get(page).status_code == 401
    for wrong in ("s3cret-ü", "Bearer s3cret", "Bearer s3cret-üx", "Basic s3cret-ü", "Bearer"):
      said = client.post("/retrieve", json=dict(queries=["fact1"]), headers=dict(authorization=wrong.encode()))
      assert said.status_code == 401 and said.headers["www-authenticate"] == "Bearer" and "s3cret" not in said.text
    right = dict(authorization="Bearer s3cret-ü".encode())
    assert client.post("/retrieve", json=dict(queries=["fact1"]), headers=right).status_code == 200


def test_the_deadline_ends_a_request_and_takes_it_from_the_queue():
  held = served.Slow()
  with serving(held, server.Limits(workers=1, deadline_s=0.5)) as client:
    while not held.asked:  # until its search begins within its time
      soon = client.post("/retrieve", json=dict(queries=["a"], timeout_s=0.1))
      assert soon.status_code == 504 and "within 0.1 s" in soon.json()["error"]
    late = client.post("/retrieve", json=dict(queries=["b"], timeout_s=99))  # it waits, for the server's longest time
    assert late.status_code == 504 and "within 0.5 s" in late.json()["error"]
    held.go.set()
    until(lambda: client.post("/retrieve", json=dict(queries=["c"])).status_code == 200)
  first, *more = (asked for asked, _ in held.asked)
  assert first == ["a"] and more and all(asked == ["c"] for asked in more)


def test_metrics_count_requests_texts_and_seconds(folder):
  with serving(load_index(folder)) as client:
    for _ in range(3):
      client.post("/retrieve", json=dict(queries=["fact1", "fact2"]))
    client.post("/v1/embeddings", json=dict(input=["x"]))
    client.post("/retrieve", json=dict(queries=3))
    client.get("/no/such/page")
    said = client.get("/metrics")
  assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
  families = {family.name: family for family in parser.text_string_to_metric_families(said.text)}
  assert families["ragrl_requests"].type == "counter" and families["ragrl_request_seconds"].type == "histogram"
  lines = said.text.splitlines()
  assert {
    'ragrl_requests_total{page="/retrieve",status="200"} 3.0',
    'ragrl_requests_total{page="/retrieve",status="400"} 1.0', 'ragrl_requests_total{page="other",status="404"} 1.0',
    'ragrl_texts_total{page="/retrieve"} 6.0', 'ragrl_texts_total{page="/v1/embeddings"} 1.0',
    'ragrl_request_seconds_bucket{le="+Inf",page="/retrieve"} 4.0', 'ragrl_request_seconds_count{page="/retrieve"} 4.0',
    'ragrl_batch_seconds_count{page="/v1/embeddings"} 1.0', "ragrl_waiting_texts 0.0",
    "# TYPE ragrl_request_seconds histogram",
  } <= set(lines)  # fmt: skip
  memory = next(float(line.split()[1]) for line in lines if line.startswith("process_resident_memory_bytes "))
  assert memory > 10e6


COUNTS = """
import json, multiprocessing
from ragrl_jax.retrieval import application

def count(seconds, waiting, loaded, pipe):
  metrics = application.Metrics()
  for one in seconds:
    metrics.request("/retrieve", 200, one, waiting=waiting)
  metrics.loaded(loaded, reload=loaded == 40)
  pipe.send(metrics.page().decode().splitlines())
  pipe.recv()

def counted(*given):
  ours, theirs = forks.Pipe()
  process = forks.Process(target=count, args=(*given, theirs))
  process.start()
  pages.append(ours.recv())
  return lambda: (ours.send("end"), process.join())

pages, forks = [], multiprocessing.get_context("fork")
first = counted([0.004, 0.005, 0.3, 99], 2, 50)  # at most .005: two; at most .5: three; more than 30: one
second = counted([0.2], 3, 40)
first()  # it ends: its counts stay, its queue and its index do not
second()
counted([0.1], 0, 60)()
print(json.dumps(pages))
"""


@pytest.mark.slow  # starts processes
def test_metrics_are_the_sums_of_all_processes(tmp_path):
  how = dict(env=os.environ | {"PYTHONPATH": str(ROOT), application.FOLDER: str(tmp_path)}, check=True)
  _, two, last = json.loads(subprocess.run([sys.executable, "-c", COUNTS], stdout=subprocess.PIPE, **how).stdout)
  assert {
    'ragrl_requests_total{page="/retrieve",status="200"} 5.0',
    'ragrl_request_seconds_bucket{le="0.005",page="/retrieve"} 2.0',
    'ragrl_request_seconds_bucket{le="0.25",page="/retrieve"} 3.0',
    'ragrl_request_seconds_bucket{le="30.0",page="/retrieve"} 4.0',
    'ragrl_request_seconds_bucket{le="+Inf",page="/retrieve"} 5.0', "ragrl_waiting_texts 5.0",
    "ragrl_reloads_total 1.0", "ragrl_index_loaded_timestamp_seconds 40.0",
  } <= set(two)  # fmt: skip
  ended = "ragrl_waiting_texts 0.0", "ragrl_index_loaded_timestamp_seconds 60.0"
  assert {*ended, 'ragrl_requests_total{page="/retrieve",status="200"} 6.0'} <= set(last)


def test_a_refused_client_hears_when_half_of_the_queue_will_be_done():
  async def waits():
    free = threading.Event()

    def work(texts, key):
      time.sleep(0.02 * len(texts))
      if key == "held":
        free.wait(120)
      return texts

    queue = batching.Batcher(work, lambda result, option: result, workers=1, batch=10, waiting=1000)
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
      with pytest.raises(RuntimeError, match="can't start"):
        await queue.submit(["a"], 1, None)
    assert await queue.submit(["a"] * 10, 1, None) == ["a"] * 10  # 20 ms a text
    held = queue.submit(["a"], "held", None)
    await asyncio.sleep(0.05)
    others = [queue.submit(["b"] * 500, 1, None) for _ in range(2)]
    with pytest.raises(batching.Full) as full:
      queue.submit(["c"], 1, None)
    for other in others:
      other.cancel()
    free.set()
    await held
    return full.value.retry_after_s

  assert 10 <= asyncio.run(waits()) <= 30  # half of 1,000 texts of 20 ms; a busy machine takes longer


def test_no_request_is_lost_when_the_index_is_exchanged(tmp_path, folder):
  new = build_index(passages("new"), "hashing", tmp_path / "new", progress=False)
  link = tmp_path / "index"
  link.symlink_to(folder)
  reloading = Reloading(functools.partial(load_index, link))
  found, stop = [], threading.Event()
  with serving(reloading) as client:

    def ask():
      with httpx.Client(base_url=client.base_url, timeout=120) as own:
        while not stop.is_set():
          asked = time.monotonic()
          said = own.post("/retrieve", json=dict(queries=["fact1", "fact2"], topk=3))
          found.append((asked, said.status_code, {hit["id"][:3] for hits in said.json()["result"] for hit in hits}))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
      thread.start()
    until(lambda: len(found) >= 20)
    (tmp_path / "next").symlink_to(new)
    os.replace(tmp_path / "next", link)
    assert reloading.reload() is None
    exchanged, after = time.monotonic(), len(found)
    until(lambda: len(found) >= after + 20)
    link.unlink()
    assert "no index here" in reloading.reload()  # the index is kept
    after_failure = len(found)
    until(lambda: len(found) >= after_failure + 20)
    stop.set()
    for thread in threads:
      thread.join()
  assert {status for _, status, _ in found} == {200}
  assert all(words in ({"old"}, {"new"}) for _, _, words in found)  # no request mixes two indexes
  assert found[0][2] == {"old"}
  # Answers arrive out of order: a request sent during the exchange may be answered after many that were sent later.
  late = [words for asked, _, words in found if asked > exchanged]
  assert len(late) >= 20 and all(words == {"new"} for words in late)


def test_a_client_can_connect_as_soon_as_the_server_says_so(folder):
  class Connected(Exception):
    pass

  def say(line):
    port = int(line.split()[0].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), timeout=120).close()
    raise Connected

  handler = signal.getsignal(signal.SIGHUP)
  try:
    with pytest.raises(Connected):
      server.serve(functools.partial(load_index, folder), port=0, say=say)
  finally:
    signal.signal(signal.SIGHUP, handler)


@pytest.mark.long  # starts processes again and again
@pytest.mark.timeout(900)
def test_processes_share_a_port_and_reload_together(tmp_path, folder):
  new = build_index(passages("new"), "hashing", tmp_path / "new", progress=False)
  link = tmp_path / "index"
  link.symlink_to(folder)
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  flags = ["--index", link, "--port", port, "--processes", 2, "--key_variable", "TEST_KEY"]
  command = [sys.executable, "-m", "ragrl_jax", "serve-index", *map(str, flags)]
  how = dict(env=os.environ | dict(PYTHONPATH=str(ROOT), TEST_KEY="k3y"), text=True)
  said = tmp_path / "said"
  with said.open("w") as errors:
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, **how)
  key = dict(headers=dict(authorization="Bearer k3y"), timeout=120)
  post = lambda: httpx.post(f"http://127.0.0.1:{port}/retrieve", json=dict(queries=["fact1"]), **key)
  best = lambda: post().json()["result"][0][0]["id"][:3]
  lines = lambda: httpx.get(f"http://127.0.0.1:{port}/metrics", **key).text.splitlines()
  metric = lambda name: next(line.split()[-1] for line in lines() if line.startswith(name))
  try:
    assert "in 2 processes" in running.stdout.readline() and best() == "old"
    link.unlink()
    link.symlink_to(new)
    running.send_signal(signal.SIGHUP)
    until(lambda: metric("ragrl_reloads_total") == "2.0")
    assert [best() for _ in range(8)] == ["new"] * 8  # each on a new connection, so that both processes answer
    assert metric('ragrl_texts_total{page="/retrieve"}') == "9.0"
    pgrep = ["pgrep", "-P", str(running.pid), "-f", "spawn_main"]
    children = lambda: subprocess.run(pgrep, capture_output=True, text=True).stdout.split()
    first, other = children()
    link.unlink()  # so that it cannot start again, which is said, until it can
    os.kill(int(first), signal.SIGKILL)  # the other one answers meanwhile
    until(lambda: "It said" in said.read_text())
    assert post().status_code == 200
    link.symlink_to(new)
    until(lambda: len(children()) == 2)
    os.kill(int(other), signal.SIGKILL)  # now only the one that was started again can answer
    until(lambda: other not in children())
    assert post().status_code == 200
  finally:
    running.terminate()
    running.communicate(timeout=120)
  assert running.returncode == 0 and "Traceback" not in said.read_text()
  killed, failed, *_ = (line for line in said.read_text().splitlines() if "started again" in line)
  assert killed.endswith(" ended with -9: it is started again.")
  assert f"ended with 0: it is started again. It said: {link}: no index here: " in failed and failed.endswith(").")
