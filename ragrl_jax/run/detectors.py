"""Detectors: a metric leaves the range that a healthy run keeps, long before the reward falls.

The table DETECTORS declares what is healthy; docs/metrics.md explains it. `Watch` is given the rows of metrics.jsonl in
order and says which metrics are out of their range, and since which step. It knows nothing else, so a resumed run that
gives it the earlier rows goes on exactly as it would have.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Episode = TypeVar("Episode")
FIRST = 5  # healthy values of a metric whose median is its start
KNOWN = 2  # of them before a value is compared
NOISE = "noise/"  # before a metric's name: the standard error of its mean over the step's replies
CHANCE = 3.0  # standard errors from the start that are chance
LAST = 4  # steps whose mean is compared too: it has half the noise


@dataclasses.dataclass(frozen=True)
class Detector:
  """What is healthy of a metric. Its start is the median of its first FIRST healthy values.

  Attributes:
    metric: its name; "unearned/" stands for every metric that begins so.
    means: what the run does where it is not healthy.
    cure: the setting to try.
    low, high: the least and the most that is healthy, as multiples of the start.
    rise: the most that is healthy above the start. With `high`, what exceeds both is not healthy.
    most: the most that is healthy, whatever the start.
    hold: steps in a row out of the range before it is said.
  """

  metric: str
  means: str
  cure: str
  low: float | None = None
  high: float | None = None
  rise: float | None = None
  most: float | None = None
  hold: int = 1

  def about(self, name: str) -> bool:
    """Whether this metric is meant."""
    return name.startswith(self.metric) if self.metric.endswith("/") else name == self.metric

  @property
  def range(self) -> str:
    """What is healthy, in words."""
    if self.most is not None:
      return f"at most {self.most:g}"
    least = [] if self.low is None else [f"at least {self.low:.2g} times its start"]
    most = [] if self.high is None else [f"{self.high:.2g} times its start"]
    most += [] if self.rise is None else [f"{self.rise:g} above {'it' if most else 'its start'}"]
    return ", ".join([*least, *(["at most " + " or ".join(most)] if most else [])])

  def healthy(self, start: float, value: float, noise: float = 0.0) -> bool:
    """Whether the value, of this standard error, is healthy after this start.

    Without a `rise`, nothing is compared with a start of 0.
    """
    if self.most is not None:
      return value <= self.most
    if abs(value - start) < CHANCE * noise:
      return True
    most = [bound for bound in (self.high and self.high * start, self.rise and start + self.rise) if bound is not None]
    return start == 0 and self.rise is None or (self.low or 0.0) * start <= value <= max(most, default=math.inf)


EXPLORING = "a higher config.loss.clip_high, config.rollout.temperature or config.loss.entropy_coef"
FEWER = "fewer config.loss.epochs or minibatches, or a lower config.optimizer.learning_rate"
LLDS = "config.loss.llds_coef=0.2, or fewer config.loss.epochs or minibatches"
GUARDED = "config.switches.guarded=True if the recipe has it, and see 'Unearned reward' in its README.md"
SEARCHING = "config.switches.no_search_penalty if the recipe has it, or a higher config.loss.kl_coef"
ANSWERING = "config.switches.no_answer_penalty if the recipe has it, or a lower config.optimizer.learning_rate"
SLOWER = "a lower config.optimizer.learning_rate or a higher config.loss.kl_coef"

# Their bounds are beyond all that healthy runs did (tests/golden/detected_runs.json).
DETECTORS = (
  Detector("unearned/", "more and more replies use a trick that earns reward without the work", GUARDED, rise=0.15),
  Detector("tokens/thought", "the thought is dying", GUARDED, low=1 / 3, hold=2),
  Detector(  # a reply without a thought counts as 0, so the start may be a fraction of a token
    "tokens/thought",
    "thoughts grow without end",
    "config.reward.overlong_limit with overlong_buffer, or " + SLOWER,
    high=3.0,
    rise=16,
    hold=2,
  ),
  Detector("tokens/query", "queries have another length than at first", SLOWER, low=1 / 3, high=3.0, hold=2),
  Detector("tokens/answer", "answers become long", SLOWER, high=3.0, hold=2),
  Detector("response_tokens", "replies have another length than at first", SLOWER, low=1 / 3, high=3.0),
  Detector("repeats/within", "turns say the same words again and again", SLOWER, rise=0.15, hold=2),
  Detector("repeats/between", "later turns say what earlier ones said", SLOWER, rise=0.3, hold=2),
  Detector("broken_tags", "tags are not closed, or not opened", SLOWER, rise=0.2, hold=2),
  Detector("answered", "fewer and fewer replies give an answer", ANSWERING, low=0.75, hold=2),
  Detector("searches", "the policy is learning not to search", SEARCHING, low=1 / 3),
  Detector("queries/repeated", "an episode asks the same query again and again", SLOWER, rise=0.2, hold=2),
  Detector("queries/shared", "different questions are searched with the same query", SLOWER, rise=0.2, hold=2),
  Detector("old_kl", "the updates on one batch move the policy too far", FEWER, most=0.03, hold=2),
  Detector("fallen_tokens", "right actions lose their likelihood", LLDS, most=0.2, hold=2),
  Detector("entropy", "the policy has stopped exploring", EXPLORING, low=0.2),
  Detector("entropy", "the policy is becoming random", SLOWER, high=3.0),
  Detector("entropy/thought", "the thought is becoming random", SLOWER, high=3.0, rise=0.15, hold=2),
  Detector("entropy/query", "queries are becoming random", SLOWER, high=3.0, rise=0.3, hold=2),
  Detector("entropy/answer", "answers are becoming random", SLOWER, high=3.0, rise=0.5, hold=2),
)


@dataclasses.dataclass(frozen=True)
class Alarm:
  """A metric that is out of its range.

  Attributes:
    since: first of the steps in a row that are out of the range.
    step: the last of them.
    start: see `Detector`.
    value: at `step`, or the mean of the last LAST steps if only this has moved.
    detector: what is healthy.
  """

  metric: str
  since: int
  step: int
  start: float
  value: float
  detector: Detector

  @property
  def text(self) -> str:
    """What moved, since when, what it means and the setting to try."""
    verb = f"went from {self.start:.3g} to" if self.detector.most is None else "is"
    change = f"{self.metric} {verb} {self.value:.3g}"
    healthy = f"out of its healthy range since step {self.since} ({self.detector.range})"
    return f"{change}, {healthy}: {self.detector.means}. Try {self.detector.cure}."

  def shown(self, episodes: Iterable[tuple[Mapping[str, float], Episode]]) -> Episode | None:
    """Of (its signs, an episode), the episode that is farthest out; None if none of them has this sign."""
    signed = [(signs[self.metric], episode) for signs, episode in episodes if self.metric in signs]
    choose = max if self.value > self.start else min
    return choose(signed, key=lambda one: one[0])[1] if signed else None


class Watch:
  """Which metrics of a run are out of their range.

  Example: `watch = Watch(earlier rows)`, then after each step `alarms = watch.see(row)`. A rollback after k steps asks
  for `alarm.step - alarm.since + 1 >= k`. After it, a new Watch sees the rows that are left.

  Args:
    rows: rows of metrics.jsonl, oldest first.
  """

  def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
    self._first: dict[tuple[Detector, str], list[float]] = {}
    self._since: dict[tuple[Detector, str], int] = {}
    self._last: dict[tuple[Detector, str], list[tuple[float, float]]] = {}  # (value, noise) of the last LAST steps
    for row in rows:
      self.see(row)

  @property
  def out_of_range(self) -> set[Detector]:
    """The detectors that hold, also those that hold too shortly to be said."""
    return {detector for detector, _ in self._since}

  def see(self, row: Mapping[str, Any]) -> list[Alarm]:
    """The alarms after this step, in the table's order. A step that trained nothing has none and changes nothing.

    Args:
      row: the step's row, "step" included. A metric that it lacks, or that is not finite, stays as it was.
    """
    if not _trained(row):
      return []
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}
    alarms = []
    for detector in DETECTORS:
      for name in filter(detector.about, numbers):
        key, value = (detector, name), numbers[name]
        first = self._first.setdefault(key, [])
        start, noise = statistics.median_high(first) if first else value, numbers.get(NOISE + name)
        unknown = detector.most is None and len(first) < KNOWN
        if (healthy := unknown or detector.healthy(start, value, noise or 0.0)) and len(first) < FIRST:
          first.append(value)
        moved = False  # in the mean of the last steps
        if noise is not None:
          last = self._last[key] = [*self._last.get(key, ()), (value, noise)][-LAST:]
          mean, of_mean = statistics.mean(one for one, _ in last), math.hypot(*(one for _, one in last)) / LAST
          moved = not unknown and len(last) == LAST and not detector.healthy(start, mean, of_mean)
          value = mean if healthy else value
        if healthy and not moved:
          self._since.pop(key, None)
          continue
        since = self._since.setdefault(key, row["step"])
        if moved or row["step"] - since + 1 >= detector.hold:
          alarms.append(Alarm(name, since, row["step"], start, value, detector))
    return alarms


def _trained(row: Mapping[str, Any]) -> bool:
  """Whether the step trained the policy on its own episodes. The others do not show how it is."""
  nothing = row.get("groups/trained") == 0 or row.get("episodes", -1) == row.get("unscorable")
  fine_tuned = "sequences" in row and "episodes" not in row  # `ragrl sft`: its entropy is meant to fall
  return bool(row["step"]) and "entropy" in row and not nothing and not fine_tuned
