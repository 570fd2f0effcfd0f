"""Runs the same work in several processes. Restarts a process that dies, and ends all of them together."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

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
      said = [self._begun(pipe) for pipe in self._pipes.values()]
      if None not in said:
        ready(said[0])
        self._watch()
    finally:
      self._end()
      for number, handler in handlers.items():
        signal.signal(number, handler)

  def _start(self, row: int) -> None:
    here, there = self._made.Pipe(duplex=False)
    process = self._made.Process(target=_begin, args=(self._work, self._arguments, row, there), name=f"server-{row}")
    process.start()
    there.close()
    self._running[row], self._pipes[row] = process, here

  def _begun(self, pipe: multiprocessing.connection.Connection) -> Any:
    """The description that the process passed to `ready`; None if all processes must end."""
    while not pipe.poll(0.1):
      if self._ends():
        return None
    try:
      fine, said = pipe.recv()
    except EOFError:
      raise ValueError("a server process ended while it loaded the index; its message is above.") from None
    if not fine:
      raise ValueError(said)
    return said

  def _why(self, row: int) -> str:
    """Why a process that has ended could not start, as " It said: …"; "" if it had started, or said nothing."""
    fine, said = True, None
    while self._pipes[row].poll():
      try:
        fine, said = self._pipes[row].recv()
      except EOFError:
        break
    return "" if fine else f" It said: {said}"

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
