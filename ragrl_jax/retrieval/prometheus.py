"""The server's metrics in Prometheus' text format. The processes of one server count into one shared array.

Source: Prometheus' exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence

import numpy as np
import psutil

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
PAGES = ("/retrieve", "/v1/embeddings", "/read", "/v1/models", "/health", "/metrics", "other")
# 499: the client disconnected before its answer, as in nginx.
STATUSES = (200, 400, 401, 403, 404, 405, 413, 429, 499, 500, 502, 504)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds of the histograms
TIMED = ("/retrieve", "/v1/embeddings", "/read")  # pages whose requests are timed; the same names for batches

# The slots of a process's row, in this order.
_SLOTS = [
  *(("requests", page, status) for page in PAGES for status in STATUSES),
  *((kind, page, bound) for kind in ("request", "batch") for page in TIMED for bound in (*SECONDS, "+Inf", "sum")),
  *(("texts", page) for page in TIMED),
  *(("reloads", result) for result in ("done", "failed")),
  *((gauge,) for gauge in ("waiting", "memory", "cpu", "loaded")),
]
_AT = {slot: place for place, slot in enumerate(_SLOTS)}
SLOTS = len(_SLOTS)
_GAUGES = [_AT[gauge,] for gauge in ("waiting", "memory", "cpu", "loaded")]  # reset when the process starts


class Metrics:
  """Counters of a process. `page` renders the sums over all processes. Not thread-safe.

  Args:
    rows: counters shared by the processes, float64 [processes, SLOTS]; by default those of a single process.
    row: the row of this process.
  """

  def __init__(self, rows: np.ndarray | None = None, row: int = 0):
    self._rows = np.zeros((1, SLOTS)) if rows is None else rows
    self._own = self._rows[row]
    self._own[_GAUGES] = 0.0
    self._process, self._looked = psutil.Process(), 0.0

  def request(self, page: str, status: int, seconds: float, *, waiting: int) -> None:
    """Counts a finished request. `waiting`: number of texts in the queue now."""
    page = page if page in PAGES else "other"
    self._own[_AT["requests", page, status]] += 1
    if page in TIMED:
      self._time("request", page, seconds)
    self._own[_AT["waiting",]] = waiting
    if time.monotonic() >= self._looked + 1:
      self.look()

  def batch(self, page: str, texts: int, seconds: float) -> None:
    """Counts a finished batch of searches or embeddings."""
    self._own[_AT["texts", page]] += texts
    self._time("batch", page, seconds)

  def loaded(self, when: float, *, reload: bool) -> None:
    """Records the time at which the index was loaded, in Unix seconds."""
    self._own[_AT["loaded",]] = when
    if reload:
      self._own[_AT["reloads", "done"]] += 1

  def reload_failed(self) -> None:
    """Counts a failed reload."""
    self._own[_AT["reloads", "failed"]] += 1

  def look(self) -> None:
    """Records the process's memory and processor time."""
    self._looked = time.monotonic()
    self._own[_AT["memory",]] = self._process.memory_info().rss
    self._own[_AT["cpu",]] = sum(self._process.cpu_times()[:2])

  def page(self) -> bytes:
    """All metrics as text."""
    total = self._rows.sum(axis=0)
    value = lambda *slot: float(total[_AT[slot]])
    lines = [
      *_head("ragrl_requests_total", "counter", "Finished requests; 499: the client disconnected."),
      *(
        f'ragrl_requests_total{{page="{page}",status="{status}"}} {value("requests", page, status):g}'
        for page in PAGES
        for status in STATUSES
        if value("requests", page, status)
      ),
      *_head("ragrl_texts_total", "counter", "Queries searched, texts embedded, documents read."),
      *(f'ragrl_texts_total{{page="{page}"}} {value("texts", page):.17g}' for page in TIMED),
    ]
    for kind, says in (("request", "Seconds from a request to its answer."), ("batch", "Seconds of a batch's work.")):
      lines += _head(f"ragrl_{kind}_seconds", "histogram", says)
      for page in TIMED:
        lines += _histogram(kind, page, [value(kind, page, bound) for bound in (*SECONDS, "+Inf", "sum")])
    for name, kind, says, number in (
      ("ragrl_reloads_total", "counter", "Successful reloads.", value("reloads", "done")),
      ("ragrl_failed_reloads_total", "counter", "Reloads that kept the old index.", value("reloads", "failed")),
      ("ragrl_waiting_texts", "gauge", "Texts that wait for their batch.", value("waiting")),
      ("ragrl_index_loaded_timestamp_seconds", "gauge", "When the oldest index was loaded.", self._oldest()),
      ("process_resident_memory_bytes", "gauge", "Memory of the server's processes.", value("memory")),
      ("process_cpu_seconds_total", "counter", "Processor time of the running processes.", value("cpu")),
    ):
      lines += [*_head(name, kind, says), f"{name} {number:.17g}"]
    return ("\n".join(lines) + "\n").encode()

  def _oldest(self) -> float:
    times = self._rows[:, _AT["loaded",]]
    return float(times[times > 0].min(initial=np.inf)) if times.any() else 0.0

  def _time(self, kind: str, page: str, seconds: float) -> None:
    bound = bisect.bisect_left(SECONDS, seconds)
    self._own[_AT[kind, page, SECONDS[bound] if bound < len(SECONDS) else "+Inf"]] += 1
    self._own[_AT[kind, page, "sum"]] += seconds


def _head(name: str, kind: str, says: str) -> list[str]:
  return [f"# HELP {name} {says}", f"# TYPE {name} {kind}"]


def _histogram(kind: str, page: str, counts: Sequence[float]) -> list[str]:
  *counts, seconds = counts
  name, lines = f"ragrl_{kind}_seconds", []
  for bound, below in zip((*SECONDS, "+Inf"), np.cumsum(counts)):
    lines.append(f'{name}_bucket{{page="{page}",le="{bound}"}} {below:.17g}')
  return [*lines, f'{name}_sum{{page="{page}"}} {seconds:.17g}', f'{name}_count{{page="{page}"}} {sum(counts):.17g}']
