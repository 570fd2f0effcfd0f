"""Plays one episode for every request. Two threads work together:

caller's thread     dispatches every JAX program: the engine's steps, and what `dispatch` is asked for
event loop          runs the recipes' coroutines, one an episode; they send messages to the engine and await futures
"""

import asyncio
import collections
import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Group
from ragrl_jax.rollout import conversation
from ragrl_jax.rollout.client import EngineClient
from ragrl_jax.rollout.dispatch import Dispatch, Work
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.structs import Episode, Example

Play = Callable[[Example, structs.Policy, structs.Tools], Awaitable[Episode]]


@dataclasses.dataclass(frozen=True)
class Request:
  """One episode to play: sample number `sample` of prompt number `prompt_index` of the run."""

  example: Example
  prompt_index: int
  sample: int = 0


class Rollout:
  """Plays episodes.

  Args:
    engine: with weights loaded.
    play: the recipe's coroutine.
    tools: searches and judges for the coroutines.
    seed: of the run.
    sampling: how tokens are drawn.
    reserve: tokens that an observation must leave for the next turn; by default a whole turn.
    dispatch: shared with the tools that need the accelerator; by default a new one.

  Attributes:
    report: timings of the last run, or of the one under way.
  """

  def __init__(
    self,
    engine: Engine,
    play: Play,
    tools: structs.Tools,
    *,
    seed: int,
    sampling: structs.Sampling,
    reserve: int | None = None,
    dispatch: Dispatch | None = None,
  ):
    self.engine, self.play, self.tools, self.seed, self.sampling = engine, play, tools, seed, sampling
    self.reserve = sampling.max_new_tokens if reserve is None else reserve
    if self.reserve >= engine.context:
      raise ValueError(
        f"a turn of {self.reserve} tokens does not fit into a context of {engine.context}: raise "
        "config.rollout.context, or lower config.rollout.max_new_tokens or reserve."
      )
    self.dispatch = dispatch or Dispatch()
    self.report = Timings()
    # Kept over runs: every step's prompts begin with the same instructions.
    self._texts = conversation.TextCache(engine.tokenizer)
    self._loop: asyncio.AbstractEventLoop | None = None

  def run(
    self,
    requests: Sequence[Request],
    *,
    step: int,
    greedy: bool = False,
    on_episode: Callable[[Episode], None] | None = None,
    beside: Work | None = None,
  ) -> list[Episode]:
    """Plays every request and returns the episodes in the requests' order.

    Args:
      requests: put the samples of one prompt side by side: the engine then computes its tokens once.
      step: of the run. The random numbers depend on the seed, the step and the request's numbers alone.
      greedy: always take the likeliest token.
      on_episode: called on this thread as each episode ends, in the order in which they end.
      beside: other work for this thread, done piece by piece whenever no conversation has tokens to draw. The caller
        finishes what is left of it.

    Raises:
      What `play` raises, except ToolFailed: that ends its episode alone, as "failed". What `beside` raises.
    """
    self.engine.check()
    # Temperature 0 is greedy; log-probabilities are then recorded at temperature 1.
    sampling = dataclasses.replace(self.sampling, temperature=0.0) if greedy else self.sampling
    self.report = Timings(engine=self.engine.restart_counters())
    run = _Run(self, list(requests), step, sampling, on_episode, beside)
    begin = time.perf_counter()
    with self.dispatch.serving():
      try:
        run.drive()
      finally:
        run.stop()
        self.report.seconds = time.perf_counter() - begin
    return run.episodes

  def close(self) -> None:
    """Stops the event loop and its thread."""
    if self._loop is not None:
      self._loop.call_soon_threadsafe(self._loop.stop)
      self._thread.join()
      self._loop.close()
      self._loop = None

  def loop(self) -> asyncio.AbstractEventLoop:
    """The event loop, running in a thread of its own."""
    if self._loop is None:
      self._loop = asyncio.new_event_loop()
      self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
      self._thread.start()
    return self._loop


class _Run:
  """One call of `Rollout.run`. `client` and the methods under "on the event loop" belong to that thread."""

  def __init__(self, rollout: Rollout, requests: list[Request], step: int, sampling, on_episode, beside):
    self.rollout, self.requests, self.step, self.sampling = rollout, requests, step, sampling
    self.on_episode, self.beside, self.tools = on_episode, beside, _TimedTools(rollout.tools)
    self.client = EngineClient(rollout.engine, rollout.dispatch)
    self.episodes: list[Any] = [None] * len(requests)
    self.left, self.over = len(requests), False
    self.error: BaseException | None = None
    self.tasks: set[asyncio.Task] = set()

  def drive(self) -> None:
    """Serves messages and steps the engine until every episode has ended."""
    engine, dispatch, report = self.rollout.engine, self.rollout.dispatch, self.rollout.report
    loop = self.rollout.loop()
    loop.call_soon_threadsafe(self._start)
    while self.left and self.error is None:
      if not engine.busy:  # every conversation waits for a tool, or for the event loop
        begin = time.perf_counter()
        if self.beside is not None and self.beside.advance():
          dispatch.serve()
          report.beside_s += time.perf_counter() - begin
        else:
          judged = self.tools.judging_s()
          dispatch.serve(wait_s=60.0)
          judged = self.tools.judging_s() - judged
          report.judge_wait_s += judged
          report.wait_s += time.perf_counter() - begin - judged
        continue
      dispatch.serve()  # messages first: a conversation whose search has returned joins this step
      if ended := engine.step():
        loop.call_soon_threadsafe(self.client.deliver, ended)
    if self.error is not None:  # a recipe's mistake is raised here, on the caller's thread
      raise self.error
    while engine.busy:  # turns of failed episodes: nobody awaits them, and their rows must be freed
      engine.step()
    self.over = True

  def stop(self) -> None:
    """Ends what is still under way, after an error or an interruption."""
    if self.over:
      self.rollout.dispatch.serve()
      return
    self.on_episode = None  # it may be what raised; episodes that ended meanwhile would have it raise again
    # The coroutines are cancelled on their own thread; what they still send while they end is served after that.
    stopped = threading.Event()
    self.rollout.loop().call_soon_threadsafe(self._cancel, stopped)
    stopped.wait()
    self.rollout.dispatch.serve()
    self.rollout.engine.reset()

  # ---- on the event loop ---------------------------------------------------------------------------------------------

  def _start(self) -> None:
    # A prompt with one sample is no group: there is nobody to share it with.
    sizes = collections.Counter(request.prompt_index for request in self.requests)
    groups = {index: Group(index, size) for index, size in sizes.items() if size > 1}
    for number, request in enumerate(self.requests):
      task = asyncio.get_running_loop().create_task(self._episode(request, groups.get(request.prompt_index)))
      self.tasks.add(task)
      task.add_done_callback(lambda task, number=number: self._done(number, task))

  async def _episode(self, request: Request, group: Group | None) -> Episode:
    rollout = self.rollout
    policy = conversation.Policy(
      self.client,
      rollout._texts,
      keys=(rollout.seed, self.step, request.prompt_index, request.sample),
      sampling=self.sampling,
      group=group,
      reserve=rollout.reserve,
      example_id=request.example.id,
    )
    tools: Any = _EpisodeTools(self.tools)
    try:
      episode = await rollout.play(request.example, policy, tools)
    except structs.ToolFailed as failure:  # the only exception that ends an episode and not the run
      episode = policy.failed(str(failure) or type(failure).__name__)
    finally:
      policy.close()
    if tools.no_verdict:
      episode = dataclasses.replace(episode, facts={**episode.facts, structs.NO_VERDICT: tools.no_verdict})
    # A play may build an Episode by itself, without these numbers.
    return dataclasses.replace(
      episode,
      prompt_index=request.prompt_index,
      sample=request.sample,
      example_id=request.example.id,
      version=rollout.engine.version,
    )

  def _done(self, number: int, task: asyncio.Task) -> None:
    self.tasks.discard(task)
    if task.cancelled():  # by `_cancel`: the run is over
      return
    if task.exception() is not None:
      self.rollout.dispatch.post(self._fail, task.exception())
    else:
      self.rollout.dispatch.post(self._keep, number, task.result())

  def _cancel(self, stopped: threading.Event) -> None:
    tasks = list(self.tasks)
    for task in tasks:
      task.cancel()
    # Plays may clean up when they are cancelled, so their ends are awaited before the engine is reset.
    waiting = asyncio.gather(*tasks, return_exceptions=True)
    waiting.add_done_callback(lambda _: stopped.set())

  # ---- on the caller's thread ----------------------------------------------------------------------------------------

  def _keep(self, number: int, episode: Episode) -> None:
    self.episodes[number] = episode
    self.left -= 1  # at 0 `drive` ends
    self.rollout.report.episodes += 1
    self.rollout.report.failed += episode.ended == "failed"
    if self.on_episode is not None:
      self.on_episode(episode)

  def _fail(self, error: BaseException) -> None:
    self.error = self.error or error  # the first one is the cause; later ones may be its effects


class _TimedTools:
  """Wraps Tools and times waits caused by judges alone. What is not timed (`__getattr__`) is passed through."""

  def __init__(self, tools: structs.Tools):
    self._tools = tools
    self._state = 0, 0, 0.0, 0.0  # searches, judgements under way; seconds up to the last change, and when that was

  def judging_s(self) -> float:
    """Seconds in which judgements and no search were under way. Any thread may ask."""
    # One read of one tuple: the event loop replaces the state as a whole, so no lock is needed.
    searches, judgements, seconds, changed = self._state
    return seconds + (time.perf_counter() - changed if judgements and not searches else 0.0)

  def _count(self, searches: int, judgements: int) -> None:
    seconds = self.judging_s()
    self._state = self._state[0] + searches, self._state[1] + judgements, seconds, time.perf_counter()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    self._count(1, 0)
    try:
      return await self._tools.search(query, k)
    finally:
      self._count(-1, 0)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    self._count(0, 1)
    try:
      return await self._tools.judge(pairs, term)
    finally:
      self._count(0, -1)


class _EpisodeTools:
  """Wraps Tools for one episode and notes why a judge gave it no verdict; "" if every pair got one."""

  def __init__(self, tools: Any):
    self._tools, self.no_verdict = tools, ""

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    try:
      verdicts = await self._tools.judge(pairs, term)
    except structs.ToolFailed as failure:
      self.no_verdict = str(failure) or type(failure).__name__
      raise
    if None in verdicts:
      self.no_verdict = "the judge's answer could not be read (the log shows the first such), or the pair was too long"
    return verdicts
