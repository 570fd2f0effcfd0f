"""A retriever behind HTTP: Search-R1's protocol, POST /retrieve {"queries", "topk", "return_scores": true}."""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx

from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.corpus import from_contents
from ragrl_jax.structs import Passage

RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})  # what may pass; any other refusal will be the same next time


class RemoteRetriever:
  """Asks a server; may be used from several threads. Nothing the server says is trusted to be of any shape or size.

  Answers are read in both shapes, with scores ({"document": …, "score": …}) and without, and as search-engine servers
  give them: no id (then a hash of the contents), no score, more items than asked for (the rest is dropped). The order
  is the server's. Proxies of the environment are not used.
  """

  def __init__(self, address: str, *, timeout_s: float = 30.0, deadline_s: float | None = None, retries: int = 3,
               backoff_s: float = 0.25, max_bytes: int = 64 << 20, batch: int = 512, check: bool = True):
    """
    Args:
      address: "http://host:port", or the whole "http://host:port/retrieve".
      timeout_s: of one call, from connecting to the last byte.
      deadline_s: of all calls of one search, waits included; by default timeout_s for every allowed call.
      retries: further calls after a failed one.
      backoff_s: wait before the first retry; it doubles with each, and is spread by ±50 %.
      max_bytes: of an answer; a longer one is not read to its end.
      batch: queries sent in one call; more are split.
      check: ask for the server's health now.

    Raises:
      ValueError: no http(s) address, or a setting out of range.
      RetrievalFailed: nobody answers (only with `check`).
    """
    if not address.startswith(("http://", "https://")):
      raise ValueError(f"{address!r}: a retriever's address begins with http:// or https://.")
    if timeout_s <= 0 or retries < 0 or batch < 1 or max_bytes < 1 or (deadline_s is not None and deadline_s <= 0):
      raise ValueError(f"timeout_s={timeout_s}, deadline_s={deadline_s}, retries={retries}, max_bytes={max_bytes}, "
                       f"batch={batch}: times and sizes must be positive, retries 0 or more (config.retrieval).")
    self._base = address.rstrip("/").removesuffix("/retrieve")
    self._timeout, self._retries, self._backoff = timeout_s, retries, backoff_s
    self._deadline = deadline_s if deadline_s is not None else timeout_s * (retries + 1)
    self._max_bytes, self._batch = max_bytes, batch
    self._client = httpx.Client(timeout=timeout_s, follow_redirects=False, trust_env=False)
    self._health = self.health() if check else {}

  def describe(self) -> dict[str, Any]:
    return dict(kind="remote", address=self._base, server=self._health)

  def close(self) -> None:
    self._client.close()

  def health(self) -> dict[str, Any]:
    """GET /health: what the server says of itself; empty for a server that knows no such page (Search-R1's own).

    Raises:
      RetrievalFailed: nobody answers, or the server says it is not well.
    """
    try:
      status, raw = self._call("GET", "/health", b"", time.monotonic() + 10.0)
    except (_Failed, _Refused, httpx.HTTPError) as error:
      raise api.RetrievalFailed(
          f"no retriever answers at {self._base} ({_said(error)}): start it with launchers/serve_retriever.py, "
          "or correct config.retrieval.index.") from error
    if status in (404, 405):
      return {}
    if status != 200:
      raise api.RetrievalFailed(f"the retriever at {self._base} is not well: GET /health gave {status}.")
    try:
      said = json.loads(raw)
    except ValueError:
      return {}
    return said if isinstance(said, dict) else {}

  def search(self, queries: Sequence[str], k: int) -> api.Answers:
    """See `api.Retriever`.

    Raises:
      RetrievalFailed: no good answer within retries and deadline; says which queries.
    """
    return api.each(queries, k, lambda texts: self._in_batches(texts, k))

  def _in_batches(self, texts: list[str], k: int) -> api.Answers:
    batches = (texts[start:start + self._batch] for start in range(0, len(texts), self._batch))
    return [found for batch in batches for found in self._search(batch, k)]

  def _search(self, texts: list[str], k: int) -> api.Answers:
    until, why, calls = time.monotonic() + self._deadline, "", 0
    body = json.dumps(dict(queries=texts, topk=int(k), return_scores=True)).encode()
    for attempt in range(self._retries + 1):
      if attempt:
        wait = self._backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
        if time.monotonic() + wait >= until:
          why += f"; the deadline of {self._deadline:g} s is spent"
          break
        time.sleep(wait)
      calls += 1
      try:
        return _answers(*self._call("POST", "/retrieve", body, until), texts, k)
      except _Refused as error:
        why = _said(error)
        break
      except (_Failed, httpx.HTTPError) as error:
        why = _said(error)
    some = ", ".join(repr(text[:80]) for text in texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
    raise api.RetrievalFailed(f"no passages for {some} from {self._base} after {calls} calls: {why}.", texts)

  def _call(self, method: str, page: str, body: bytes, until: float) -> tuple[int, bytes]:
    """(status, body) of one call, read up to the limits of time and length."""
    until = min(until, time.monotonic() + self._timeout)
    timeout = httpx.Timeout(max(until - time.monotonic(), 0.001))
    headers = {"content-type": "application/json", "accept-encoding": "identity"}  # so that lengths are what is read
    raw = bytearray()
    with self._client.stream(
        method, f"{self._base}{page}", content=body, headers=headers, timeout=timeout) as response:
      for chunk in response.iter_raw():
        raw += chunk
        if len(raw) > self._max_bytes:
          raise _Refused(f"the answer is longer than {self._max_bytes} bytes (max_bytes)")
        if time.monotonic() > until:
          raise _Failed(f"the answer was not complete within {self._timeout:g} s (config.retrieval.timeout_s)")
    return response.status_code, bytes(raw)


class _Failed(Exception):
  """This call failed; the next one may not."""


class _Refused(Exception):
  """The next call would fail as well."""


def _answers(status: int, raw: bytes, texts: Sequence[str], k: int) -> api.Answers:
  if status != 200:
    kind = _Failed if status in RETRY else _Refused
    raise kind(f"status {status}: {raw[:300].decode(errors='replace')!r}")
  try:
    said = json.loads(raw)
  except ValueError:
    raise _Failed(f"the answer is no JSON: {raw[:80].decode(errors='replace')!r}") from None
  result = said.get("result") if isinstance(said, dict) else None
  if not isinstance(result, list) or not all(isinstance(found, list) for found in result):
    raise _Refused('the answer is not {"result": [[…], …]}')
  if len(result) != len(texts):
    raise _Refused(f"the answer has {len(result)} lists for {len(texts)} queries")
  return [[_item(item) for item in found[:k]] for found in result]


def _item(item: Any) -> Passage:
  """One hit: {"document", "score"}, or the document itself: {"id", "contents"}, {"title", "text"} or plain text."""
  score, document = None, item
  if isinstance(item, dict) and "document" in item:
    document, score = item["document"], item.get("score")
  if isinstance(document, str):
    document = dict(contents=document)
  if not isinstance(document, dict) or not isinstance(document.get("contents", document.get("text")), str):
    raise _Refused(f'a result is not {{"document": {{"id", "contents"}}, "score"}}: {item!r:.120}')
  if "contents" in document:
    title, text = from_contents(document["contents"])
  else:
    title, text = document.get("title"), document["text"]
  if score is not None and (isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score)):
    raise _Refused(f"a result's score is not a finite number: {score!r:.80}")
  name = document.get("id")
  if name is None:
    name = hashlib.sha256(f"{title}\n{text}".encode("utf-8", "replace")).hexdigest()[:16]
  return Passage(str(name), title if isinstance(title, str) else "", text, None if score is None else float(score))


def _said(error: Exception) -> str:
  """httpx's errors may have no text of their own."""
  if isinstance(error, httpx.HTTPError):
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
  return str(error)
