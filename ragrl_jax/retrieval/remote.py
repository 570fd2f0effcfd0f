"""Client of a retriever over HTTP. Search-R1's protocol: POST /retrieve {"queries", "topk", "return_scores": true}."""

import hashlib
import reprlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat import http
from ragrl_jax.retrieval import api, documents, outage
from ragrl_jax.retrieval.corpus import from_contents
from ragrl_jax.store import addresses
from ragrl_jax.structs import Passage

HEALTH_S = 10.0


class RemoteRetriever(api.Searches):
  """Searches by calling a server. Several threads may use it. The shape and size of every answer are checked.

  Two formats of answers are read: with scores ({"document": …, "score": …}) and without. Items as search engines return
  them are accepted too: without an id (a hash of the contents replaces it), without a score, and more items than
  requested (the rest is dropped). Passages keep the server's order. Proxy settings in the environment are ignored.

  A busy server (status 429 or 503 with Retry-After) is called again after the time it names, within the deadline. If
  the server cannot be reached, searches wait for it (`wait_s`). Without a valid answer within retries, deadline and
  wait, a search raises RetrievalFailed, which names the queries.

  Attributes:
    name: the address without credentials, for messages, logs and the files of evaluations.
  """

  def __init__(
    self,
    address: str,
    *,
    timeout_s: float = 30.0,
    max_bytes: int = 64 << 20,
    key: str = "",
    check: bool = True,
    **patience: Any,
  ):
    """
    Args:
      address: "http://host:port", or the whole "http://host:port/retrieve".
      timeout_s, **patience: see `outage.Calls`. During an outage one thread polls GET /health for all searches.
      max_bytes: the largest answer in bytes; reading stops beyond it.
      key: token that is sent with every call ("Authorization: Bearer KEY"); "" for none.

    Raises:
      ValueError: not an http(s) address, or a setting out of range.
      RetrievalFailed: the server does not answer (only with `check`).
    """
    if not address.startswith(("http://", "https://")):
      raise ValueError(f"{address!r}: a retriever's address begins with http:// or https://.")
    if max_bytes < 1:
      raise ValueError(f"max_bytes={max_bytes}: it must be positive.")
    self._base = address.rstrip("/").removesuffix("/retrieve")
    self.name = addresses.without_credentials(self._base)
    self._timeout, self._max_bytes = timeout_s, max_bytes
    self._headers = {"authorization": f"Bearer {key}"} if key else {}
    self._calls = outage.Calls(f"the retriever at {self.name}", self._answers, timeout_s=timeout_s, **patience)
    self._health = self.health() if check else {}

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: the address without credentials, and the server's own settings."""
    return dict(kind="remote", address=self.name, server=self._health)

  def close(self) -> None:
    """Ends the waiting for the server: searches that wait fail now."""
    self._calls.close()

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
        f"no retriever answers at {self.name} ({addresses.without_credentials(str(error))}): start it with "
        "`ragrl serve-index`, or correct config.retrieval.index."
      ) from error
    if reply.status in (404, 405):
      return {}
    if reply.status == 401:
      raise api.RetrievalFailed(
        f"the retriever at {self.name} refuses the token, or wants one: config.retrieval.key_variable names the "
        "environment variable that holds it."
      )
    if reply.status != 200:
      raise api.RetrievalFailed(f"the retriever at {self.name} is not healthy: GET /health gave {reply.status}.")
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

  def _search(self, texts: list[str], k: int) -> api.Answers:
    return self._in_batches(texts, k, "/retrieve")

  def read(self, requests: Sequence[tuple[str, str]], k: int) -> api.Answers:
    """See `documents.read`. Raises RetrievalFailed as `search` does; a server without the page /read fails at once."""
    documents.check_requests(requests, k)
    return self._in_batches(list(requests), k, "/read")

  def _in_batches(self, texts: list[Any], k: int, page: str) -> api.Answers:
    return self._calls.in_batches(texts, lambda some, deadline: self._call(some, k, page, deadline))

  def _call(self, texts: list[Any], k: int, page: str, deadline: float) -> api.Answers:
    if page == "/read":
      payload = dict(documents=[dict(id=name, find=words) for name, words in texts], topk=int(k))
    else:
      payload = dict(queries=texts, topk=int(k), return_scores=True)
    try:
      reply = http.post_json(
        f"{self._base}{page}", payload, deadline=deadline, max_bytes=self._max_bytes, headers=self._headers
      )
      if reply.status == 200:
        return _read(reply.body, texts, k)
    except http.AnswerTooLarge:
      long = f"the answer is longer than {self._max_bytes} bytes (max_bytes)"
      raise outage.Failed(long, again=False, apart=True) from None
    except http.NoAnswerInTime:
      late = f"no whole answer within {self._timeout:g} s (config.retrieval.timeout_s)"
      raise outage.Failed(late, away=True) from None
    except (http.ConnectionFailed, http.NotJSON, _Bad) as error:
      raise outage.Failed(str(error), away=isinstance(error, http.ConnectionFailed)) from None
    busy = reply.retry_after_s if reply.status in (429, 503) else None
    raise outage.Failed.of_status(reply.status, repr(reply.text), busy)


class _Bad(Exception):
  """An answer in JSON, but not in the protocol's format."""


def _read(body: Any, texts: Sequence[str], k: int) -> api.Answers:
  result = body.get("result") if isinstance(body, dict) else None
  if not isinstance(result, list) or not all(isinstance(hits, list) for hits in result):
    raise _Bad('the answer is not {"result": [[…], …]}')
  if len(result) != len(texts):
    raise _Bad(f"the answer has {len(result)} lists for {len(texts)} queries")
  return [[_item(item) for item in hits[:k]] for hits in result]


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
