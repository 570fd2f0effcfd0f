"""Plays one episode for every request. Two threads work together:

caller's thread     dispatches every JAX program: the engine's steps, and calls made through `dispatch`
event loop          runs the recipes' coroutines, one per episode; they send messages to the engine and await futures
"""

import asyncio
import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Group
from ragrl_jax.prompting import passages
from ragrl_jax.rollout import conversation
from ragrl_jax.rollout.dispatch import Dispatch, Work
from ragrl_jax.rollout.engine_client import Client, EngineClient
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.rollout.tools import EpisodeTools, Waits
from ragrl_jax.structs import Episode, Example

OnEpisode = Callable[[Episode], None]
Play = Callable[[Example, structs.Policy, structs.Tools], Awaitable[Episode]]
FEW = 0.5  # share of the lanes: if fewer sample, other work is done between two chunks


@dataclasses.dataclass(frozen=True)
class Request:
  """One episode to play: sample number `sample` of prompt number `prompt_index` of the run."""

  example: Example
  prompt_index: int
  sample: int = 0


async def played(play: Play, request: Request, policy: conversation.Policy, tools: EpisodeTools) -> Episode:
  """Plays one episode and closes its conversation. A ToolFailed ends only this episode; other errors are raised."""
  try:
    example = passages.shortened(request.example, policy.tokenizer, policy.client.context)
    episode = await play(example, policy, tools)
  except structs.ToolFailed as failure:  # the only exception that ends an episode and not the run
    episode = policy.failed(str(failure) or type(failure).__name__)
  finally:
    policy.close()
  facts = {**episode.facts, structs.NO_VERDICT: tools.no_verdict} if tools.no_verdict else episode.facts
  # A play may construct an Episode itself, without these numbers.
  numbers: dict[str, Any] = dict(prompt_index=request.prompt_index, sample=request.sample)
  return dataclasses.replace(episode, facts=facts, example_id=request.example.id, **numbers)


class Rollout:
  """Plays episodes.

  Args:
    tools: searches and judges for the coroutines.
    reserve: tokens that an observation must leave for the next turn; by default a whole turn.
    dispatch: shared with the tools that need the accelerator; by default a new one.

  Attributes:
    report: timings of the last run, or of the current one.
    few: share of the lanes; see `Session.finish`.
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
    self.report, self.few = Timings(), FEW
    # Kept between runs, because every step's prompts begin with the same instructions.
    self._texts = conversation.TextCache(engine.tokenizer)
    self._loop: asyncio.AbstractEventLoop | None = None

  def run(
    self,
    requests: Sequence[Request],
    *,
    step: int,
    greedy: bool = False,
    on_episode: OnEpisode | None = None,
    work: Work | None = None,
  ) -> list[Episode]:
    """Plays every request and returns the episodes in the requests' order.

    Args:
      requests: place the samples of one prompt next to each other; the engine then computes the prompt once.
      step: the run's step. The random numbers depend only on the seed, the step and the request's numbers.
      on_episode: called on this thread when an episode ends, in the order in which they end.
      work: see `Session.finish`.

    Raises:
      Errors of `play` and of `work`. A ToolFailed is not raised; it only ends its own episode, as "failed".
    """
    with self.session(greedy=greedy, on_episode=on_episode) as session:
      return session.finish(session.start(requests, step=step), work)

  def stream(
    self, groups: Iterable[Sequence[Request]], *, step: int, at_once: int, greedy: bool = False
  ) -> Generator[Episode, None, None]:
    """Plays many requests, a few at a time, and yields each episode as soon as it has ended.

    When an episode ends, the next group is started: the lanes stay full until the last groups.

    Args:
      groups: the requests of one prompt each; they are started together.
      at_once: groups are started while fewer episodes than this are being played.

    Raises:
      Errors of `play`. Close the iterator if you leave it early; the episodes that are being played are cancelled.
    """
    left, ended, playing = iter(groups), collections.deque(), 0
    with self.session(greedy=greedy, on_episode=ended.append) as session:
      while True:
        while playing < at_once and (group := next(left, ())):
          session.start(group, step=step)
          playing += len(group)
        if not playing:
          return
        try:
          session.play_until(lambda: bool(ended))
        except Exception:
          yield from ended  # they ended before the error, and may have been paid for
          raise
        while ended:
          playing -= 1
          yield ended.popleft()

  @contextlib.contextmanager
  def session(self, *, greedy: bool = False, on_episode: OnEpisode | None = None) -> Iterator["Session"]:
    """Plays several batches of episodes at a time, all with the engine's present weights.

    This thread serves `dispatch` until the block ends. Unfinished episodes are then cancelled.
    """
    self.engine.check()
    # Temperature 0 is greedy; log-probabilities are then recorded at temperature 1.
    sampling = dataclasses.replace(self.sampling, temperature=0.0) if greedy else self.sampling
    self.report = Timings(engine=self.engine.restart_counters())
    session = self._opened(sampling, on_episode)
    with self.dispatch.serving():
      try:
        yield session
        session.drain()
      finally:
        session.stop()

  def _opened(self, sampling: structs.Sampling, on_episode: OnEpisode | None) -> "Session":
    return Session(self, sampling, on_episode)

  def close(self) -> None:
    """Stops the event loop and its thread. Whatever still runs there, such as a search of the tools, is cancelled."""
    if self._loop is not None:
      asyncio.run_coroutine_threadsafe(_cancelled(), self._loop).result()
      self._loop.call_soon_threadsafe(self._loop.stop)
      self._thread.join()
      self._loop.close()
      self._loop = None

  def loop(self) -> asyncio.AbstractEventLoop:
    """The event loop, which runs in its own thread."""
    if self._loop is None:
      self._loop = asyncio.new_event_loop()
      self._thread = threading.Thread(target=_run, args=(self._loop,), name="episodes", daemon=True)
      self._thread.start()
    return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
  """Runs the loop until it is stopped."""
  while True:
    try:
      return loop.run_forever()
    except (SystemExit, KeyboardInterrupt):  # of a task, whose error it is; the loop goes on for the others
      pass


async def _cancelled() -> None:
  """Ends all tasks of this event loop, and those that they start when they end."""
  while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Started:
  """A batch of requests that has been started. `episodes` fills up as they end."""

  def __init__(self, requests: Sequence[Request], step: int):
    self.requests, self.step = list(requests), step
    self.episodes: list[Any] = [None] * len(self.requests)
    self.left = len(self.requests)


class Session:
  """Batches of episodes on one engine. A later batch samples in the lanes that earlier ones leave idle.

      with rollout.session() as session:
        now, next = session.start(these, step=1), session.start(those, step=2)
        episodes = session.finish(now)           # `next` samples too, if there are free lanes
        more = session.finish(next, learning)    # and the learner works in between

  `client` and the methods under "on the event loop" belong to that thread.
  """

  def __init__(self, rollout: Rollout, sampling: structs.Sampling, on_episode: OnEpisode | None):
    self.rollout, self.sampling, self.on_episode = rollout, sampling, on_episode
    self.waits = Waits()
    self.client = EngineClient(rollout.engine, rollout.dispatch)
    self.error: BaseException | None = None
    self.tasks: set[asyncio.Task] = set()
    self._occupancy = 1.0  # share of the last chunk's lane steps that sampled a token
    self._unfinished, self._over, self._cancelling = 0, False, False

  def start(self, requests: Sequence[Request], *, step: int) -> Started:
    """Starts episodes behind those that were started before. `finish` returns them. See `Rollout.run`."""
    started = Started(requests, step)
    self._unfinished += started.left
    self.rollout.loop().call_soon_threadsafe(self._start, started)
    return started

  def finish(self, started: Started, work: Work | None = None) -> list[Episode]:
    """Samples until these episodes have ended; returns them in their requests' order. Raises what `Rollout.run` raises.

    Args:
      work: other work for this thread. One piece of it is done whenever no conversation has tokens to sample, and
        between two chunks while less than `few` of the lanes sample. The caller finishes the rest of it.
    """
    self.play_until(lambda: not started.left, work)
    return started.episodes

  def play_until(self, done: Callable[[], bool], work: Work | None = None) -> None:
    """Samples until `done()`, which is asked after every step. See `finish`."""
    begin, dispatch = time.perf_counter(), self.rollout.dispatch
    try:
      while not done() and self.error is None:
        if not self.rollout.engine.busy:  # every conversation waits for a tool, or for the event loop
          self._wait(work)
          continue
        if work is not None and self._occupancy < self.rollout.few:
          # A conversation whose search returns during this work joins the next chunk, which is then fuller.
          self._advance(work)
        dispatch.serve()  # messages first: a conversation whose search has returned joins this step
        self._draw()
      if self.error is not None:  # a bug in a recipe is raised here, on the caller's thread
        raise self.error
    finally:
      self.rollout.report.seconds += time.perf_counter() - begin

  def drain(self) -> None:
    """Ends turns of failed episodes. Nothing awaits them, but their rows must be freed."""
    if self._unfinished:  # `stop` cancels running coroutines
      return
    while self.rollout.engine.busy:
      self.rollout.engine.step()
    self._over = True

  def stop(self) -> None:
    """Ends everything that is still running, after an error or an interruption."""
    if self._over:
      self.rollout.dispatch.serve()
      return
    self.on_episode = None  # on_episode may have raised the error; it must not be called for episodes that ended since
    # The coroutines are cancelled on their own thread. Messages that they send while they end are served afterwards.
    stopped = threading.Event()
    self.rollout.loop().call_soon_threadsafe(self._cancel, stopped)
    stopped.wait()
    self.rollout.dispatch.serve()
    self.rollout.engine.reset()

  # ---- on the caller's thread ----------------------------------------------------------------------------------------

  def _draw(self) -> None:
    """One step of the engine; its answers go to the event loop."""
    counters = self.rollout.report.engine
    drawing, steps = counters.drawing_steps, counters.lane_steps
    if ended := self.rollout.engine.step():
      self.rollout.loop().call_soon_threadsafe(self.client.deliver, ended)
    if counters.lane_steps > steps:
      self._occupancy = (counters.drawing_steps - drawing) / (counters.lane_steps - steps)

  def _advance(self, work: Work) -> bool:
    """Does a piece of other work; False if none is left."""
    begin = time.perf_counter()
    if not work.advance():
      return False
    self.rollout.report.beside_s += time.perf_counter() - begin
    return True

  def _wait(self, work: Work | None) -> None:
    """Waits for a message, and does other work while there is any."""
    dispatch, report, begin = self.rollout.dispatch, self.rollout.report, time.perf_counter()
    if work is not None and self._advance(work):
      dispatch.serve()
      return
    judging_s = self.waits.judging_s()
    dispatch.serve(wait_s=60.0)
    judging_s = self.waits.judging_s() - judging_s
    report.judge_wait_s += judging_s
    report.wait_s += time.perf_counter() - begin - judging_s

  def _keep(self, started: Started, number: int, episode: Episode) -> None:
    started.episodes[number] = episode
    started.left -= 1  # at 0 `finish` ends
    self._unfinished -= 1
    self.rollout.report.episodes += 1
    self.rollout.report.failed += episode.ended == "failed"
    if self.on_episode is not None:
      self.on_episode(episode)

  def _fail(self, error: BaseException) -> None:
    self.error = self.error or error  # the first error is the cause; later ones may be its effects

  # ---- on the event loop ---------------------------------------------------------------------------------------------

  def _start(self, started: Started) -> None:
    # A prompt with one sample is not a group, so it is not shared.
    sizes = collections.Counter(request.prompt_index for request in started.requests)
    groups = {index: Group(index, size) for index, size in sizes.items() if size > 1}
    for number, request in enumerate(started.requests):
      episode = self._episode(request, groups.get(request.prompt_index), started.step)
      task = asyncio.get_running_loop().create_task(episode)
      self.tasks.add(task)
      task.add_done_callback(lambda task, number=number: self._done(started, number, task))

  async def _episode(self, request: Request, group: Group | None, step: int, client: Client | None = None) -> Episode:
    rollout = self.rollout
    policy = conversation.Policy(
      client or self.client,
      rollout._texts,
      keys=(rollout.seed, step, request.prompt_index, request.sample),
      sampling=self.sampling,
      group=group,
      reserve=rollout.reserve,
      example_id=request.example.id,
    )
    episode = await played(rollout.play, request, policy, EpisodeTools(rollout.tools, self.waits))
    return dataclasses.replace(episode, version=rollout.engine.version)

  def _done(self, started: Started, number: int, task: asyncio.Task) -> None:
    self.tasks.discard(task)
    if self._cancelling and task.cancelled():  # because the run is over
      return
    error = asyncio.CancelledError("something that it awaits was cancelled") if task.cancelled() else task.exception()
    if error is None:
      self.rollout.dispatch.post(self._keep, started, number, task.result())
      return
    if not isinstance(error, Exception):  # no step would be saved before it ends the run
      says = f"the play of {started.requests[number].example.id!r} raised {type(error).__name__}: {error}. Catch this "
      says += "error in the play; a ToolFailed in its place ends only the episode."
      error = RuntimeError(says).with_traceback(error.__traceback__)
    self.rollout.dispatch.post(self._fail, error)

  def _cancel(self, stopped: threading.Event) -> None:
    self._cancelling, tasks = True, list(self.tasks)
    for task in tasks:
      task.cancel()
    # Plays may clean up when they are cancelled, so the engine is reset only after they have ended.
    waiting = asyncio.gather(*tasks, return_exceptions=True)
    waiting.add_done_callback(lambda _: stopped.set())
