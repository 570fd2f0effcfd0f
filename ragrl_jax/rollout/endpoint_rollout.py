"""Plays episodes with a model behind a server: a `collect.Rollout` whose engine never has anything to sample."""

import asyncio
import dataclasses
import types
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.engine.lanes import Counters
from ragrl_jax.rollout import collect, conversation
from ragrl_jax.rollout.collect import OnEpisode, Play, Request
from ragrl_jax.rollout.endpoint_client import CHAT, EndpointClient, NamedStops, Server
from ragrl_jax.structs import Episode

USAGE = "usage"  # the fact with an episode's calls and tokens


@dataclasses.dataclass(frozen=True)
class _Elsewhere:
  """Takes the place of the engine: the server samples."""

  tokenizer: Any
  stops: NamedStops
  context: int
  busy, version = False, 0

  def check(self) -> None:
    pass

  reset = check

  def restart_counters(self) -> Counters:
    return Counters()


class _Session(collect.Session):
  """Gives every episode a client of its own, which counts its calls."""

  def __init__(self, rollout: "EndpointRollout", sampling: structs.Sampling, on_episode: OnEpisode | None):
    super().__init__(rollout, sampling, on_episode)
    # The gate limits calls and not episodes, so that an episode that searches does not block a call.
    self._server, self._gate = rollout.server, asyncio.Semaphore(rollout.server.concurrency)

  async def _episode(self, request, group, step, client=None):
    client = EndpointClient(self._server, self.client.tokenizer, self.client.stops, self._gate)
    episode = await super()._episode(request, group, step, client)
    return dataclasses.replace(episode, facts={**episode.facts, USAGE: dataclasses.asdict(client.usage)})


class EndpointRollout(collect.Rollout):
  """A Rollout with a server's model. The fact `usage` of an episode has its calls and tokens.

  Args:
    tokenizer: of the conversations; a MarkedTokenizer for chats.
    play, tools, more: as for `collect.Rollout`.
  """

  def __init__(
    self, server: Server, tokenizer: Any, stops: Sequence[str], play: Play, tools: structs.Tools, **more: Any
  ):
    engine: Any = _Elsewhere(tokenizer, NamedStops(stops), server.context)
    super().__init__(engine, play, tools, **more)
    self.server = server
    if server.protocol == CHAT:  # the environment's texts are messages of the user
      encoder = types.SimpleNamespace(encode=tokenizer.answered, render=tokenizer.render)
      self._texts = conversation.TextCache(encoder)

  def _opened(self, sampling: structs.Sampling, on_episode: OnEpisode | None) -> collect.Session:
    return _Session(self, sampling, on_episode)

  def stream(
    self, groups: Iterable[Sequence[Request]], *, step: int, at_once: int, greedy: bool = False
  ) -> Generator[Episode, None, None]:
    """See `collect.Rollout.stream`. It also raises ConnectionError, if the server refuses every question."""
    try:
      yield from super().stream(groups, step=step, at_once=at_once, greedy=greedy)
    finally:
      self.close()
