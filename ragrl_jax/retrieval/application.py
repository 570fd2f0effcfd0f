"""The pages of the retriever's server, as an ASGI application, and its metrics. `server` lists the pages."""

import asyncio
import dataclasses
import functools
import json
import os
import pathlib
import time

import psutil

from ragrl_jax.protocol import http_limits
from ragrl_jax.protocol.http_answer import Left, Refused, cancel_when_left
from ragrl_jax.retrieval import wire
from ragrl_jax.retrieval.api import Retriever
from ragrl_jax.retrieval.batching import Batcher, Full
from ragrl_jax.retrieval.wire import LIMITS, Limits
from ragrl_jax.structs import ToolFailed

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the environment variable that names a folder for the metrics of all processes
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds of the histograms
TIMED = ("/retrieve", "/v1/embeddings", "/read")  # pages whose requests are timed; the same names for batches
METHODS = {page: "POST" for page in TIMED} | {page: "GET" for page in ("/v1/models", "/health", "/metrics")}
LEFT = 499  # the counted status if the client has disconnected


class Application:
  """Answers requests.

  Args:
    retriever: several threads call its `search` at the same time. They call `read` if it exists, and `embed` if the
      retriever has a `model` (its encoder's name).
    local, key: see `http_limits.check`.
  """

  def __init__(
    self,
    retriever: Retriever,
    limits: Limits = LIMITS,
    *,
    local: bool = False,
    key: str = "",
    metrics: "Metrics | None" = None,
  ):
    self._retriever, self._limits, self._local, self._key = retriever, limits, local, key
    self._metrics = metrics or Metrics()
    # Attributes are looked up when called: not every retriever has them, and those of a `Reloading` change.
    works = {
      "/retrieve": (lambda queries, k: retriever.search(queries, k), wire.render_passages),
      "/v1/embeddings": (lambda texts, kind: retriever.embed(texts, kind), wire.render_vector),
      "/read": (lambda requests, k: retriever.read(requests, k), wire.render_passages),
    }
    sizes = dict(workers=limits.workers, batch=limits.batch, waiting=limits.max_waiting)
    self._work = {
      page: Batcher(*works[page], **sizes, done=functools.partial(self._metrics.batch, page)) for page in TIMED
    }

  async def __call__(self, scope, receive, send) -> None:
    if scope["type"] != "http":
      raise NotImplementedError(f"{scope['type']!r}: only HTTP is served.")
    begun, status, page = time.perf_counter(), 500, scope["path"]
    try:
      kind, headers = b"application/json", ()
      try:
        status, body = 200, await self._answer(scope, receive)
        kind = CONTENT_TYPE if page == "/metrics" else kind
      except Refused as refused:
        status, headers = refused.status, filter(None, [refused.header])
        body = json.dumps(refused.body() if page.startswith("/v1/") else dict(error=refused.message)).encode()
      headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
      await send(dict(type="http.response.start", status=status, headers=headers))
      await send(dict(type="http.response.body", body=body))
    except Left:
      status = LEFT
    except asyncio.CancelledError:  # the server is shutting down
      status = LEFT
      raise
    except Exception:
      status = 500  # uvicorn answers it
      raise
    finally:
      waiting = sum(batcher.waiting for batcher in self._work.values())
      self._metrics.request(page, status, time.perf_counter() - begun, waiting=waiting)

  async def _answer(self, scope, receive) -> bytes:
    """The body of the answer. Raises Refused or Left."""
    page = scope["path"]
    http_limits.check(scope, local=self._local, key=self._key)
    http_limits.check_page(page, scope["method"], METHODS)
    if page == "/health":
      health = dict(status="ok", retriever=dict(self._retriever.describe()), limits=dataclasses.asdict(self._limits))
      return json.dumps(health, ensure_ascii=False).encode()
    if page == "/metrics":
      return self._metrics.page()
    if page == "/v1/models":
      return wire.render_models(self._model)
    return await self._worked(page, receive)

  @property
  def _model(self) -> str:
    return getattr(self._retriever, "model", "")

  async def _worked(self, page: str, receive) -> bytes:
    """Searches or embeds."""
    body, model = await http_limits.read_body(receive, self._limits.max_bytes), self._model
    if page == "/read" and not hasattr(self._retriever, "read"):
      raise Refused(404, "this server's retriever has no documents to open: serve an index.")
    if page == "/v1/embeddings" and not model:
      raise Refused(404, "this server's retriever has no encoder: serve a dense index for embeddings.")
    try:
      if page == "/v1/embeddings":
        request = wire.parse_embedding(body, self._limits, model)
      else:
        request = (wire.parse_search if page == "/retrieve" else wire.parse_reading)(body, self._limits)
      answer = self._work[page].submit(request.texts, request.key, request.option)
    except ValueError as error:
      raise Refused(400, str(error)) from None
    except Full as full:
      raise Refused(
        429,
        f"more than {self._limits.max_waiting} texts are waiting: ask again in {full.retry_after_s} s.",
        (b"retry-after", str(full.retry_after_s).encode()),
      ) from None
    watch = asyncio.create_task(cancel_when_left(receive, answer))
    try:
      async with asyncio.timeout(request.timeout_s):
        results = await answer  # at the deadline it is cancelled, which removes the request's texts from the queue
    except ToolFailed as error:
      raise Refused(502, str(error)) from error
    except ValueError as error:  # such as a query that a recording does not have
      raise Refused(400, str(error)) from error
    except TimeoutError:
      raise Refused(504, f"no answer within {request.timeout_s:g} s: send fewer texts, or ask later.") from None
    except asyncio.CancelledError:
      if asyncio.current_task().cancelling():  # the server is shutting down
        raise
      raise Left from None
    finally:
      watch.cancel()
    return wire.render_embeddings(results, model) if page == "/v1/embeddings" else wire.render_results(results)


class Metrics:
  """Counters of a process. `page` renders the sums over all processes of the server, in Prometheus' text format.

  With several processes, FOLDER must be set before a process makes its Metrics (prometheus_client's multiprocess mode).
  """

  def __init__(self):
    import prometheus_client as client  # reads FOLDER now
    import prometheus_client.multiprocess

    self._client, self._registry = client, client.CollectorRegistry()
    client.disable_created_metrics()
    here, live = dict(registry=self._registry), dict(registry=self._registry, multiprocess_mode="livesum")
    # Status 499: the client disconnected before its answer, as in nginx.
    self._requests = client.Counter(
      "ragrl_requests", "Finished requests; 499: the client disconnected.", ["page", "status"], **here
    )
    self._texts = client.Counter("ragrl_texts", "Queries searched, texts embedded, documents read.", ["page"], **here)
    self._request_seconds, self._batch_seconds = (
      client.Histogram(f"ragrl_{kind}_seconds", says, ["page"], buckets=SECONDS, **here)
      for kind, says in (("request", "Seconds from a request to its answer."), ("batch", "Seconds of a batch's work."))
    )
    self._reloads = client.Counter("ragrl_reloads", "Successful reloads.", **here)
    self._failed = client.Counter("ragrl_failed_reloads", "Reloads that kept the old index.", **here)
    self._waiting = client.Gauge("ragrl_waiting_texts", "Texts that wait for their batch.", **live)
    self._memory = client.Gauge("process_resident_memory_bytes", "Memory of the server's processes.", **live)
    self._cpu = client.Counter("process_cpu_seconds", "Processor time of the server's processes.", **here)
    self._loaded = client.Gauge(
      "ragrl_index_loaded_timestamp_seconds", "When the oldest index was loaded.", multiprocess_mode="livemin", **here
    )
    self._process, self._looked, self._used = psutil.Process(), 0.0, 0.0

  def request(self, page: str, status: int, seconds: float, *, waiting: int) -> None:
    """Counts a finished request. `waiting`: number of texts in the queue now."""
    self._requests.labels(page if page in METHODS else "other", status).inc()
    if page in TIMED:
      self._request_seconds.labels(page).observe(seconds)
    self._waiting.set(waiting)
    if time.monotonic() >= self._looked + 1:
      self._look()

  def batch(self, page: str, texts: int, seconds: float) -> None:
    """Counts a finished batch of searches or embeddings."""
    self._texts.labels(page).inc(texts)
    self._batch_seconds.labels(page).observe(seconds)

  def loaded(self, when: float, *, reload: bool) -> None:
    """Records the time at which the index was loaded, in Unix seconds."""
    self._loaded.set(when)
    self._reloads.inc(reload)

  def reload_failed(self) -> None:
    """Counts a failed reload."""
    self._failed.inc()

  def page(self) -> bytes:
    """All metrics as text."""
    self._look()
    registry = self._registry
    if folder := os.environ.get(FOLDER):
      for file in pathlib.Path(folder).glob("gauge_live*_*.db"):  # those of dead processes do not count
        if not psutil.pid_exists(pid := int(file.stem.rpartition("_")[2])):
          self._client.multiprocess.mark_process_dead(pid, folder)
      registry = self._client.CollectorRegistry()
      self._client.multiprocess.MultiProcessCollector(registry, folder)
    return self._client.generate_latest(registry)

  def _look(self) -> None:
    """Records the process's memory and processor time."""
    self._looked, cpu_s = time.monotonic(), sum(self._process.cpu_times()[:2])
    self._memory.set(self._process.memory_info().rss)
    self._cpu.inc(cpu_s - self._used)
    self._used = cpu_s
