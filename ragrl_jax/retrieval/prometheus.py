"""The server's metrics in Prometheus' text format.

The processes of one server count into files of the folder that the environment variable FOLDER names. It must be set
before a process makes its Metrics (prometheus_client's multiprocess mode).
"""

from __future__ import annotations

import os
import pathlib
import time

import psutil

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds of the histograms
TIMED = ("/retrieve", "/v1/embeddings", "/read")  # pages whose requests are timed; the same names for batches
PAGES = (*TIMED, "/v1/models", "/health", "/metrics")


class Metrics:
  """Counters of a process. `page` renders the sums over all processes of the server."""

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
    self._requests.labels(page if page in PAGES else "other", status).inc()
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
    self._looked, used = time.monotonic(), sum(self._process.cpu_times()[:2])
    self._memory.set(self._process.memory_info().rss)
    self._cpu.inc(used - self._used)
    self._used = used
