"""HTTP server of a retriever, with the protocol of Search-R1's clients, and OpenAI's for embeddings.

    POST /retrieve       {"queries": ["…"], "topk": 3, "return_scores": true}
                         → {"result": [[{"document": {"id", "contents"}, "score"}, …], …]}, one list per query;
                         without return_scores → {"result": [[{"id", "contents"}, …], …]}
    POST /read           {"documents": [{"id": "…", "find": "…"}], "topk": 3}
                         → as /retrieve: the document around a passage, or its passages that contain the words
    POST /v1/embeddings  {"input": ["…"], "input_type": "query" | "passage"} → {"data": [{"embedding": […]}, …]}
    GET /v1/models       the encoder's name
    GET /health          → {"status": "ok", "retriever": …}
    GET /metrics         Prometheus' text

A body may contain "timeout_s". Error statuses: 413 for a body that is too long, 401 without the key, 429 with
Retry-After if too many texts wait, 504 at the deadline, 502 if a retriever behind this one fails, 400 otherwise. SIGHUP
reloads the index.
"""

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from ragrl_jax.protocol import http_limits
from ragrl_jax.protocol.http_limits import Guard, is_loopback
from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.api import Retriever
from ragrl_jax.retrieval.application import FOLDER, Application, Metrics
from ragrl_jax.retrieval.wire import LIMITS, Limits

__all__ = ["Application", "Limits", "configured", "serve"]


def serve(
  load: Callable[[], Retriever],
  *,
  host: str = "127.0.0.1",
  port: int = 8000,
  limits: Limits = LIMITS,
  key: str = "",
  processes: int = 1,
  say: Callable[[str], None] = print,
) -> None:
  """Serves until it is interrupted. By default only this machine can connect.

  On SIGHUP each process calls `load` again and switches to the new retriever. Running searches end with the old one. If
  `load` fails, the old one stays.

  Args:
    load: returns the retriever. With several processes it is pickled, so it must be importable.
    port: 0 for any free port.
    key: see `application.Application`.
    processes: number of processes that share the port. A process that dies is restarted.
    say: called with a line when all processes are ready.

  Raises:
    ValueError: `load` failed; OSError: the port is taken.
  """
  settings = dict(host=host, limits=limits, key=key)
  with http_limits.bound(host, port) as listener:
    name = http_limits.address(host, listener.getsockname()[1])
    if processes == 1:
      _serve(load, listener, settings, ready=lambda description: say(f"{name} serves {description}"))
      return
    ready = lambda description: say(f"{name} serves {description} in {processes} processes")
    with tempfile.TemporaryDirectory(prefix="ragrl-metrics-") as folder:
      Processes(_serve, (load, listener, settings, folder), processes).run(ready)


def _serve(
  load: Callable[[], Retriever],
  listener: socket.socket,
  settings: dict[str, Any],
  folder: str = "",
  row: int = 0,
  *,
  ready: Callable[[dict[str, Any]], None],
) -> None:
  """Serves in this process, the one of number `row`. `folder`: for the metrics of several processes."""
  reloading = Reloading(load)
  if folder:
    os.environ[FOLDER] = folder
  metrics = Metrics()
  metrics.loaded(reloading.loaded, reload=False)

  def reload() -> None:
    if reloading.reload() is None:
      metrics.loaded(reloading.loaded, reload=True)
      logging.warning("process %d has reloaded the index.", os.getpid())
    else:
      metrics.reload_failed()

  # It reloads in a thread, so that requests are answered meanwhile.
  signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reload, daemon=True).start())
  config = configured(reloading, port=0, metrics=metrics, **settings)
  listener.listen()  # uvicorn listens, too, but a client may connect as soon as the server says that it is ready
  ready(dict(reloading.describe()))
  try:
    uvicorn.Server(config).run(sockets=[listener])
  except KeyboardInterrupt:
    return


def configured(
  retriever: Retriever,
  *,
  host: str = "127.0.0.1",
  port: int = 8000,
  limits: Limits = LIMITS,
  guard: Guard | None = None,
  key: str = "",
  metrics: Metrics | None = None,
) -> uvicorn.Config:
  """The server's uvicorn configuration. The server ends within five seconds of SIGTERM, whatever its clients do."""
  application = Application(retriever, limits, local=is_loopback(host), key=key, metrics=metrics)
  return http_limits.configured(application, host=host, port=port, guard=guard)


class Reloading:
  """Forwards to the retriever that `load` returned last. A search ends with the retriever that it started with.

  Attributes:
    loaded: when it was loaded, in Unix seconds.
  """

  def __init__(self, load: Callable[[], api.Retriever]):
    self._load, self._loading = load, threading.Lock()
    self.retriever, self.loaded = load(), time.time()

  def __getattr__(self, name: str) -> Any:
    return getattr(self.retriever, name)  # search and describe; read, embed and model, if the current one has them

  def reload(self) -> str | None:
    """Loads a new retriever; if that fails, keeps the old one, and returns the error. Any thread may call it."""
    with self._loading:
      try:
        new = self._load()
      except (ValueError, OSError, api.RetrievalFailed) as error:  # the index is incomplete or missing
        logging.warning("the index was not reloaded, the old one stays: %s", error)
        return str(error)
      self.retriever, self.loaded = new, time.time()
      return None


PAUSE_S = 1.0  # wait before a process that died is restarted
END_S = 10.0  # time that a process has to end after SIGTERM


class Processes:
  """Runs `work(*arguments, row, ready=…)` in each of `count` new processes; row is 0 to count - 1.

  `work` calls `ready(description)` when it has started. `work` and its arguments are pickled. The processes get SIGHUP
  when this process gets it, and SIGTERM when this process ends, even if it is killed.
  """

  def __init__(self, work: Callable[..., None], arguments: tuple[Any, ...], count: int):
    self._work, self._arguments, self._count = work, arguments, count
    self._made = multiprocessing.get_context("spawn")
    self._running: dict[int, multiprocessing.process.BaseProcess] = {}
    # Kept open: a restarted process, too, says that it is ready, and a closed pipe would end it.
    self._pipes: dict[int, multiprocessing.connection.Connection] = {}
    self._asked: list[int] = []  # signals to handle

  def run(self, ready: Callable[[Any], None]) -> None:
    """Runs the processes until SIGTERM or SIGINT. Calls `ready` once, when all have started.

    Raises:
      ValueError: a process failed before it had started.
    """
    handlers = {
      number: signal.signal(number, lambda number, _: self._asked.append(number))
      for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    }
    try:
      for row in range(self._count):
        self._start(row)
      descriptions = [self._begun(pipe) for pipe in self._pipes.values()]
      if None not in descriptions:
        ready(descriptions[0])
        self._watch()
    finally:
      self._end()
      for number, handler in handlers.items():
        signal.signal(number, handler)

  def _start(self, row: int) -> None:
    receiver, sender = self._made.Pipe(duplex=False)
    process = self._made.Process(target=_begin, args=(self._work, self._arguments, row, sender), name=f"server-{row}")
    process.start()
    sender.close()
    self._running[row], self._pipes[row] = process, receiver

  def _begun(self, pipe: multiprocessing.connection.Connection) -> Any:
    """The description that the process passed to `ready`; None if all processes must end."""
    while not pipe.poll(0.1):
      if self._ends():
        return None
    try:
      ok, message = pipe.recv()
    except EOFError:
      raise ValueError("a server process ended while it loaded the index; its message is above.") from None
    if not ok:
      raise ValueError(message)
    return message

  def _why(self, row: int) -> str:
    """Why a process that has ended could not start, as " It said: …"; "" if it had started, or said nothing."""
    ok, message = True, None
    while self._pipes[row].poll():
      try:
        ok, message = self._pipes[row].recv()
      except EOFError:
        break
    return "" if ok else f" It said: {message}"

  def _ends(self) -> bool:
    return signal.SIGTERM in self._asked or signal.SIGINT in self._asked

  def _watch(self) -> None:
    while not self._ends():
      while signal.SIGHUP in self._asked:
        self._asked.remove(signal.SIGHUP)
        for process in self._running.values():
          os.kill(process.pid, signal.SIGHUP)
      multiprocessing.connection.wait([process.sentinel for process in self._running.values()], timeout=0.2)
      for row, process in list(self._running.items()):
        if process.exitcode is not None and not self._ends():
          logging.warning(
            "server process %d ended with %s: it is started again.%s", process.pid, process.exitcode, self._why(row)
          )
          time.sleep(PAUSE_S)
          self._start(row)

  def _end(self) -> None:
    for process in self._running.values():
      process.terminate()
    until = time.monotonic() + END_S
    for process in self._running.values():
      process.join(max(until - time.monotonic(), 0))
      if process.exitcode is None:
        process.kill()
        process.join()


def _begin(work: Callable[..., None], arguments: tuple[Any, ...], row: int, pipe) -> None:
  """Runs the work in the new process. Sends a user's mistake to the parent, which reports it in one line."""
  parent = multiprocessing.parent_process()

  def end_with_parent() -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=end_with_parent, daemon=True).start()
  begun = False

  def ready(description: Any) -> None:
    nonlocal begun
    begun = True
    pipe.send((True, description))

  try:
    work(*arguments, row, ready=ready)
  except (ValueError, OSError) as error:
    if begun:
      raise
    pipe.send((False, str(error)))
