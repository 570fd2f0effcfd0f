"""Plays episodes with a model behind a server. One thread runs the coroutines; the caller's serves the accelerator."""

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.rollout import conversation
from ragrl_jax.rollout.collect import Play, Request
from ragrl_jax.rollout.dispatch import Dispatch
from ragrl_jax.rollout.endpoint_client import CHAT, EndpointClient, NamedStops, Server
from ragrl_jax.rollout.timed_tools import EpisodeTools
from ragrl_jax.structs import Episode

USAGE = "usage"  # the fact with an episode's calls and tokens


class _Answering:
  """For the texts that the environment adds to a chat: each is a user's message."""

  def __init__(self, tokenizer: MarkedTokenizer):
    self.encode, self.render = tokenizer.answered, tokenizer.render


class EndpointRollout:
  """See `collect.Rollout`, whose `run` this one has. An episode's fact `usage` says what it asked of the server.

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

  def run(self, requests: Sequence[Request], *, step: int, greedy: bool = False) -> list[Episode]:
    """Plays every request and returns the episodes in the requests' order.

    Raises:
      Errors of `play`; ConnectionError if the server refuses every question. A ToolFailed only ends its own episode.
    """
    sampling = dataclasses.replace(self.sampling, temperature=0.0) if greedy else self.sampling
    # A loop for each call: it ends with the thread, and nothing of a failed run is left on it.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="episodes", daemon=True)
    thread.start()
    playing = asyncio.run_coroutine_threadsafe(self._all(requests, sampling, step), loop)
    playing.add_done_callback(lambda _: self.dispatch.post(_awake))
    try:
      # Encoders, on-device indexes and judges of this process run here, on the caller's thread.
      with self.dispatch.serving():
        while not playing.done():
          self.dispatch.serve(wait_s=60.0)
      return playing.result()
    finally:
      playing.cancel()
      asyncio.run_coroutine_threadsafe(_cancelled(), loop).result()
      loop.call_soon_threadsafe(loop.stop)
      thread.join()
      loop.close()

  async def _all(self, requests: Sequence[Request], sampling: structs.Sampling, step: int) -> list[Episode]:
    # All episodes begin at once, and their calls wait here: a search keeps no place that a call could use.
    gate = asyncio.Semaphore(self.server.concurrency)
    tasks = [asyncio.ensure_future(self._episode(request, sampling, step, gate)) for request in requests]
    return await asyncio.gather(*tasks)

  async def _episode(self, request: Request, sampling: structs.Sampling, step: int, gate: asyncio.Semaphore) -> Episode:
    client = EndpointClient(self.server, self.tokenizer, self._stops, gate)
    policy = conversation.Policy(
      client,  # pyright: ignore[reportArgumentType]  # it has what an EngineClient has
      self._texts,
      keys=(self.seed, step, request.prompt_index, request.sample),
      sampling=sampling,
      group=None,
      reserve=self.reserve,
      example_id=request.example.id,
    )
    tools: Any = EpisodeTools(self.tools)
    try:
      episode = await self.play(request.example, policy, tools)
    except structs.ToolFailed as failure:  # the only exception that ends an episode and not the run
      episode = policy.failed(str(failure) or type(failure).__name__)
    finally:
      policy.close()
    facts = {**episode.facts, USAGE: dataclasses.asdict(client.usage)}
    if tools.no_verdict:
      facts[structs.NO_VERDICT] = tools.no_verdict
    # A play may construct an Episode itself, without these numbers.
    numbers: dict[str, Any] = dict(prompt_index=request.prompt_index, sample=request.sample)
    return dataclasses.replace(episode, facts=facts, example_id=request.example.id, **numbers)


async def _cancelled() -> None:
  """Ends what is left on the event loop after an error or an interruption."""
  tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
  for task in tasks:
    task.cancel()
  await asyncio.gather(*tasks, return_exceptions=True)


def _awake() -> None:
  """Ends the wait of the thread that serves."""
