"""A language model as the judge, behind any server of OpenAI's chat protocol."""

import logging
import os
import threading
from typing import Any

from ragrl_jax.chat import client
from ragrl_jax.judging import judge_api, prompts


class LLM(judge_api.OfPairs):
  """Asks a chat model about each pair at temperature 0, up to `concurrency` pairs at a time.

  An answer without a verdict gives None. The question is not repeated, since the answer would be the same. The first
  such answer is logged. A failed call is repeated (see `chat.client.Client`) until retries or the deadline (timeout_s
  for every allowed call) are spent. Then the pair fails (`judge_api.JudgeFailed`).

  Args:
    prompt, wording: see `prompts.get`.
    key_variable: the environment variable that holds the key; "" for servers without keys. The key is never stored.
    timeout_s, retries, backoff_s: see `chat.client.Client`.

  Raises:
    ValueError: there is no model, or no key for OpenAI's own endpoint.
  """

  def __init__(
    self,
    *,
    model: str,
    prompt: str,
    wording: str = "",
    endpoint: str = "",
    key_variable: str = "OPENAI_API_KEY",
    timeout_s: float = 30.0,
    retries: int = 3,
    concurrency: int = 16,
    backoff_s: float = 0.5,
  ):
    if not model:
      raise ValueError("config.judge.model is empty: name the model that the judge's server is to use.")
    key = os.environ.get(key_variable, "") if key_variable else ""
    if not key and not endpoint:
      raise ValueError(
        f"the environment variable {key_variable!r} holds no key (config.judge.key_variable), and "
        "without config.judge.endpoint the judge is OpenAI's server, which requires one."
      )
    deadline_s = timeout_s * (retries + 1)
    try:
      self._client = client.Client(
        endpoint, model, key=key, timeout_s=timeout_s, deadline_s=deadline_s, retries=retries, backoff_s=backoff_s
      )
    except ValueError as error:
      raise ValueError(f"{error} (config.judge.endpoint, config.judge.key_variable)") from None
    self._prompt, self._name, self._at_once = prompts.get(prompt, wording), prompt, concurrency
    self._gate, self._said_unread = threading.Semaphore(concurrency), False
    self.pace = judge_api.Pace(batch=1, workers=concurrency, deadline_s=deadline_s + timeout_s)

  def describe(self) -> dict[str, Any]:
    where = "" if self._client.where == "OpenAI" else self._client.where
    return dict(kind="llm", model=self._client.model, endpoint=where, prompt=self._name, wording=self._prompt.mark)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    answered: dict[judge_api.Pair, float | None] = {}
    failed: dict[judge_api.Pair, client.NoCompletion] = {}
    waiting = iter(pairs)  # each thread takes the next pair

    def work() -> None:
      for pair in waiting:
        try:
          with self._gate:
            answered[pair] = self._ask(*pair)
        except client.NoCompletion as error:
          failed[pair] = error

    for worker in [client.daemon(work) for _ in pairs[: self._at_once]]:
      worker.result()
    if failed:
      raise judge_api.JudgeFailed(
        f"no verdict on {len(failed)} of {len(pairs)} pairs: the judge {next(iter(failed.values()))}. Check that it "
        "answers, or change config.judge.",
        [pair for pair in pairs if pair in failed],
        answered,
      )
    return [answered[pair] for pair in pairs]

  def _ask(self, premise: str, claim: str) -> float | None:
    reply = self._client.ask(self._prompt.messages(premise, claim), temperature=0.0)
    verdict = None if reply.cut else self._prompt.read(reply.content)
    if verdict is None and not self._said_unread:
      self._said_unread = True
      cut = " (it was cut off)" if reply.cut else ""
      logging.warning(
        "the judge %s at %s gave an answer without a verdict%s: %r. The pair gets no verdict. Further such answers are "
        "not logged.", self._client.model, self._client.where, cut, reply.content[:200],
      )  # fmt: skip
    return verdict
