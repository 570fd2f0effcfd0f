"""Waits for a server that stopped answering. One thread polls, however many threads wait."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 5.0


class Outage:
  """Waits until the server answers again, or until the outage has lasted `wait_s`. Several threads may call `wait`.

  Args:
    name: the server's name in messages, such as "the retriever at http://…".
    answers: polls once: whether the server answers.
    wait_s: longest wait for one outage, in seconds. Later searches fail at once until the server answers.
    setting: the config path of wait_s, for messages.
    say: called with a message when the wait begins, and when the server answers again.
  """

  def __init__(
    self,
    name: str,
    answers: Callable[[], bool],
    *,
    wait_s: float,
    setting: str,
    say: Callable[[str], None] = logging.warning,
  ):
    self._name, self._answers, self._wait_s, self._setting, self._say = name, answers, wait_s, setting, say
    self._lock, self._poll, self._closed = threading.Lock(), None, threading.Event()
    self._since: float | None = None  # when the outage began; None while the server answers

  def close(self) -> None:
    """Ends all waiting."""
    self._closed.set()

  def over(self) -> None:
    """Ends the outage, since a search has succeeded: a later outage is waited for again."""
    with self._lock:
      if self._since is None or self._poll is not None:  # a thread that polls ends the outage itself
        return
      since, self._since = self._since, None
    self._again(since)

  def wait(self, why: str) -> int | None:
    """Returns when the server answers, when wait_s is over, or when `close` is called.

    Args:
      why: the error of the call that failed, for messages.

    Returns:
      The number of polls without an answer (0 if the server answered the first one); None if it still does not answer.
    """
    with self._lock:
      first = self._poll is None
      if first:
        self._poll = concurrent.futures.Future()
      poll = self._poll
    if not first:  # another thread polls for all
      return poll.result()
    found = None
    try:
      found = self._looks(why)
      return found
    finally:
      with self._lock:
        self._poll = None
      poll.set_result(found)

  def _looks(self, why: str) -> int | None:
    silent, pause = 0, FIRST_PAUSE_S
    while not self._answers():
      now = time.monotonic()
      if self._since is None:
        self._since = now
        self._say(f"{self._name} does not answer ({why}): waiting for it, up to {self._wait_s:g} s ({self._setting}).")
      if now + pause >= self._since + self._wait_s or self._closed.wait(pause):
        return None
      silent, pause = silent + 1, min(2 * pause, LAST_PAUSE_S)
    if self._since is not None:
      self._again(self._since)
      self._since = None
    return silent

  def _again(self, since: float) -> None:
    self._say(f"{self._name} answers again after {time.monotonic() - since:.1f} s.")
