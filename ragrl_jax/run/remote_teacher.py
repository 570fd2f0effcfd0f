"""A teacher behind an OpenAI-compatible server: it returns the log-probabilities of given ids, and nothing else.

The request is vLLM's and SGLang's for a text of token ids that is echoed: POST /v1/completions with "echo" and
"logprobs". The ids' log-probabilities are at temperature 1.
"""

import concurrent.futures
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ragrl_jax.chat import client
from ragrl_jax.settings.learning import Teacher

AT_ONCE = 16  # calls
PROBE = "Who wrote it? I must search for that, and then answer: Ann, in 1999."


class RemoteTeacher:
  """Scores token ids.

  Args:
    how: config.loss.teacher.
    tokenizer: the policy's, compared with the server's by the texts of a few tokens.

  Raises:
    ValueError: the address is invalid, or the server's tokens have other texts.
    NoCompletion: the server gives no answer.
  """

  def __init__(self, how: Teacher, tokenizer: Any):
    key = os.environ.get(how.key_variable, "") if how.key_variable else ""
    self._client = client.Client(how.path, how.model, key=key)
    ids = tokenizer.encode(PROBE)
    texts = [token for token, _ in self._asked(ids)]
    if b"".join(texts[: len(ids)]).strip() != PROBE.encode():
      raise ValueError(
        f"config.loss.teacher.path: {self._client.where} reads the policy's ids of {PROBE!r} as "
        f"{b''.join(texts[: len(ids)])!r}: a teacher must have the policy's tokenizer. Serve a model of its family."
      )

  def scores(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """For each text the log-probability of each of its ids, float32; 0 for the first one.

    Raises:
      NoCompletion: the server gives no answer, or one without log-probabilities of the ids.
    """
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
      return [np.asarray([0.0, *(x for _, x in one[1:])], np.float32) for one in pool.map(self._asked, texts)]

  def _asked(self, ids: Sequence[int]) -> list[tuple[bytes, float]]:
    ids = [int(i) for i in ids]
    reply = self._client.ask(ids, max_tokens=1, temperature=1.0, echo=True, logprobs=1)
    said = list(reply.logprobs)[: len(ids)]
    if len(said) < len(ids) or not all(math.isfinite(value) for _, value in said[1:]):
      raise client.NoCompletion(
        f"{self._client.model} at {self._client.where} sent {len(said)} log-probabilities for {len(ids)} ids: a "
        "teacher's server must score a given text (echo with logprobs, as vLLM and SGLang do). Or name a folder in "
        "config.loss.teacher.path."
      )
    return said
