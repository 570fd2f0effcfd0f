"""A language model behind HTTP as the judge: any server of OpenAI's chat protocol."""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import openai

from ragrl_jax.judging import api, prompts

RETRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # what may pass; other refusals will be the same again


class LLM:
  """Asks a chat model about each pair at temperature 0, as many at a time as `concurrency` says.

  An answer that cannot be read is None and is not asked for again: it would be the same. A server that is down, too
  slow or unwilling is asked again, with back-off, until retries or the deadline (timeout_s for every allowed call) are
  spent; then the pair fails (`api.JudgeFailed`).

  Args:
    endpoint: "https://host/v1"; empty is OpenAI's own.
    model: its name there.
    prompt: one of `prompts.PROMPTS`.
    key_variable: the environment variable that holds the key; a server without keys needs none. The key is nowhere
      stored or written.
    timeout_s: of one call.
    retries: further calls after a failed one.
    concurrency: calls at the same time.
    backoff_s: wait before the first retry; it doubles with each, and is spread by ±50 %.

  Raises:
    ValueError: no model, no key for OpenAI's own endpoint, or a setting out of range.
  """

  def __init__(self, *, model: str, prompt: str, endpoint: str = "", key_variable: str = "OPENAI_API_KEY",
               timeout_s: float = 30.0, retries: int = 3, concurrency: int = 16, backoff_s: float = 0.5):
    if not model:
      raise ValueError("config.judge.model is empty: name the model that the judge's server is to use.")
    if endpoint and not endpoint.startswith(("http://", "https://")):
      raise ValueError(f"config.judge.endpoint={endpoint!r}: it must begin with http:// or https://.")
    if timeout_s <= 0 or retries < 0 or concurrency < 1:
      raise ValueError(f"timeout_s={timeout_s}, retries={retries}, concurrency={concurrency}: time and concurrency "
                       "must be positive, retries 0 or more (config.judge).")
    key = os.environ.get(key_variable, "") if key_variable else ""
    if not key and not endpoint:
      raise ValueError(f"the environment variable {key_variable!r} holds no key (config.judge.key_variable), and "
                       "without config.judge.endpoint the judge is OpenAI's, which wants one.")
    self._prompt, self._name, self._model = prompts.get(prompt), prompt, model
    self._endpoint, self._timeout, self._retries, self._backoff = endpoint, timeout_s, retries, backoff_s
    self._deadline = timeout_s * (retries + 1)
    self.pace = api.Pace(batch=1, workers=concurrency, deadline_s=self._deadline + timeout_s)
    self._client = openai.OpenAI(api_key=key or "none", base_url=endpoint or None, max_retries=0)
    self._pool = concurrent.futures.ThreadPoolExecutor(concurrency, thread_name_prefix="judge")

  def describe(self) -> dict[str, Any]:
    return dict(kind="llm", model=self._model, endpoint=self._endpoint, prompt=self._name,
                wording=self._prompt.mark)

  def judge(self, pairs: Sequence[api.Pair]) -> api.Verdicts:
    """See `api.Judge`."""
    return api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[api.Pair]) -> api.Verdicts:
    calls = {pair: self._pool.submit(self._ask, *pair) for pair in pairs}
    concurrent.futures.wait(calls.values())
    failed = {pair: call.exception() for pair, call in calls.items() if call.exception() is not None}
    if not failed:
      return [call.result() for call in calls.values()]
    first = next(iter(failed.values()))
    if bug := next((error for error in failed.values() if not isinstance(error, _Failed)), None):
      raise bug
    answered = {pair: call.result() for pair, call in calls.items() if pair not in failed}
    raise api.JudgeFailed(f"no verdict on {len(failed)} of {len(pairs)} pairs: {first}", list(failed), answered)

  def _ask(self, premise: str, claim: str) -> float | None:
    messages, until = self._prompt.messages(premise, claim), time.monotonic() + self._deadline
    why, calls, wait = "", 0, 0.0
    for attempt in range(self._retries + 1):
      if attempt:
        wait = max(wait, self._backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        if time.monotonic() + wait >= until:
          why += f"; the deadline of {self._deadline:g} s is spent"
          break
        time.sleep(wait)
      calls += 1
      try:
        return self._prompt.read(self._call(messages, until))
      except openai.APIStatusError as error:
        why, wait = f"status {error.status_code}: {str(error)[:300]}", _asked_to_wait(error)
        if error.status_code not in RETRY:
          break
      except (openai.APIConnectionError, openai.APIResponseValidationError, _Unreadable, json.JSONDecodeError) as error:
        why, wait = f"{type(error).__name__}: {error}", 0.0
    where = self._endpoint or "OpenAI"
    raise _Failed(f"the judge {self._model} at {where} gave no answer after {calls} calls: {why}. See that it "
                  "answers, or change config.judge.")

  def _call(self, messages: prompts.Messages, until: float) -> str:
    timeout = max(min(self._timeout, until - time.monotonic()), 0.001)
    reply = self._client.chat.completions.create(model=self._model, messages=messages, temperature=0.0, timeout=timeout)
    # The library checks nothing of what a server sends.
    choices = getattr(reply, "choices", None)
    message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    if not isinstance(getattr(message, "content", None), str):
      raise _Unreadable(f"the server's reply is no chat completion: {str(reply)[:200]!r}")
    return message.content


class _Failed(Exception):
  """A pair's calls are spent."""


class _Unreadable(Exception):
  """A reply without a message."""


def _asked_to_wait(error: openai.APIStatusError) -> float:
  """Seconds of the Retry-After header; 0 without one, or for a date."""
  said = error.response.headers.get("retry-after", "")
  return float(said) if said.replace(".", "", 1).isdigit() else 0.0

