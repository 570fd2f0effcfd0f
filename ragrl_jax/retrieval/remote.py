"""Client of a retriever over HTTP. Search-R1's protocol: POST /retrieve {"queries", "topk", "return_scores": true}."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import logging
import random
import reprlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ragrl_jax.chat import http
from ragrl_jax.retrieval import api, documents
from ragrl_jax.retrieval.corpus import from_contents
from ragrl_jax.store import addresses
from ragrl_jax.structs import Passage

RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})  # temporary errors; any other status would only be repeated
HEALTH_S = 10.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 5.0  # between polls during an outage


class RemoteRetriever:
  """Searches by calling a server. Several threads may use it. The shape and size of every answer are checked.

  Two formats of answers are read: with scores ({"document": …, "score": …}) and without. Items as search engines return
  them are accepted too: without an id (a hash of the contents replaces it), without a score, and more items than
  requested (the rest is dropped). Passages keep the server's order. Proxy settings in the environment are ignored.

  A busy server (status 429 or 503 with Retry-After) is called again after the time it names, within the deadline. If
  the server cannot be reached, searches wait for it (`wait_s`).
  """

  def __init__(
    self,
    address: str,
    *,
    timeout_s: float = 30.0,
    deadline_s: float | None = None,
    retries: int = 3,
    wait_s: float = 0.0,
    backoff_s: float = 0.25,
    max_bytes: int = 64 << 20,
    batch: int = 512,
    key: str = "",
    check: bool = True,
    say: Callable[[str], None] = logging.warning,
  ):
    """
    Args:
      address: "http://host:port", or the whole "http://host:port/retrieve".
      timeout_s: seconds for one call, from connecting to the last byte.
      deadline_s: seconds for all calls of one search, pauses included; by default timeout_s * (retries + 1).
      retries: further calls after a failed one.
      wait_s: seconds that searches wait for the end of an outage (no connection, no answer in time, status 5xx).
        Meanwhile one thread polls GET /health for all searches. A search takes at most deadline_s + wait_s.
      backoff_s: seconds before the first retry; the pause doubles with each retry and varies at random by ±50 %.
      max_bytes: the largest answer in bytes; reading stops beyond it.
      batch: queries sent in one call; more are split.
      key: token that is sent with every call ("Authorization: Bearer KEY"); "" for none.
      check: call GET /health now.
      say: called with a message when an outage begins and when it ends.

    Raises:
      ValueError: not an http(s) address, or a setting out of range.
      RetrievalFailed: the server does not answer (only with `check`).
    """
    if not address.startswith(("http://", "https://")):
      raise ValueError(f"{address!r}: a retriever's address begins with http:// or https://.")
    if (
      timeout_s <= 0
      or retries < 0
      or batch < 1
      or max_bytes < 1
      or wait_s < 0
      or (deadline_s is not None and deadline_s <= 0)
    ):
      raise ValueError(
        f"timeout_s={timeout_s}, deadline_s={deadline_s}, retries={retries}, wait_s={wait_s}, "
        f"max_bytes={max_bytes}, batch={batch}: times and sizes must be positive, retries and wait_s 0 "
        "or more (config.retrieval)."
      )
    self._base = address.rstrip("/").removesuffix("/retrieve")
    self._shown = addresses.without_credentials(self._base)  # for messages, logs and the files of evaluations
    self._timeout, self._retries, self._wait, self._backoff = timeout_s, retries, wait_s, backoff_s
    self._deadline = deadline_s if deadline_s is not None else timeout_s * (retries + 1)
    self._max_bytes, self._batch = max_bytes, batch
    self._headers = {"authorization": f"Bearer {key}"} if key else {}
    self._outage = Outage(
      f"the retriever at {self._shown}", self._answers, wait_s=wait_s, setting="config.retrieval.wait_s", say=say
    )
    self._health = self.health() if check else {}

  @property
  def name(self) -> str:
    """The address, without credentials."""
    return self._shown

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: the address without credentials, and the server's own settings."""
    return dict(kind="remote", address=self._shown, server=self._health)

  def close(self) -> None:
    """Ends the waiting for the server: searches that wait fail now."""
    self._outage.close()

  def health(self) -> dict[str, Any]:
    """The server's description by GET /health; empty for a server without that page (Search-R1's own).

    Raises:
      RetrievalFailed: the server does not answer, or answers with an error status.
    """
    try:
      reply = self._asked_for_health()
    except http.NotJSON:
      return {}
    except http.CallFailed as error:
      raise api.RetrievalFailed(
        f"no retriever answers at {self._shown} ({addresses.without_credentials(str(error))}): start it with "
        "`ragrl serve-index`, or correct config.retrieval.index."
      ) from error
    if reply.status in (404, 405):
      return {}
    if reply.status == 401:
      raise api.RetrievalFailed(
        f"the retriever at {self._shown} refuses the token, or wants one: config.retrieval.key_variable names the "
        "environment variable that holds it."
      )
    if reply.status != 200:
      raise api.RetrievalFailed(f"the retriever at {self._shown} is not healthy: GET /health gave {reply.status}.")
    return reply.body if isinstance(reply.body, dict) else {}

  def _answers(self) -> bool:
    try:
      return self._asked_for_health().status < 500
    except http.NotJSON:
      return True
    except http.CallFailed:
      return False

  def _asked_for_health(self) -> http.Reply:
    until = time.monotonic() + min(HEALTH_S, self._timeout)
    return http.get_json(f"{self._base}/health", deadline=until, max_bytes=self._max_bytes, headers=self._headers)

  def search(self, queries: Sequence[str], k: int) -> api.Answers:
    """See `api.Retriever`.

    Raises:
      RetrievalFailed: no valid answer within retries, deadline and wait; the message names the queries.
    """
    return api.answer_each(queries, k, lambda texts, k: self._in_batches(texts, k, "/retrieve"))

  def read(self, requests: Sequence[tuple[str, str]], k: int) -> api.Answers:
    """See `documents.read`. Raises RetrievalFailed as `search` does; a server without the page /read fails at once."""
    documents.check_requests(requests, k)
    return self._in_batches(list(requests), k, "/read")

  def _in_batches(self, texts: list[Any], k: int, page: str) -> api.Answers:
    batches = (texts[start : start + self._batch] for start in range(0, len(texts), self._batch))
    return [found for batch in batches for found in self._search(batch, k, page)]

  def _search(self, texts: list[Any], k: int, page: str) -> api.Answers:
    tried, give_up = _Tried(), time.monotonic() + self._deadline + self._wait
    result = self._tries(texts, k, page, tried, give_up)
    was_away = True
    while result is None and tried.away and self._wait and time.monotonic() < give_up:
      looks = self._outage.wait(tried.reasons[-1])
      if looks is None:
        tried.reasons[-1] += f"; nobody answered for {self._wait:g} s (config.retrieval.wait_s)"
        break
      if not looks and not was_away:  # the server is up, but fails for these queries
        break
      was_away = looks > 0
      result = self._tries(texts, k, page, tried, give_up)
    if result is not None:
      self._outage.over()
      return result
    some = ", ".join(f"{text!r:.80}" for text in texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
    *before, why = tried.reasons
    if others := [reason for reason in dict.fromkeys(before[-5:]) if reason != why]:
      why += f" (before that: {'; '.join(others)})"
    why = addresses.without_credentials(why)
    raise api.RetrievalFailed(f"no passages for {some} from {self._shown} after {tried.calls} calls: {why}.", texts)

  def _tries(self, texts: list[Any], k: int, page: str, tried: _Tried, give_up: float) -> api.Answers | None:
    """One call and its retries, recorded in `tried`; None when all have failed."""
    if page == "/read":
      payload = dict(documents=[dict(id=name, find=words) for name, words in texts], topk=int(k))
    else:
      payload = dict(queries=texts, topk=int(k), return_scores=True)
    until, left, busy = min(time.monotonic() + self._deadline, give_up), self._retries, None
    backoff = self._backoff
    while True:
      call_until = min(until, time.monotonic() + self._timeout)
      try:
        tried.calls += 1
        reply = http.post_json(
          f"{self._base}{page}", payload, deadline=call_until, max_bytes=self._max_bytes, headers=self._headers
        )
        if reply.status == 200:
          return _read(reply.body, texts, k)
        tried.note(f"status {reply.status}: {reply.text!r}", away=reply.status >= 500)
        if reply.status not in RETRY:
          return None
        busy = reply.retry_after_s if reply.status in (429, 503) else None
      except http.AnswerTooLarge:
        tried.note(f"the answer is longer than {self._max_bytes} bytes (max_bytes)", away=False)
        return None
      except http.NoAnswerInTime:
        tried.note(f"no whole answer within {self._timeout:g} s (config.retrieval.timeout_s)", away=True)
      except (http.ConnectionFailed, http.NotJSON, _Bad) as error:
        tried.note(str(error), away=isinstance(error, http.ConnectionFailed))
      if busy is None:
        left -= 1
      pause = max(backoff * random.uniform(0.5, 1.5), busy or 0.0)
      if left < 0:
        return None
      if time.monotonic() + pause >= until:
        tried.reasons[-1] += f"; the deadline of {self._deadline:g} s is spent"
        return None
      time.sleep(pause)
      backoff, busy = backoff * (2 if busy is None else 1), None


@dataclasses.dataclass
class _Tried:
  """The calls of one search and their errors. `away`: the last call found no server."""

  calls: int = 0
  away: bool = False
  reasons: list[str] = dataclasses.field(default_factory=list)

  def note(self, why: str, *, away: bool) -> None:
    self.reasons.append(why)
    self.away = away


class _Bad(Exception):
  """An answer in JSON, but not in the protocol's format."""


def _read(said: Any, texts: Sequence[str], k: int) -> api.Answers:
  result = said.get("result") if isinstance(said, dict) else None
  if not isinstance(result, list) or not all(isinstance(found, list) for found in result):
    raise _Bad('the answer is not {"result": [[…], …]}')
  if len(result) != len(texts):
    raise _Bad(f"the answer has {len(result)} lists for {len(texts)} queries")
  return [[_item(item) for item in found[:k]] for found in result]


def _item(item: Any) -> Passage:
  """One hit: {"document", "score"}, or the document itself: {"id", "contents"}, {"title", "text"} or plain text."""
  score, document = None, item
  if isinstance(item, dict) and "document" in item:
    document, score = item["document"], item.get("score")
  if isinstance(document, str):
    document = dict(contents=document)
  if not isinstance(document, dict) or not isinstance(document.get("contents", document.get("text")), str):
    raise _Bad(f'a result is not {{"document": {{"id", "contents"}}, "score"}}: {reprlib.repr(item)}')
  if isinstance(document.get("text"), str) and (isinstance(document.get("title"), str) or "contents" not in document):
    title, text = document.get("title"), document["text"]
  else:
    title, text = from_contents(document["contents"])
  if score is not None:
    score = _number(score)
  title = title if isinstance(title, str) else ""
  name = document.get("id")
  if not isinstance(name, str | int | float | None):
    raise _Bad(f"a result's id is neither a string nor a number: {reprlib.repr(name)}")
  try:
    encoded = f"{title}\n{text}".encode()
  except UnicodeEncodeError:
    raise _Bad(f"a result's text holds half a surrogate pair: {text[:80]!r}") from None
  name = hashlib.sha256(encoded).hexdigest()[:16] if name is None else str(name)
  return Passage(name, title, text, score)


def _number(score: Any) -> float:
  """The score as a float. JSON as Python reads it may hold infinity, NaN, or integers too large for a float."""
  if not isinstance(score, bool) and isinstance(score, int | float) and abs(score) <= sys.float_info.max:
    return float(score)
  raise _Bad(f"a result's score is not a finite number: {reprlib.repr(score)}")


class Outage:
  """Waits until the server answers again, or until the outage has lasted `wait_s`. Several threads may call `wait`.

  Args:
    name: the server's name in messages, such as "the retriever at http://…".
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
