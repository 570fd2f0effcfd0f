"""A rollout on several hosts: each plays its share of the prompts on its own engine, then all exchange episodes."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ragrl_jax.engine.counters import Counters
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
    rollout: this host's own; an episode must depend on its request and on the weights alone.

  Attributes:
    report: of the last run: counts over all hosts, seconds of the mean host.
  """

  def __init__(self, rollout: Rollout):
    self._rollout = rollout
    # A piece of other work waits for all hosts. One that still draws must not wait for those with full lanes.
    rollout.few = 0.0
    self.report = Timings()

  def run(
    self, requests: Sequence[Request], *, step: int, greedy: bool = False, beside: Work | None = None
  ) -> list[Episode]:
    """Returns an episode for every request, in the requests' order. `beside` is finished when it returns."""
    with self.session(greedy=greedy) as session:
      return session.finish(session.start(requests, step=step), beside)

  @contextlib.contextmanager
  def session(self, *, greedy: bool = False) -> Iterator["MultiHostSession"]:
    """See `Rollout.session`."""
    with self._rollout.session(greedy=greedy) as session:
      yield MultiHostSession(self, session)

  def exchange(self, requests: Sequence[Request], episodes: Sequence[Episode]) -> list[Episode]:
    """All hosts' episodes in the requests' order, from this host's own; `report` is renewed, too."""
    self.report = _mean(hosts.exchange(dataclasses.asdict(self._rollout.report)))
    decode = self._rollout.engine.tokenizer.decode
    played = [
      episode
      for packed in hosts.exchange_bytes(buffers.pack(episodes, decode))
      for episode in buffers.unpack(packed, decode)
    ]
    found = {(episode.prompt_index, episode.sample): episode for episode in played}
    return [found[request.prompt_index, request.sample] for request in requests]


class MultiHostSession:
  """A Session over all hosts."""

  def __init__(self, rollout: MultiHostRollout, session: collect.Session):
    self._rollout, self._session = rollout, session

  def start(self, requests: Sequence[Request], *, step: int) -> tuple[Sequence[Request], collect.Started]:
    """See `Session.start`."""
    # Whole prompts: the samples of a group stay on one engine, which computes their prompt once.
    prompts = list(dict.fromkeys(request.prompt_index for request in requests))
    mine = set(share(prompts, hosts.number(), hosts.count()))
    return requests, self._session.start([request for request in requests if request.prompt_index in mine], step=step)

  def finish(self, started: tuple[Sequence[Request], collect.Started], beside: Work | None = None) -> list[Episode]:
    """See `Session.finish`. `beside` is finished when it returns."""
    requests, own = started
    episodes = self._session.finish(own, beside)
    # Hosts play for different times, so some have done more of `beside` than others. All must start their programs in
    # one order, or collectives would meet the wrong partners: the rest of it, then the exchange.
    if beside is not None:
      beside.finish()
    return self._rollout.exchange(requests, episodes)


def share(prompts: Sequence[int], number: int, count: int) -> Sequence[int]:
  """The prompts that host `number` of `count` plays: every count-th, so that shares differ by at most one."""
  # 7 prompts on 3 hosts: 0 3 6, 1 4, 2 5.
  return prompts[number::count]


def _mean(reports: Sequence[dict]) -> Timings:
  """Sums of counts, means of seconds: those pass on all hosts at once."""

  def field(name: str, values: Sequence[float]) -> Any:
    passes = name.endswith("_s") or name in ("seconds", "started")
    return sum(values) / len(values) if passes else sum(values)

  engines = [report.pop("engine") for report in reports]
  add_up = lambda records: {name: field(name, [record[name] for record in records]) for name in records[0]}
  return Timings(**add_up(reports), engine=Counters(**add_up(engines)))
