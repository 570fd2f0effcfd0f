"""Calls of a server: in batches, with retries, within one deadline, and with a wait for the end of an outage."""

import concurrent.futures
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from ragrl_jax.core.text.forms import safe
from ragrl_jax.retrieval import api
from ragrl_jax.store import addresses

RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})  # temporary errors; any other status would only be repeated
REFUSED = frozenset({400, 413, 422})  # one of the queries, or their number or size
SETTING = "config.retrieval.wait_s"
FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 5.0  # between polls during an outage


class Failed(Exception):
  """A call without a valid answer.

  Args:
    away: there was no server, so that the end of an outage may be waited for.
    busy_s: after how many seconds a busy server wants the next call; such a call counts as no retry.
    apart: the same queries in smaller calls may succeed.
  """

  def __init__(
    self, why: str, *, away: bool = False, again: bool = True, busy_s: float | None = None, apart: bool = False
  ):
    super().__init__(safe(why))  # a server may send anything
    self.away, self.again, self.busy_s, self.apart = away, again, busy_s, apart

  @classmethod
  def of_status(cls, status: int, text: str, busy_s: float | None = None) -> "Failed":
    """The error of an HTTP status."""
    what = dict(away=status >= 500, again=status in RETRY, apart=status in REFUSED)
    return cls(f"status {status}: {text}", busy_s=busy_s, **what)


class Calls:
  """Calls a server for the searches of several threads.

  A busy server is called again after the time that it names, within the deadline. If no server answers, searches wait
  for it, and one thread asks for all of them whether it does.
  """

  def __init__(
    self,
    name: str,
    answers: Callable[[], bool],
    *,
    timeout_s: float = 30.0,
    deadline_s: float | None = None,
    retries: int = 3,
    wait_s: float = 0.0,
    backoff_s: float = 0.25,
    batch: int = 512,
    say: Callable[[str], None] = logging.warning,
  ):
    """
    Args:
      timeout_s: seconds for one call, from connecting to the last byte.
      deadline_s: seconds for all calls of one search, pauses included; by default timeout_s * (retries + 1).
      wait_s: seconds that searches wait for the end of an outage (no connection, no answer in time, status 5xx). A
        search takes at most deadline_s + wait_s.
      backoff_s: seconds before the first retry; the pause doubles with each retry and varies at random by ±50 %.
      batch: queries sent in one call; more are split.
      say: called with a message when an outage begins and when it ends.

    Raises:
      ValueError: a setting out of range.
    """
    if timeout_s <= 0 or retries < 0 or batch < 1 or wait_s < 0 or (deadline_s is not None and deadline_s <= 0):
      raise ValueError(
        f"timeout_s={timeout_s}, deadline_s={deadline_s}, retries={retries}, wait_s={wait_s}, batch={batch}: times and "
        "sizes must be positive, retries and wait_s 0 or more (config.retrieval)."
      )
    self._name, self._timeout, self._retries, self._wait, self._backoff = name, timeout_s, retries, wait_s, backoff_s
    self._deadline = deadline_s if deadline_s is not None else timeout_s * (retries + 1)
    self._batch = batch
    self._outage = Outage(name, answers, wait_s=wait_s, say=say)

  def close(self) -> None:
    """Ends all waiting: searches that wait fail now."""
    self._outage.close()

  def in_batches(self, texts: list[Any], call: Callable[[list[Any], float], api.Answers]) -> api.Answers:
    """The answers of `call(some of the texts, the call's deadline on the clock of time.monotonic())`, for all texts.

    `call` raises Failed. Queries that the server refuses together are asked in halves, so that only those fail that it
    refuses alone.

    Raises:
      RetrievalFailed: no valid answer within retries, deadline and wait; the message names the queries.
    """
    batches = (texts[start : start + self._batch] for start in range(0, len(texts), self._batch))
    patience = self._deadline + self._wait
    return [found for batch in batches for found in self._ask(batch, call, time.monotonic() + patience)]

  def _ask(self, texts: list[Any], call: Callable[[list[Any], float], api.Answers], give_up: float) -> api.Answers:
    reasons: list[str] = []
    result = self._tries(texts, call, reasons, give_up)
    was_away = True
    while isinstance(result, Failed) and result.away and self._wait and time.monotonic() < give_up:
      looks = self._outage.wait(reasons[-1])
      if looks is None:
        reasons[-1] += f"; nobody answered for {self._wait:g} s ({SETTING})"
        break
      if not looks and not was_away:  # the server is up, but fails for these queries
        break
      was_away = looks > 0
      result = self._tries(texts, call, reasons, give_up)
    if not isinstance(result, Failed):
      self._outage.over()
      return result
    if result.apart and len(texts) > 1:
      return self._halves(texts, call, give_up)
    some = ", ".join(f"{text!r:.80}" for text in texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
    *before, why = reasons
    if others := [reason for reason in dict.fromkeys(before[-5:]) if reason != why]:
      why += f" (before that: {'; '.join(others)})"
    why = addresses.without_credentials(why)
    raise api.RetrievalFailed(f"no passages for {some} from {self._name} after {len(reasons)} calls: {why}.", texts)

  def _halves(self, texts: list[Any], call: Callable[[list[Any], float], api.Answers], give_up: float) -> api.Answers:
    answers, failures = [], []
    for half in (texts[: len(texts) // 2], texts[len(texts) // 2 :]):
      try:
        answers += self._ask(half, call, give_up)
      except api.RetrievalFailed as failure:
        failures.append(failure)
    if failures:
      raise api.RetrievalFailed(str(failures[0]), [query for failure in failures for query in failure.queries])
    return answers

  def _tries(
    self, texts: list[Any], call: Callable[[list[Any], float], api.Answers], reasons: list[str], give_up: float
  ) -> api.Answers | Failed:
    """One call and its retries. When all have failed, the last error; every error is added to the reasons."""
    until, retries_left, backoff = min(time.monotonic() + self._deadline, give_up), self._retries, self._backoff
    while True:
      try:
        return call(texts, min(until, time.monotonic() + self._timeout))
      except Failed as error:
        reasons.append(str(error))
        failed, busy = error, error.busy_s
      if busy is None:
        retries_left -= 1
      pause = max(backoff * random.uniform(0.5, 1.5), busy or 0.0)
      if retries_left < 0 or not failed.again:
        return failed
      if time.monotonic() + pause >= until:
        reasons[-1] += f"; the deadline of {self._deadline:g} s is spent"
        return failed
      time.sleep(pause)
      backoff *= 2 if busy is None else 1


class Outage:
  """Waits until the server answers again, or until the outage has lasted `wait_s`. Several threads may call `wait`.

  Args:
    wait_s: longest wait for one outage, in seconds. Later searches fail at once until the server answers.
    say: called with a message when the wait begins, and when the server answers again.
  """

  def __init__(self, name: str, answers: Callable[[], bool], *, wait_s: float, say: Callable[[str], None]):
    self._name, self._answers, self._wait_s, self._say = name, answers, wait_s, say
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
    result = None
    try:
      result = self._looks(why)
      return result
    finally:
      with self._lock:
        self._poll = None
      poll.set_result(result)

  def _looks(self, why: str) -> int | None:
    silent, pause = 0, FIRST_PAUSE_S
    while not self._answers():
      now = time.monotonic()
      if self._since is None:
        self._since = now
        self._say(f"{self._name} does not answer ({why}): waiting for it, up to {self._wait_s:g} s ({SETTING}).")
      if now + pause >= self._since + self._wait_s or self._closed.wait(pause):
        return None
      silent, pause = silent + 1, min(2 * pause, LAST_PAUSE_S)
    if self._since is not None:
      self._again(self._since)
      self._since = None
    return silent

  def _again(self, since: float) -> None:
    self._say(f"{self._name} answers again after {time.monotonic() - since:.1f} s.")
