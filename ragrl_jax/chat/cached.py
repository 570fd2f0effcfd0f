"""A chat model whose answers are stored on disk, so that each question is asked only once, also across processes."""

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

SETTINGS = frozenset({401, 404})  # a wrong key, address or model: the server would refuse every question
DEAD = 32  # failures before the first answer, after which the server counts as down


class Chat(Protocol):
  """The interface of a chat model, as teachers use it."""

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Completion:
    """The answer. Raises ToolFailed if there is none in time."""


class CachedClient:
  """Asks a model and stores its answers, one file each. The name is a hash of question, model and sampling.

  Args:
    client: asks the model.
    folder: for the answers.
    sampling: temperature, max_tokens, … under the server's names.
  """

  def __init__(
    self, client: client_lib.Client, folder: str | pathlib.Path, *, sampling: Mapping[str, Any] | None = None
  ):
    self.folder, self.sampling = pathlib.Path(folder), dict(sampling or {})
    self._client, self._failures, self._heard = client, 0, False  # _heard: whether any question has been answered

  async def ask(
    self, question: Sequence[Mapping[str, str]] | str, *, draw: Sequence[int] = (), **sampling: Any
  ) -> Completion:
    """The answer, from disk if it is stored there.

    Args:
      question: see `Client.ask`.
      draw: numbers that distinguish several random answers to the same question; they are not sent.
      sampling: in addition to the client's.

    Raises:
      client.NoCompletion: see `Client.ask`. It is a ToolFailed, and is not stored.
      ConnectionError: instead of NoCompletion before the first answer, for a status in SETTINGS or after DEAD failures.
        The job should stop, since no question would be answered.
    """
    sampling = self.sampling | sampling
    asked = self._client.payload(question, **sampling)
    named = asked | ({"draw": list(draw)} if draw else {})
    name = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    path = self.folder / name[:2] / f"{name}.json"
    if path.exists():
      self._heard = True
      return _read(json.loads(path.read_text(encoding="utf-8"))["reply"])
    try:
      reply = await asyncio.wrap_future(client_lib.daemon(lambda: self._client.ask(question, **sampling)))
    except client_lib.NoCompletion as failure:
      self._failures += 1
      if not self._heard and (failure.status in SETTINGS or self._failures >= DEAD):
        raise ConnectionError(
          f"{failure}. Check the address, the model and the key, and that the server is running."
        ) from failure
      raise
    self._heard = True
    with jsonl.whole(path) as part:
      part.write_text(json.dumps(dict(question=named, reply=_written(reply))), encoding="utf-8")
    return reply


def _written(reply: Completion) -> dict[str, Any]:
  """The reply as JSON: the tokens' bytes in hexadecimal."""
  said = {name: value for name, value in dataclasses.asdict(reply).items() if name != "logprobs"}
  return said | dict(token_logprobs=[(token.hex(), value) for token, value in reply.logprobs])


def _read(said: dict[str, Any]) -> Completion:
  tokens = said.pop("token_logprobs", None)
  if tokens is None:  # an older file, whose tokens are texts
    tokens = [(token.encode().hex(), value) for token, value in said.pop("logprobs", ())]
  return Completion(**said | dict(logprobs=tuple((bytes.fromhex(token), value) for token, value in tokens)))
