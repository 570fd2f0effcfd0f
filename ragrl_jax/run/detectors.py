"""Detectors: a metric leaves the range that a healthy run keeps, long before the reward falls.

The table DETECTORS declares what is healthy; docs/metrics.md explains it. `Watch` is given the rows of metrics.jsonl in
order and says which metrics are out of their range, and since which step. It knows nothing else, so a resumed run that
gives it the earlier rows goes on exactly as it would have.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

FIRST = 5  # steps that trained the policy, whose median is a metric's start


@dataclasses.dataclass(frozen=True)
class Detector:
  """What is healthy of a metric, compared with its start.

  Attributes:
    metric: its name; "unearned/" stands for every metric that begins so.
    means: what the run does where it is not healthy.
    cure: the setting to try.
    low, high: the least and the most that is healthy, as multiples of the start.
    rise: the most that is healthy above the start.
    hold: steps in a row out of the range before it is said.
  """

  metric: str
  means: str
  cure: str
  low: float | None = None
  high: float | None = None
  rise: float | None = None
  hold: int = 1

  def about(self, name: str) -> bool:
    """Whether this metric is meant."""
    return name.startswith(self.metric) if self.metric.endswith("/") else name == self.metric

  def healthy(self, start: float, value: float) -> bool:
    """Whether the value is healthy after this start. Without a `rise`, nothing is compared with a start of 0."""
    if self.rise is not None:
      return value <= start + self.rise
    return start == 0 or (self.low or 0.0) * start <= value <= (self.high or math.inf) * start


DETECTORS = (
  Detector(
    "entropy",
    "the policy has stopped exploring",
    "a higher config.loss.clip_high, config.rollout.temperature or config.loss.entropy_coef",
    low=0.2,
  ),
  Detector(
    "entropy",
    "the policy is becoming random",
    "a lower config.optimizer.learning_rate or a higher config.loss.kl_coef",
    high=5.0,
  ),
  Detector(
    "response_tokens",
    "replies have another length than the run began with",
    "a lower config.optimizer.learning_rate or a higher config.loss.kl_coef",
    low=1 / 3,
    high=3.0,
  ),
  Detector(
    "searches",
    "the policy is learning not to search",
    "a higher config.loss.kl_coef, or config.switches.no_search_penalty if the recipe has it",
    low=1 / 3,
  ),
  # In healthy runs a trick's share rose by .10 at most (benchmarks/LOG.md).
  Detector(
    "unearned/",
    "more and more replies use a trick that earns reward without the work",
    "config.switches.guarded=True if the recipe has it (its README.md, 'Unearned reward'), and read such replies",
    rise=0.15,
  ),
)


@dataclasses.dataclass(frozen=True)
class Alarm:
  """A metric that is out of its range.

  Attributes:
    metric: its name.
    since: first of the steps in a row that are out of the range.
    step: the last of them.
    start: median of the run's FIRST steps that trained the policy.
    value: at `step`.
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
    moved = f"{self.metric} went from {self.start:.3g} to {self.value:.3g} (out of its range since step {self.since})"
    return f"{moved}: {self.detector.means}. Try {self.detector.cure}."


class Watch:
  """Which metrics of a run are out of their range.

  Example: `watch = Watch(earlier rows)`, then after each step `alarms = watch.see(row)`. A rollback after k steps asks
  for `alarm.step - alarm.since + 1 >= k`. After it, a new Watch sees the rows that are left.

  Args:
    rows: rows of metrics.jsonl, oldest first.
  """

  def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
    self._first: list[dict[str, float]] = []
    self._since: dict[tuple[Detector, str], int] = {}
    for row in rows:
      self.see(row)

  def see(self, row: Mapping[str, Any]) -> list[Alarm]:
    """The alarms after this step, in the table's order. A step that trained nothing has none and changes nothing.

    Args:
      row: the step's row, "step" included. A metric that it lacks, or that is not finite, stays as it was.
    """
    if not _trained(row):
      return []
    known = {name: value for name, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}
    if len(self._first) < FIRST:
      self._first.append(known)
      return []
    alarms = []
    for detector in DETECTORS:
      for name in filter(detector.about, known):
        starts = [one[name] for one in self._first if name in one]
        if not starts or detector.healthy(start := statistics.median_high(starts), known[name]):
          self._since.pop((detector, name), None)
          continue
        since = self._since.setdefault((detector, name), row["step"])
        if row["step"] - since + 1 >= detector.hold:
          alarms.append(Alarm(name, since, row["step"], start, known[name], detector))
    return alarms


def _trained(row: Mapping[str, Any]) -> bool:
  """Whether the step trained the policy. The others do not show how it is."""
  nothing = row.get("groups/trained") == 0 or row.get("episodes", -1) == row.get("unscorable")
  return bool(row["step"]) and "entropy" in row and not nothing
