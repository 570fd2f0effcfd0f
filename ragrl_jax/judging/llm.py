"""A language model behind HTTP as the judge: any server of OpenAI's chat protocol."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat import completions
from ragrl_jax.judging import api, prompts


class LLM:
  """Asks a chat model about each pair at temperature 0, as many at a time as `concurrency` says.

  An answer that cannot be read is None and is not asked for again: it would be the same; the first such is logged. A
  server that is down, too slow or unwilling is asked again, with back-off, until retries or the deadline (timeout_s for
  every allowed call) are spent; then the pair fails (`api.JudgeFailed`). A refusal that would be the same again (401,
  403, 404, …) fails it at once.

  Args:
    endpoint: "https://host/v1"; empty is OpenAI's own. Credentials in it are shown nowhere.
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

  def __init__(
    self,
    *,
    model: str,
    prompt: str,
    endpoint: str = "",
    key_variable: str = "OPENAI_API_KEY",
    timeout_s: float = 30.0,
    retries: int = 3,
    concurrency: int = 16,
    backoff_s: float = 0.5,
  ):
    if not model:
      raise ValueError("config.judge.model is empty: name the model that the judge's server is to use.")
    if timeout_s <= 0 or retries < 0 or concurrency < 1:
      raise ValueError(
        f"timeout_s={timeout_s}, retries={retries}, concurrency={concurrency}: time and concurrency "
        "must be positive, retries 0 or more (config.judge)."
      )
    key = os.environ.get(key_variable, "") if key_variable else ""
    if not key and not endpoint:
      raise ValueError(
        f"the environment variable {key_variable!r} holds no key (config.judge.key_variable), and "
        "without config.judge.endpoint the judge is OpenAI's, which wants one."
      )
    deadline_s = timeout_s * (retries + 1)
    try:
      self._client = completions.Completions(
        endpoint, model, key=key, timeout_s=timeout_s, deadline_s=deadline_s, retries=retries, backoff_s=backoff_s
      )
    except ValueError as error:
      raise ValueError(f"{error} (config.judge.endpoint, config.judge.key_variable)") from None
    self._prompt, self._name, self._at_once = prompts.get(prompt), prompt, concurrency
    self._gate, self._said_unread = threading.Semaphore(concurrency), False
    self.pace = api.Pace(batch=1, workers=concurrency, deadline_s=deadline_s + timeout_s)

  def describe(self) -> dict[str, Any]:
    """What stands beside every verdict: model, endpoint, prompt, and the digest of its wording."""
    where = "" if self._client.where == "OpenAI" else self._client.where
    return dict(kind="llm", model=self._client.model, endpoint=where, prompt=self._name, wording=self._prompt.mark)

  def judge(self, pairs: Sequence[api.Pair]) -> api.Verdicts:
    """See `api.Judge`."""
    return api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[api.Pair]) -> api.Verdicts:
    waiting: queue.SimpleQueue[api.Pair] = queue.SimpleQueue()
    answered: dict[api.Pair, float | None] = {}
    failed: dict[api.Pair, completions.NoCompletion] = {}
    for pair in pairs:
      waiting.put(pair)

    def work() -> None:
      while True:
        try:
          pair = waiting.get_nowait()
        except queue.Empty:
          return
        try:
          with self._gate:
            answered[pair] = self._ask(*pair)
        except completions.NoCompletion as error:
          failed[pair] = error

    for worker in [completions.daemon(work) for _ in pairs[: self._at_once]]:
      worker.result()
    if failed:
      raise api.JudgeFailed(
        f"no verdict on {len(failed)} of {len(pairs)} pairs: the judge {next(iter(failed.values()))}. See that it "
        "answers, or change config.judge.",
        [pair for pair in pairs if pair in failed],
        answered,
      )
    return [answered[pair] for pair in pairs]

  def _ask(self, premise: str, claim: str) -> float | None:
    said = self._client.ask(self._prompt.messages(premise, claim), temperature=0.0)
    verdict = None if said.cut else self._prompt.read(said.content)
    if verdict is None and not self._said_unread:
      self._said_unread = True
      logging.warning(
        "the judge %s at %s gave an answer that is no verdict%s: %r. The pair has none; the next such "
        "answers are not shown.",
        self._client.model,
        self._client.where,
        " (it was cut off)" if said.cut else "",
        said.content[:200],
      )
    return verdict
