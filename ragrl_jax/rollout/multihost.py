"""A rollout on several hosts: each engine plays its share of the prompts, then all hosts exchange episodes.

An engine runs on one or several hosts. The first of its hosts plays, the others only run the engine's programs.
"""

import collections
import contextlib
import dataclasses
import io
import itertools
import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ragrl_jax import structs
from ragrl_jax.engine.lanes import Counters
from ragrl_jax.engine.team import Team
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout import collect
from ragrl_jax.rollout.collect import Request, Rollout
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.store import lossless_json
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
    self, requests: Sequence[Request], *, step: int, greedy: bool = False, work: Work | None = None
  ) -> list[Episode]:
    """Returns an episode for every request, in the requests' order. `work` is finished when it returns."""
    with self.session(greedy=greedy) as session:
      return session.finish(session.start(requests, step=step), work)

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
  def session(self, *, greedy: bool = False) -> Iterator["MultiHostSession"]:
    """See `Rollout.session`."""
    self.report, team = Timings(), self.team
    with contextlib.nullcontext() if team is None else team.session():
      if team is None or team.leads:
        with self._rollout.session(greedy=greedy) as session:
          yield MultiHostSession(self, session)
      else:
        # A leading host checks the weights when its episodes begin. This host begins no episodes.
        self._rollout.engine.check()
        yield MultiHostSession(self, None)

  def exchange(self, requests: Sequence[Request], episodes: Sequence[Episode] | None) -> list[Episode]:
    """All hosts' episodes in the requests' order; also updates `report`.

    Args:
      episodes: this host's episodes; None if the first host of its engine plays them.
    """
    own_report = None if episodes is None else dataclasses.asdict(self._rollout.report)
    self.report = _mean([report for report in hosts.exchange(own_report) if report is not None])
    decode = self._rollout.engine.tokenizer.decode
    all_episodes = [
      episode for packed in hosts.exchange_bytes(pack(episodes or (), decode)) for episode in unpack(packed, decode)
    ]
    # Episodes come in the order in which they ended, which differs from run to run. The requests' order never does.
    by_key = {(episode.prompt_index, episode.sample): episode for episode in all_episodes}
    return [by_key[request.prompt_index, request.sample] for request in requests]


class MultiHostSession:
  """A Session over all hosts.

  Args:
    session: this host's; None if it leaves the episodes to the first host of its engine, and runs the programs with it.
  """

  def __init__(self, rollout: MultiHostRollout, session: collect.Session | None):
    self._rollout, self._session = rollout, session

  def start(self, requests: Sequence[Request], *, step: int) -> tuple[Sequence[Request], Any]:
    """See `Session.start`."""
    if self._session is None:
      return requests, None
    # Whole prompts, so that the samples of a group stay on one engine, which computes their prompt once.
    prompts = list(dict.fromkeys(request.prompt_index for request in requests))
    size = 1 if self._rollout.team is None else self._rollout.team.size
    own = set(share(prompts, hosts.number() // size, hosts.count() // size))
    return requests, self._session.start([request for request in requests if request.prompt_index in own], step=step)

  def finish(self, started: tuple[Sequence[Request], Any], work: Work | None = None) -> list[Episode]:
    """See `Session.finish`. `work` is finished when it returns."""
    (requests, playing), team, episodes = started, self._rollout.team, None
    if self._session is not None:
      episodes = self._session.finish(playing, work if work is None or team is None else _Announced(work, team))
      if team is not None:
        team.done()
    elif team is not None:
      team.run_programs(None if work is None else work.advance)
    # Hosts play for different times, so some have done more of `work` than others. All must start their programs in
    # the same order, or collectives would not match. So each host does the rest of it before the exchange.
    if work is not None:
      work.finish()
    return self._rollout.exchange(requests, episodes)


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


LEVEL = 1  # compression level of the numbers: higher levels save 1 %, and take several times as long
PARTS = 4

Decode = Callable[[Sequence[int]], str]


def pack(episodes: Sequence[structs.Episode], decode: Decode) -> bytes:
  """The episodes as bytes: ids as int32, log-probabilities as float32, the rest as JSON.

      sizes of the parts, int32 | ids | log-probabilities | routes | JSON

  Each part is compressed. Before that, the bytes of the numbers are regrouped: all lowest bytes, then all second ones,
  and so on. Ids are small and log-probabilities are close to each other, so their high bytes repeat. A text that equals
  its decoded ids is left out. A passage that several episodes have found is written once.

  Args:
    episodes: the episodes; `unpack` restores them exactly, facts included.
    decode: ids → text; `unpack` must get the same function.

  Raises:
    ValueError: a fact that cannot be saved exactly (`store/lossless_json.py`).
  """
  ids, logprobs, routes, passages, rows = [], [], [], {}, []
  for episode in episodes:
    for segment in episode.segments:
      ids += segment.ids
      logprobs += segment.logprobs
      routes.append(segment.routes)
    segments = [_segment(segment, decode, passages) for segment in episode.segments]
    rows.append(
      [*(getattr(episode, name) for name in _PLAIN), episode.starts, lossless_json.encode(episode.facts), segments]
    )
  texts = json.dumps([rows, list(passages)], separators=(",", ":")).encode()
  numbers = _squeezed(np.asarray(ids, "<i4")), _squeezed(np.asarray(logprobs, "<f4"))
  parts = *numbers, zlib.compress(b"".join(routes), LEVEL), zlib.compress(texts)
  return np.asarray([len(part) for part in parts], "<i4").tobytes() + b"".join(parts)


def unpack(packed: bytes, decode: Decode) -> list[structs.Episode]:
  """The episodes from the bytes of `pack`; `decode` must be the same as for `pack`."""
  at, parts = 4 * PARTS, []
  for size in np.frombuffer(packed, "<i4", PARTS).tolist():
    parts.append(zlib.decompress(packed[at : at + size]))
    at += size
  ids, logprobs = iter(_numbers(parts[0], "<i4")), iter(_numbers(parts[1], "<f4"))
  routes, (rows, passages) = io.BytesIO(parts[2]), json.loads(parts[3])
  known_passages = [structs.Passage(*passage) for passage in passages]
  take = lambda numbers, count: tuple(itertools.islice(numbers, count))

  def segment(row: list[Any]) -> structs.Segment:
    is_model, num_ids, num_logprobs, num_routes, text, stop, query, places = row
    segment_ids = take(ids, num_ids)
    return structs.Segment(
      structs.MODEL if is_model else structs.ENVIRONMENT,
      segment_ids,
      decode(segment_ids) if text is None else text,
      take(logprobs, num_logprobs),
      stop,
      query,
      None if places is None else tuple(known_passages[place] for place in places),
      routes.read(num_routes),
    )

  return [
    structs.Episode(
      tuple(segment(segment_row) for segment_row in segments),
      facts=lossless_json.decode(facts),
      starts=tuple(starts),
      **dict(zip(_PLAIN, values, strict=True)),
    )
    for *values, starts, facts, segments in rows
  ]


_PLAIN = ("version", "ended", "failure", "prompt_index", "sample", "example_id")


def _segment(segment: structs.Segment, decode: Decode, passages: dict[tuple, int]) -> list[Any]:
  """A segment without its numbers, as JSON values; adds its new passages to `passages`."""
  places = None
  if segment.found is not None:
    places = [passages.setdefault((p.id, p.title, p.text, p.score), len(passages)) for p in segment.found]
  text = None if segment.text == decode(segment.ids) else segment.text
  is_model = segment.owner == structs.MODEL
  sizes = len(segment.ids), len(segment.logprobs), len(segment.routes)
  return [is_model, *sizes, text, segment.stop, segment.query, places]


def _squeezed(numbers: np.ndarray) -> bytes:
  """Numbers of four bytes, compressed."""
  # 0x00000102 0x00000103 → 02 03, 01 01, 00 00, 00 00.
  return zlib.compress(numbers.view(np.uint8).reshape(-1, 4).T.tobytes(), LEVEL)


def _numbers(raw: bytes, dtype: str) -> list[Any]:
  return np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(4, -1).T).view(dtype).ravel().tolist()
