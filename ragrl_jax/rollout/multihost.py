"""A rollout on several hosts: each plays its own prompts on its own engine, and all know every episode."""

import dataclasses
from collections.abc import Sequence

from ragrl_jax.engine.counters import Counters
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout.collect import Request, Rollout
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.structs import Episode


class MultiHostRollout:
  """Plays as a Rollout does, with the same episodes, wherever they are played.

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
    """An episode for every request, in the requests' order. All hosts must call it, with the same requests.

    `beside` is finished when it returns: its programs and the exchange come in the same order on all hosts.
    """
    prompts = list(dict.fromkeys(request.prompt_index for request in requests))
    mine = set(share(prompts, hosts.number(), hosts.count()))
    episodes = self._rollout.run(
      [request for request in requests if request.prompt_index in mine], step=step, greedy=greedy, beside=beside
    )
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
  """The prompts that host `number` of `count` plays: every count-th, so that shares differ by one at most."""
  return prompts[number::count]


def _mean(reports: Sequence[dict]) -> Timings:
  """Counts add up; seconds, which pass on all hosts at once, are averaged."""

  def field(name, values):
    passes = name.endswith("_s") or name in ("seconds", "started")
    return sum(values) / len(values) if passes else sum(values)

  engines = [report.pop("engine") for report in reports]
  add_up = lambda records: {name: field(name, [record[name] for record in records]) for name in records[0]}
  return Timings(**add_up(reports), engine=Counters(**add_up(engines)))
