"""A chat model whose answers are stored on disk, so that each question is asked only once, also across processes."""

import asyncio
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.chat import client as client_lib
from ragrl_jax.chat.client import Completion
from ragrl_jax.store import disk_cache

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
    client: client_lib.Client,
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
      client.NoCompletion: see `Client.ask`. It is a ToolFailed, and is not stored.
      ConnectionError: instead of NoCompletion before the first answer, for a status in SETTINGS or after DEAD failures.
        The job should stop, since no question would be answered.
    """
    sampling = self.sampling | sampling
    named = self._client.payload(question, **sampling) | ({"draw": list(draw)} if draw else {})
    key = disk_cache.key(named)
    known = self._answers.get([key])
    if not known:
      try:
        reply = await asyncio.wrap_future(client_lib.daemon(lambda: self._client.ask(question, **sampling)))
      except client_lib.NoCompletion as failure:
        self._failures += 1
        if not self._heard and (failure.status in SETTINGS or self._failures >= DEAD):
          raise ConnectionError(
            f"{failure}. Check the address, the model and the key, and that the server is running."
          ) from failure
        raise
      known = self._answers.add({key: dict(question=named, reply=_written(reply))})
    self._heard = True
    return _read(known[key]["reply"])


def _written(reply: Completion) -> dict[str, Any]:
  """The reply as JSON: the tokens' bytes in hexadecimal."""
  return dataclasses.asdict(reply) | dict(logprobs=[(token.hex(), value) for token, value in reply.logprobs])


def _read(fields: dict[str, Any]) -> Completion:
  logprobs = tuple((bytes.fromhex(token), value) for token, value in fields["logprobs"])
  return Completion(**fields | dict(logprobs=logprobs))
