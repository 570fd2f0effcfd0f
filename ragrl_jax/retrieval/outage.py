"""A server that stopped answering, waited for by one poll however many threads miss it."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 5.0


class Outage:
  """Waits until somebody answers again, or until an outage has lasted `wait_s`; callable from several threads.

  Args:
    name: of what is waited for, as in "the retriever at http://…".
    answers: one look: whether anybody answers.
    wait_s: how long one outage is waited for. Searches that come after that fail as long as it lasts.
    setting: where wait_s is set.
    say: told once when the waiting begins and once when it ends well.
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
    self._since: float | None = None  # when the outage began; None while it answers

  def close(self) -> None:
    """Ends all waiting."""
    self._closed.set()

  def wait(self, why: str) -> int | None:
    """Returns when it answers, or when there is nothing to wait for any more.

    Args:
      why: what went wrong with the call that missed it.

    Returns:
      The looks that found nobody, 0 where the first was answered; None: still nobody, wait_s after the outage began.
    """
    with self._lock:
      first = self._poll is None
      if first:
        self._poll = concurrent.futures.Future()
      poll = self._poll
    if not first:  # another thread looks, for all
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
      self._say(f"{self._name} answers again after {time.monotonic() - self._since:.1f} s.")
      self._since = None
    return silent
