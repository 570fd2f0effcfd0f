"""The client for servers of OpenAI's protocol. Judges, teachers and answering models use it.

The server is not trusted: `chat/http.py` limits the time, the length and the form of an answer. `CachedClient` stores
answers on disk.
"""

import asyncio
import concurrent.futures
import dataclasses
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx

from ragrl_jax.chat import http
from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.store import disk_cache
from ragrl_jax.store.addresses import without_credentials
from ragrl_jax.structs import ToolFailed

OPENAI = "https://api.openai.com/v1"
RETRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # temporary errors
# Values of finish_reason, of OpenRouter, DeepSeek, Mistral, vLLM and SGLang among others: of answers that the server
# broke off by a fault of its own, which are no answers; and of those that a limit or a filter has cut.
BROKEN = frozenset({"error", "abort", "insufficient_system_resource"})
CUT = frozenset({"length", "model_length", "content_filter"})
MAX_BYTES = 8 << 20  # longest answer, in bytes
WORDS = 200  # most characters of a refusal in a message


class NoCompletion(ToolFailed):
  """No answer to a question. `status` is that of the final refusal, or 0 if retries or deadline are spent."""

  def __init__(self, message: str, status: int = 0):
    super().__init__(message)
    self.status = status


@dataclasses.dataclass(frozen=True)
class Completion:
  """The answer of a model.

  Attributes:
    reasoning: the model's reasoning if the server sends it separately; else "".
    cut: whether the answer was cut off before its end.
    stop: the stop string that ended it, if the server says so; else "". It is not part of the text.
    ended: whether the server says that a token ended it, such as EOS, and no stop string.
    tokens_in, tokens_out: the server's token counts of question and answer; None if it reports none.
    logprobs: (text in UTF-8, log-probability) of each token, if they were asked for; nan where the server has none, as
      for the first token of an echoed text.
  """

  content: str
  reasoning: str = ""
  cut: bool = False
  stop: str = ""
  ended: bool = False
  tokens_in: int | None = None
  tokens_out: int | None = None
  logprobs: Sequence[tuple[bytes, float]] = ()


class Client:
  """Asks one model. Threads may share a client.

  Args:
    endpoint: "https://host/v1"; empty for OpenAI's own. Credentials in it are never shown.
    key: the bearer token; "" for servers without keys. It is never shown.
    timeout_s: time limit of one call, from connecting to the last byte.
    deadline_s: time limit of all calls for one answer, including waits.
    backoff_s: wait before the first retry. It doubles with each retry, and varies by ±50 %. If the server's Retry-After
      is longer, the client waits that long.

  Raises:
    ValueError: the address is invalid, or the key cannot be sent in a header.
  """

  def __init__(
    self,
    endpoint: str,
    model: str,
    *,
    key: str = "",
    timeout_s: float = 600.0,
    deadline_s: float = 1800.0,
    retries: int = 5,
    backoff_s: float = 0.5,
  ):
    self.where = without_credentials(endpoint) or "OpenAI"
    try:
      host = httpx.URL(endpoint or OPENAI).host
    except httpx.InvalidURL as error:
      raise ValueError(f"{self.where!r} is not a valid address ({error}).") from None
    if not host or not (endpoint or OPENAI).startswith(("http://", "https://")):
      raise ValueError(
        f"{self.where!r}: an endpoint's address begins with http:// or https:// and mostly ends with /v1."
      )
    if not (key.isascii() and key.isprintable() and key == key.strip()):
      raise ValueError(f"the key for {self.where} contains an invalid character, such as a line break at its end.")
    self.model, self._timeout, self._deadline, self._retries = model, timeout_s, deadline_s, retries
    self._backoff, self._proxies = backoff_s, not http.is_loopback(host)
    self._url = (endpoint or OPENAI).rstrip("/")
    self._secret = lambda: key  # a function, so that a log of this object's fields does not show the key

  def ask(self, question: Sequence[Mapping[str, str]] | str | list[int], **sampling: Any) -> Completion:
    """The model's answer.

    Lost connections, time-outs, unreadable or BROKEN answers and a status in RETRY are retried. Any other refusal ends
    the question at once.

    Args:
      question: chat messages with role and content; or a text that the model continues, as such or as token ids.
      sampling: temperature, max_tokens, … under the server's names.

    Raises:
      NoCompletion: the server refused, or retries or deadline are spent. The message quotes the server.
    """
    payload, until = self.payload(question, **sampling), time.monotonic() + self._deadline
    why, calls, wait, status = "", 0, 0.0, 0
    while calls <= self._retries and status in RETRY | {0}:
      if calls:
        wait = max(wait, self._backoff * 2 ** (calls - 1) * random.uniform(0.5, 1.5))
        if time.monotonic() + wait >= until:
          why += f"; the deadline of {self._deadline:g} s is spent"
          break
        time.sleep(wait)
      calls += 1
      status, wait = 0, 0.0
      try:
        reply = self._call(payload, until)
      except http.CallFailed as error:
        why = f"{type(error).__name__}: {error}"
        continue
      if reply.status >= 300:
        status, wait = reply.status, reply.retry_after_s or 0.0
        why = f"status {status}: {self._words(reply.text)}"
      elif (completion := _read(reply.body)) is not None:
        return completion
      else:
        why = f"the server's reply is not a whole completion: {self._words(reply.text)}"
    raise NoCompletion(
      f"{self.model} at {self.where} gave no answer after {calls} call{'s' * (calls != 1)}: {why}",
      status if status not in RETRY else 0,
    )

  def payload(self, question: Sequence[Mapping[str, str]] | str | list[int], **sampling: Any) -> dict[str, Any]:
    """The body of the request for a question."""
    chat = not isinstance(question, str) and isinstance(question[0], Mapping)
    body: dict[str, Any] = {"messages": [*map(dict, question)]} if chat else {"prompt": question}
    return dict(model=self.model) | body | sampling

  def _call(self, payload: Mapping[str, Any], until: float) -> http.Reply:
    key = self._secret()
    return http.post_json(
      f"{self._url}/{'completions' if 'prompt' in payload else 'chat/completions'}",
      payload,
      deadline=min(until, time.monotonic() + self._timeout),
      max_bytes=MAX_BYTES,
      headers={"authorization": f"Bearer {key}"} if key else None,
      proxies=self._proxies,
    )

  def _words(self, text: str) -> str:
    """The server's text, shortened and escaped. It is cut where it quotes the key."""
    key = self._secret()
    shown = text.partition(key[:8])[0] if len(key) > 3 else text
    return repr(shown[:WORDS])


def daemon(function: Callable[..., Any], *arguments: Any, name: str = "chat") -> concurrent.futures.Future:
  """Calls the function on a daemon thread. At exit Python would wait for a pool's threads, also for one that hangs."""
  future: concurrent.futures.Future = concurrent.futures.Future()
  future.set_running_or_notify_cancel()

  def work() -> None:
    try:
      future.set_result(function(*arguments))
    except BaseException as error:  # noqa: BLE001 — raised where the result is asked for
      future.set_exception(error)

  try:
    threading.Thread(target=work, name=name, daemon=True).start()
  except RuntimeError as error:  # the system has no more threads; who waits for the result must know
    future.set_exception(error)
  return future


def _read(body: Any) -> Completion | None:
  """The first choice of a completion, of a chat or of a text; None if there is none, or only a BROKEN one."""
  choices = body.get("choices") if isinstance(body, dict) else None
  choice = choices[0] if isinstance(choices, list) and choices else None
  if not isinstance(choice, dict) or (why := str(choice.get("finish_reason"))) in BROKEN:
    return None
  message = choice.get("message")
  if not isinstance(message, dict):
    message = {"content": choice.get("text")}
  names = ("reasoning", "reasoning_content")  # vLLM's and OpenRouter's name; that of DeepSeek, SGLang and older vLLM
  content, said = message.get("content"), (message.get(name) for name in names)
  reasoning = next((text for text in said if isinstance(text, str) and text), "")
  if content is None and reasoning:  # cut off during its reasoning
    content = ""
  if not isinstance(content, str):
    return None
  # vLLM's name and SGLang's: a stop string, or the id of the token that ended the answer.
  stops = (choice.get(name) for name in ("stop_reason", "matched_stop"))
  stop, usage = next((stop for stop in stops if stop is not None), None), body.get("usage")
  counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
  tokens_in, tokens_out = (count if type(count) is int and count >= 0 else None for count in counts)
  return Completion(
    well_formed(content),
    well_formed(reasoning),
    why in CUT,
    stop if isinstance(stop, str) else "",
    type(stop) is int,
    tokens_in,
    tokens_out,
    _logprobs(choice.get("logprobs")),
  )


def _logprobs(said: Any) -> tuple[tuple[bytes, float], ...]:
  """(text in UTF-8, log-probability) of each token, as chats or texts have them; () if missing or unreadable."""
  if not isinstance(said, dict):
    return ()
  if isinstance(said.get("content"), list):
    # A token that is a part of a character has no text of its own, only bytes.
    pairs = [(_bytes(one) or one.get("token"), one.get("logprob")) for one in said["content"] if isinstance(one, dict)]
  else:
    tokens, values = said.get("tokens"), said.get("token_logprobs")
    pairs = [*zip(tokens, values)] if isinstance(tokens, list) and isinstance(values, list) else []
    pairs = [(token, math.nan if value is None else value) for token, value in pairs]
  if not all(isinstance(token, str | bytes) and isinstance(value, int | float) for token, value in pairs):
    return ()
  encoded = lambda token: token if isinstance(token, bytes) else well_formed(token).encode()
  return tuple((encoded(token), float(value)) for token, value in pairs)


def _bytes(token: dict[str, Any]) -> bytes | None:
  """The bytes of a chat's token; None if it has none."""
  values = token.get("bytes")
  is_valid = isinstance(values, list) and all(type(value) is int and 0 <= value < 256 for value in values)
  return bytes(values) if is_valid else None


SETTINGS = frozenset({401, 404})  # a wrong key, address or model: the server would refuse every question
DEAD = 32  # failures before the first answer, after which the server counts as down


class Chat(Protocol):
  """The interface of a chat model, as teachers use it."""

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Completion:
    """The answer. Raises ToolFailed if there is none in time."""


class CachedClient:
  """Asks a model and stores its answers, with their questions, by question, model and sampling."""

  def __init__(
    self,
    client: Client,
    answers: str | os.PathLike,
    *,
    sampling: Mapping[str, Any] | None = None,
    setting: str = "--answers",
  ):
    self.sampling = dict(sampling or {})
    self._client, self._answers = client, disk_cache.Cache(answers, setting)
    self._failures, self._heard = 0, False  # _heard: whether any question has been answered

  async def ask(
    self, question: Sequence[Mapping[str, str]] | str, *, draw: Sequence[int] = (), **sampling: Any
  ) -> Completion:
    """The answer, from disk if it is stored there.

    Args:
      draw: numbers that distinguish several random answers to the same question; they are not sent.
      sampling: in addition to the client's.

    Raises:
      NoCompletion: see `Client.ask`. It is a ToolFailed, and is not stored.
      ConnectionError: instead of NoCompletion before the first answer, for a status in SETTINGS or after DEAD failures.
        The job should stop, since no question would be answered.
    """
    sampling = self.sampling | sampling
    key_fields = self._client.payload(question, **sampling) | ({"draw": list(draw)} if draw else {})
    key = disk_cache.key(key_fields)
    stored = self._answers.get([key])
    if not stored:
      try:
        reply = await asyncio.wrap_future(daemon(lambda: self._client.ask(question, **sampling)))
      except NoCompletion as failure:
        self._failures += 1
        if not self._heard and (failure.status in SETTINGS or self._failures >= DEAD):
          raise ConnectionError(
            f"{failure}. Check the address, the model and the key, and that the server is running."
          ) from failure
        raise
      stored = self._answers.add({key: dict(question=key_fields, reply=_stored(reply))})
    self._heard = True
    return _restored(stored[key]["reply"])


def _stored(reply: Completion) -> dict[str, Any]:
  """The reply as JSON: the tokens' bytes in hexadecimal."""
  return dataclasses.asdict(reply) | dict(logprobs=[(token.hex(), value) for token, value in reply.logprobs])


def _restored(fields: dict[str, Any]) -> Completion:
  logprobs = tuple((bytes.fromhex(token), value) for token, value in fields["logprobs"])
  return Completion(**fields | dict(logprobs=logprobs))
