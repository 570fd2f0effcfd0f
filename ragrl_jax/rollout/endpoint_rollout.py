"""Plays episodes with a model behind a server. One thread runs the coroutines, the caller's dispatches JAX programs."""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.rollout import conversation
from ragrl_jax.rollout.collect import Play, Request, played
from ragrl_jax.rollout.dispatch import Dispatch
from ragrl_jax.rollout.endpoint_client import CHAT, EndpointClient, NamedStops, Server
from ragrl_jax.rollout.tools import EpisodeTools
from ragrl_jax.structs import Episode

USAGE = "usage"  # the fact with an episode's calls and tokens


class _Answering:
  """Encodes the environment's texts in a chat as user messages."""

  def __init__(self, tokenizer: MarkedTokenizer):
    self.encode, self.render = tokenizer.answered, tokenizer.render


class EndpointRollout:
  """Has the method `stream` of `collect.Rollout`. The fact `usage` of an episode has its calls and tokens.

  Args:
    server: the model.
    tokenizer: of the conversations; a MarkedTokenizer for chats.
    stops: all stop strings of the recipe.
    play, tools, seed, sampling, reserve, dispatch: as for `collect.Rollout`.
  """

  def __init__(
    self,
    server: Server,
    tokenizer: Any,
    stops: Sequence[str],
    play: Play,
    tools: structs.Tools,
    *,
    seed: int,
    sampling: structs.Sampling,
    reserve: int | None,
    dispatch: Dispatch,
  ):
    self.server, self.tokenizer, self.play, self.tools = server, tokenizer, play, tools
    self.seed, self.sampling, self.dispatch = seed, sampling, dispatch
    self.reserve = sampling.max_new_tokens if reserve is None else reserve
    if self.reserve >= server.context:
      raise ValueError(
        f"a turn of {self.reserve} tokens does not fit into a context of {server.context}: raise "
        "config.rollout.context, or lower config.rollout.max_new_tokens or reserve."
      )
    self._stops = NamedStops(stops)
    self._texts = conversation.TextCache(_Answering(tokenizer) if server.protocol == CHAT else tokenizer)

  def stream(
    self, groups: Iterable[Sequence[Request]], *, step: int, at_once: int, greedy: bool = False
  ) -> Iterator[Episode]:
    """Plays many requests, a few at a time, and yields each episode as soon as it has ended.

    Args:
      groups, step, at_once, greedy: as for `collect.Rollout.stream`.

    Raises:
      Errors of `play`; ConnectionError if the server refuses every question. A ToolFailed only ends its own episode.
      Close the iterator if you leave it early; the episodes that are being played are cancelled.
    """
    sampling = dataclasses.replace(self.sampling, temperature=0.0) if greedy else self.sampling
    # The gate limits calls and not episodes, so that an episode that searches does not block a call.
    gate = asyncio.Semaphore(self.server.concurrency)
    left, playing = iter(groups), 0
    ended: collections.deque[concurrent.futures.Future[Episode]] = collections.deque()
    # Encoders, on-device indexes and judges of this process run here, on the caller's thread.
    with self.dispatch.serving(), _event_loop() as loop:
      while True:
        while playing < at_once and (group := next(left, ())):
          for request in group:
            episode = asyncio.run_coroutine_threadsafe(self._episode(request, sampling, step, gate), loop)
            # The callback runs on the loop's thread. The queue carries the episode to the caller's thread.
            episode.add_done_callback(lambda done: self.dispatch.post(ended.append, done))
          playing += len(group)
        if not playing:
          return
        while not ended:
          # The end of an episode is a call in this queue, so it ends the wait.
          self.dispatch.serve(wait_s=60.0)
        while ended:
          playing -= 1
          yield ended.popleft().result()

  async def _episode(self, request: Request, sampling: structs.Sampling, step: int, gate: asyncio.Semaphore) -> Episode:
    client = EndpointClient(self.server, self.tokenizer, self._stops, gate)
    policy = conversation.Policy(
      client,
      self._texts,
      keys=(self.seed, step, request.prompt_index, request.sample),
      sampling=sampling,
      group=None,
      reserve=self.reserve,
      example_id=request.example.id,
    )
    episode = await played(self.play, request, policy, EpisodeTools(self.tools))
    return dataclasses.replace(episode, facts={**episode.facts, USAGE: dataclasses.asdict(client.usage)})


@contextlib.contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
  """An event loop in a separate thread. The end of the block cancels its remaining tasks."""
  loop = asyncio.new_event_loop()
  thread = threading.Thread(target=loop.run_forever, name="episodes", daemon=True)
  thread.start()
  try:
    yield loop
  finally:
    asyncio.run_coroutine_threadsafe(_cancelled(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _cancelled() -> None:
  tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
  for task in tasks:
    task.cancel()
  await asyncio.gather(*tasks, return_exceptions=True)
