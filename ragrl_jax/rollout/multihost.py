"""A rollout on several hosts: each engine plays its share of the prompts, then all hosts exchange episodes.

An engine runs on one or several hosts. The first of its hosts plays, the others only run the engine's programs.
"""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from ragrl_jax.engine.lanes import Counters
from ragrl_jax.engine.team import Team
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout import collect
from ragrl_jax.rollout.collect import Request, Rollout
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.store import buffers
from ragrl_jax.structs import Episode


class MultiHostRollout:
  """A Rollout over all hosts. The episodes do not depend on the number of hosts.

  All hosts must make the same calls with the same requests.

  Args:
    rollout: this host's own. An episode must depend only on its request and on the weights.
    team: the hosts of its engine; None if the engine runs on this host alone.

  Attributes:
    report: timings of the last run: counts over all engines, seconds averaged over engines.
  """

  def __init__(self, rollout: Rollout, team: Team | None = None):
    self._rollout, self.team = rollout, team
    # A piece of other work waits for all hosts. A host that still samples must not wait for those with full lanes.
    rollout.few = 0.0
    self.report = Timings()

  def run(
    self, requests: Sequence[Request], *, step: int, greedy: bool = False, beside: Work | None = None
  ) -> list[Episode]:
    """Returns an episode for every request, in the requests' order. `beside` is finished when it returns."""
    with self.session(greedy=greedy) as session:
      return session.finish(session.start(requests, step=step), beside)

  def stream(
    self, groups: Iterable[Sequence[Request]], *, step: int, at_once: int, greedy: bool = False
  ) -> Generator[Episode, None, None]:
    """See `Rollout.stream`. The hosts exchange episodes after every `at_once` groups, and play on meanwhile."""
    left, started = iter(groups), collections.deque()
    with self.session(greedy=greedy) as session:
      # The next part starts before this one is awaited, so that it samples in the lanes that become idle.
      while part := list(itertools.chain.from_iterable(itertools.islice(left, at_once))):
        started.append(session.start(part, step=step))
        if len(started) > 1:
          yield from session.finish(started.popleft())
      while started:
        yield from session.finish(started.popleft())

  @contextlib.contextmanager
  def session(self, *, greedy: bool = False) -> Iterator["MultiHostSession | FollowingSession"]:
    """See `Rollout.session`."""
    self.report = Timings()
    with contextlib.nullcontext() if self.team is None else self.team.session():
      if self.team is not None and not self.team.leads:
        # A leading host checks the weights when its episodes begin. This host begins no episodes.
        self._rollout.engine.check()
        yield FollowingSession(self)
        return
      with self._rollout.session(greedy=greedy) as session:
        yield MultiHostSession(self, session)

  def exchange(self, requests: Sequence[Request], episodes: Sequence[Episode] | None) -> list[Episode]:
    """All hosts' episodes in the requests' order; also updates `report`.

    Args:
      requests: of all hosts.
      episodes: this host's episodes; None if the first host of its engine plays them.
    """
    own = None if episodes is None else dataclasses.asdict(self._rollout.report)
    self.report = _mean([report for report in hosts.exchange(own) if report is not None])
    decode = self._rollout.engine.tokenizer.decode
    played = [
      episode
      for packed in hosts.exchange_bytes(buffers.pack(episodes or (), decode))
      for episode in buffers.unpack(packed, decode)
    ]
    # Episodes come in the order in which they ended, which differs from run to run. The requests' order never does.
    found = {(episode.prompt_index, episode.sample): episode for episode in played}
    return [found[request.prompt_index, request.sample] for request in requests]


class MultiHostSession:
  """A Session over all hosts."""

  def __init__(self, rollout: MultiHostRollout, session: collect.Session):
    self._rollout, self._session = rollout, session

  def start(self, requests: Sequence[Request], *, step: int) -> tuple[Sequence[Request], collect.Started]:
    """See `Session.start`."""
    # Whole prompts, so that the samples of a group stay on one engine, which computes their prompt once.
    prompts = list(dict.fromkeys(request.prompt_index for request in requests))
    size = 1 if self._rollout.team is None else self._rollout.team.size
    mine = set(share(prompts, hosts.number() // size, hosts.count() // size))
    return requests, self._session.start([request for request in requests if request.prompt_index in mine], step=step)

  def finish(self, started: tuple[Sequence[Request], collect.Started], beside: Work | None = None) -> list[Episode]:
    """See `Session.finish`. `beside` is finished when it returns."""
    requests, own = started
    team = self._rollout.team
    if team is None:
      episodes = self._session.finish(own, beside)
    else:
      episodes = self._session.finish(own, None if beside is None else _Announced(beside, team))
      team.done()
    # Hosts play for different times, so some have done more of `beside` than others. All must start their programs in
    # the same order, or collectives would not match. So each host does the rest of it before the exchange.
    if beside is not None:
      beside.finish()
    return self._rollout.exchange(requests, episodes)


class FollowingSession:
  """The session of a host that leaves the episodes to the first host of its engine, and runs the programs with it."""

  def __init__(self, rollout: MultiHostRollout):
    self._rollout = rollout

  def start(self, requests: Sequence[Request], *, step: int) -> Sequence[Request]:
    """See `Session.start`."""
    del step  # the first host starts them
    return requests

  def finish(self, started: Sequence[Request], beside: Work | None = None) -> list[Episode]:
    """See `Session.finish`. `beside` is finished when it returns."""
    self._rollout.team.run_programs(None if beside is None else beside.advance)
    if beside is not None:
      beside.finish()
    return self._rollout.exchange(started, None)


class _Announced(Work):
  """Other work of a team. When the first host does a piece between two programs, all hosts do it at that point."""

  def __init__(self, work: Work, team: Team):
    self._work, self._team, self._left = work, team, True

  def advance(self) -> bool:
    if self._left:
      self._team.piece()
      self._left = self._work.advance()
    return self._left


def share(prompts: Sequence[int], number: int, count: int) -> Sequence[int]:
  """The prompts that engine `number` of `count` plays: every count-th one, so shares differ by at most one."""
  # 7 prompts on 3 engines: 0 3 6, 1 4, 2 5.
  return prompts[number::count]


def _mean(reports: Sequence[dict]) -> Timings:
  """Sums of counts, and means of seconds, because time passes on all hosts at once."""

  def field(name: str, values: Sequence[float]) -> Any:
    passes = name.endswith("_s") or name in ("seconds", "started")
    return sum(values) / len(values) if passes else sum(values)

  engines = [report.pop("engine") for report in reports]
  add_up = lambda records: {name: field(name, [record[name] for record in records]) for name in records[0]}
  return Timings(**add_up(reports), engine=Counters(**add_up(engines)))
