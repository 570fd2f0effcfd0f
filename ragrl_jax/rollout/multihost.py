"""A rollout on several hosts: each plays its share of the prompts on its own engine, then all exchange episodes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ragrl_jax.engine.counters import Counters
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout.collect import Request, Rollout
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.structs import Episode


class MultiHostRollout:
  """A Rollout over all hosts. The episodes do not depend on the number of hosts.

  Args:
    rollout: this host's own; an episode must depend on its request and on the weights alone.

  Attributes:
    report: of the last run: counts over all hosts, seconds of the mean host.
  """

  def __init__(self, rollout: Rollout):
    self._rollout = rollout
    self.report = Timings()

  def run(
    self, requests: Sequence[Request], *, step: int, greedy: bool = False, beside: Work | None = None
  ) -> list[Episode]:
    """Returns an episode for every request, in the requests' order. All hosts must call it with the same requests.

    `beside` is finished when it returns.
    """
    # Whole prompts: the samples of a group stay on one engine, which computes their prompt once.
    prompts = list(dict.fromkeys(request.prompt_index for request in requests))
    mine = set(share(prompts, hosts.number(), hosts.count()))
    episodes = self._rollout.run(
      [request for request in requests if request.prompt_index in mine], step=step, greedy=greedy, beside=beside
    )
    # Hosts play for different times, so some have done more of `beside` than others. All must start their programs in
    # one order, or collectives would meet the wrong partners: the rest of it, then the exchange.
    if beside is not None:
      beside.finish()
    told = hosts.exchange(
      dict(
        episodes=[episodes_lib.record(episode) for episode in episodes], report=dataclasses.asdict(self._rollout.report)
      )
    )
    self.report = _mean([one["report"] for one in told])
    played = [episodes_lib.of_record(record) for one in told for record in one["episodes"]]
    found = {(episode.prompt_index, episode.sample): episode for episode in played}
    return [found[request.prompt_index, request.sample] for request in requests]


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
