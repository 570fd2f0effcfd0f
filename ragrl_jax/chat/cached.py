"""A chat model whose answers are kept on disk: each question is asked once, in this process and in later ones."""

import asyncio
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.chat import client as client_lib
from ragrl_jax.chat.client import Completion
from ragrl_jax.store import jsonl

SETTINGS = frozenset({401, 404})  # a wrong key, address or model: every question would be refused
DEAD = 32  # failures before the first answer: nobody is there


class Chat(Protocol):
  """A chat model: what teachers need of a client."""

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Completion:
    """Raises ToolFailed when there is no answer in time."""


class CachedClient:
  """Asks a model, and keeps its answers: a file each, named by the question, the model and the sampling.

  Args:
    client: asks the model.
    folder: of the answers.
    sampling: temperature, max_tokens, … as the server names them.
  """

  def __init__(
    self, client: client_lib.Client, folder: str | pathlib.Path, *, sampling: Mapping[str, Any] | None = None
  ):
    self.folder, self.sampling = pathlib.Path(folder), dict(sampling or {})
    self._client, self._failures, self._heard = client, 0, False  # _heard: whether there was an answer

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Completion:
    """The answer, from disk if it is there.

    Raises:
      client.NoCompletion: see `Client.ask`. It is a ToolFailed, and is not kept.
      ConnectionError: the same before any answer, for a status of SETTINGS or at failure number DEAD. The job should
        stop: no other question would be answered.
    """
    question = dict(model=self._client.model, messages=[dict(message) for message in messages], **self.sampling)
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    path = self.folder / name[:2] / f"{name}.json"
    if path.exists():
      self._heard = True
      return Completion(**json.loads(path.read_text(encoding="utf-8"))["reply"])
    try:
      reply = await asyncio.wrap_future(
        client_lib.daemon(lambda: self._client.ask(question["messages"], **self.sampling))
      )
    except client_lib.NoCompletion as failure:
      self._failures += 1
      if not self._heard and (failure.status in SETTINGS or self._failures >= DEAD):
        raise ConnectionError(
          f"{failure}. See that address, model and key are right and that the server is up."
        ) from failure
      raise
    self._heard = True
    with jsonl.whole(path) as part:
      part.write_text(json.dumps(dict(question=question, reply=dataclasses.asdict(reply))), encoding="utf-8")
    return reply
