"""The number of steps that a schedule makes in the time of another one, on a simulated clock.

    python benchmarks/schedule.py

The library's own code decides what is sampled when: GroupSampler, Rollout's sessions, conversations, the dispatching
thread and the event loop. Simulated are the engine, whose lengths have a heavy-tailed distribution, the learner's
blocks, searches and the clock. Nothing is timed, so every machine prints the same.

- A turn's length is Pareto with index 1.5, at least 128 tokens, cut at `limit`. It depends only on the seed, the step,
  the prompt and the sample, so it is the same in every schedule.
- A decode step costs 1 for any number of lanes, because it reads all the weights.
- A learner block of 16,384 tokens costs 60. This is a 7B model on eight H200 at half of their peak and of their
  bandwidth: 0.25 s per block, 4 ms per decode step. Prefill, scoring and loading weights into the engine cost nothing.

Columns: clock units per step, and the share of the lane steps that sampled a token.

before   a step is sampled while the one before is learned, with weights of its own; the learner advances while no lane
         samples; a draw always has prompts_per_step prompts
ahead=0  a step is sampled, then learned; the size of a draw is the number of missing groups divided by the share of
         groups kept recently
ahead=1  two steps are sampled together, and the learner also advances while few lanes sample
"""

import asyncio
import collections
import contextlib
import dataclasses
import heapq
import math
import types
from collections.abc import Generator, Iterator

import numpy as np

from ragrl_jax import structs
from ragrl_jax.engine.lanes import Counters
from ragrl_jax.engine.messages import Open, Turn, TurnEnded
from ragrl_jax.rollout import collect, dispatch, group_sampler
from ragrl_jax.settings import Filter

INDEX, SHORTEST = 1.5, 128
BLOCK, BLOCK_COST = 16384, 60.0
SEARCH_TOKENS = 200


@dataclasses.dataclass(frozen=True)
class Setting:
  """The training setting. `kept` is the share of groups with a spread; `searches` per episode, each of `wait` units."""

  name: str
  prompts: int = 32
  group_size: int = 8
  lanes: int = 256
  limit: int = 4096
  kept: float = 1.0
  searches: int = 0
  wait: float = 0.0
  steps: int = 24


SETTINGS = (
  Setting("a lane an episode"),
  Setting("a lane for four episodes", lanes=64),
  Setting("no limit on a turn", limit=1 << 20),
  Setting("6 of 10 groups are kept", kept=0.6),
  Setting("3 of 10 groups are kept", kept=0.3),
  Setting("two searches of 100 steps", searches=2, wait=100.0, limit=2048),
)


class Clock:
  """The simulated time and the events to come."""

  def __init__(self):
    self.now, self._coming, self._count = 0.0, [], 0

  def sleep(self, units: float) -> asyncio.Future:
    """A future of the event loop that is done after this time."""
    self._count += 1  # of two events at the same time, the one requested first comes first
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    heapq.heappush(self._coming, (self.now + units, self._count, done))
    return done

  def jump(self) -> None:
    """Advances to the next event."""
    self.now = max(self.now, self._coming[0][0])

  def settle(self, loop: asyncio.AbstractEventLoop) -> None:
    """Runs the events that are due, and waits until the event loop has nothing left to do."""

    async def settled():
      while self._coming and self._coming[0][0] <= self.now:
        heapq.heappop(self._coming)[2].set_result(None)
      for _ in range(20):  # enough iterations for all callbacks between the end of a future and the next message
        await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(settled(), loop).result()


class Queue(dispatch.Dispatch):
  """A Dispatch that waits in simulated time."""

  def __init__(self, clock: Clock):
    super().__init__()
    self.clock, self.loop = clock, None

  def serve(self, wait_s: float = 0.0) -> int:
    """See `Dispatch.serve`."""
    if (served := super().serve()) or not wait_s:
      return served
    self.clock.jump()
    self.clock.settle(self.loop())
    return super().serve()


class Engine:
  """Answers the engine's messages. Like the real one, a chunk ends as soon as an eighth of the lanes is free."""

  context, chunk, refill = 1 << 22, 16, 0.125
  tokenizer = types.SimpleNamespace(decode=lambda ids: "", encode=lambda text: (1,) * SEARCH_TOKENS)
  stops = types.SimpleNamespace(names=("eos",), mask=lambda texts: 0)

  def __init__(self, clock: Clock, lanes: int, limit: int):
    self.clock, self.lanes, self.limit, self.rows, self.version = clock, lanes, limit, 2 * lanes, 0
    self.counters, self.loop = Counters(), None
    self.keys, self.turns, self.seated = {}, collections.Counter(), set()
    self.waiting, self.ready, self.live = collections.deque(), collections.deque(), {}

  def check(self) -> None:
    """Does nothing: the simulated engine needs no weights."""

  def restart_counters(self) -> Counters:
    """See the real engine."""
    self.counters = Counters()
    return self.counters

  def open(self, message: Open) -> None:
    """See the real engine; likewise the following methods."""
    self.keys[message.conversation] = message.key

  def submit(self, turn: Turn) -> None:
    (self.ready if turn.conversation in self.seated else self.waiting).append(turn.conversation)

  def close(self, number: int) -> None:
    del self.keys[number]
    self.seated.discard(number)

  @property
  def busy(self) -> bool:
    self.clock.settle(self.loop())
    return bool(self.live or self.ready or (self.waiting and len(self.seated) < self.rows))

  def step(self) -> list[TurnEnded]:
    while self.waiting and len(self.seated) < self.rows:
      self.seated.add(self.waiting[0])
      self.ready.append(self.waiting.popleft())
    while self.ready and len(self.live) < self.lanes:
      number = self.ready.popleft()
      self.turns[number] += 1
      self.live[number] = [self.length(number), 0]  # tokens of the turn, and those that are sampled
    if not self.live:
      return []
    left = sorted(total - drawn for total, drawn in self.live.values())
    free = max(1, int(self.lanes * self.refill)) if self.ready else len(left)
    steps = min(self.chunk, left[min(free, len(left)) - 1])
    self.clock.now += steps
    self.counters.lane_steps += steps * self.lanes
    drawn = sum(min(one, steps) for one in left)
    self.counters.sampled_tokens += drawn
    self.counters.drawing_steps += drawn
    ended = []
    for number, state in list(self.live.items()):
      state[1] += steps
      if state[1] >= state[0]:
        del self.live[number]
        ended.append(TurnEnded(number, (1,) * state[0], (0.0,) * state[0], 0))
    return ended

  def length(self, number: int) -> int:
    """Number of tokens in the conversation's turn."""
    key = [part % (1 << 32) for part in self.keys[number]]
    u = np.random.default_rng([*key, self.turns[number]]).random()
    return min(self.limit, math.ceil(SHORTEST * (1 - u) ** (-1 / INDEX)))


class Before(group_sampler.GroupSampler):
  """The earlier sampler: draws of prompts_per_step prompts, and one session per step."""

  def _next_draw(self, missing: int, kept: int = 0, drawn: int = 0) -> tuple[int, int]:
    self.cursor += self._prompts
    return self.cursor - self._prompts, self._prompts

  def sample_alone(self, step: int, work: dispatch.Work) -> None:
    """Samples the coming step's groups."""
    with self._session() as session:
      self.next = group_sampler.NextStep(groups=self._gather(session, step, None, work))


def simulate(setting: Setting, schedule: str) -> tuple[float, float]:
  """(clock units per step, share of the lane steps that sampled a token); schedule: before, ahead=0 or ahead=1."""
  with _rollout(setting) as (clock, rollout):
    sampler = (Before if schedule == "before" else group_sampler.GroupSampler)(
      rollout,
      [structs.Example("q", "", ("x",))],
      lambda cursor, count: [(index, 0) for index in range(cursor, cursor + count)],
      lambda _, episodes, step: [float(_has_spread(e.prompt_index, setting) and e.sample == 0) for e in episodes],
      prompts_per_step=setting.prompts,
      group_size=setting.group_size,
      filter=Filter(metric="none" if setting.kept == 1 else "outcome", max_draws=8),
      max_failed_share=0.0,
      ahead=schedule == "ahead=1",
    )
    for step in range(1, setting.steps + 1):
      if schedule == "before" or sampler.next.groups is None:
        rollout.engine.version = step - 1
      last = step == setting.steps
      taken = sampler.take(step, last=last)
      if taken.metrics["groups/missing"]:
        raise ValueError(f"{setting}: step {step} has too few groups; raise max_draws.")
      learning = dispatch.Work(_learned(clock, taken.episodes))
      if schedule == "before" and not last:
        rollout.few = 0.0
        sampler.sample_alone(step + 1, learning)
      elif sampler.next.playing is not None:
        sampler.sample_next(step + 1, learning)
      learning.finish()
    return clock.now / setting.steps, sampler.report.engine.occupancy


@contextlib.contextmanager
def _rollout(setting: Setting) -> Iterator[tuple[Clock, collect.Rollout]]:
  clock = Clock()
  engine, queue = Engine(clock, setting.lanes, setting.limit), Queue(clock)

  async def play(example, policy, tools):
    conversation = policy.start([1])
    await conversation.generate()
    for _ in range(setting.searches):
      await clock.sleep(setting.wait)
      conversation.observe("found")
      await conversation.generate()
    return conversation.end()

  sampling = structs.Sampling(temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=engine.context // 4)
  rollout = collect.Rollout(engine, play, None, seed=0, sampling=sampling, dispatch=queue)
  engine.loop = queue.loop = rollout.loop
  try:
    yield clock, rollout
  finally:
    rollout.close()


def _has_spread(prompt: int, setting: Setting) -> bool:
  return np.random.default_rng([1, prompt]).random() < setting.kept


def _learned(clock: Clock, episodes) -> Generator[None, None, None]:
  for _ in range(math.ceil(sum(episode.num_tokens for episode in episodes) / BLOCK)):
    clock.now += BLOCK_COST
    yield


def main() -> None:
  schedules = "before", "ahead=0", "ahead=1"
  print(f"{'':26s}" + "".join(f"{name:>16s}" for name in schedules) + "   before / ahead=1")
  for setting in SETTINGS:
    result = [simulate(setting, schedule) for schedule in schedules]
    shown = "".join(f"  {clock:7,.0f} {share:6.1%}" for clock, share in result)
    print(f"{setting.name:26s}{shown}   {result[0][0] / result[2][0]:.2f} x", flush=True)


if __name__ == "__main__":
  main()
