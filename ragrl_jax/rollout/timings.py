"""Timings of a rollout: the time of each part, and the engine's counters."""

import dataclasses
import time

from ragrl_jax.engine.lanes import Counters


@dataclasses.dataclass
class Timings:
  """Where a run's time went. Seconds are those of the thread that dispatches the programs.

  Attributes:
    seconds: the whole run.
    wait_s: no conversation had tokens to sample, because of searches or the host.
    judge_wait_s: no conversation had tokens to sample, because of judges alone.
    beside_s: no conversation had tokens to sample, and other work was done.
    episodes, failed: number of ended episodes, and of those that a failed tool ended.
    started: start of the run, by `time.perf_counter`.
  """

  seconds: float = 0.0
  wait_s: float = 0.0
  judge_wait_s: float = 0.0
  beside_s: float = 0.0
  episodes: int = 0
  failed: int = 0
  engine: Counters = dataclasses.field(default_factory=Counters)
  started: float = dataclasses.field(default_factory=time.perf_counter)

  @property
  def tokens_per_s(self) -> float:
    """Sampled tokens per second, up to now or to the end of the run."""
    # `seconds` is written at the end of the run; until then the clock is read.
    seconds = self.seconds or time.perf_counter() - self.started
    return self.engine.sampled_tokens / seconds if seconds else 0.0

  def add(self, other: "Timings") -> None:
    """Adds another run's numbers to these."""
    # Every field is a sum, except the engine's counters, which are added field by field, and the time of the start.
    for total, part in ((self, other), (self.engine, other.engine)):
      for field in dataclasses.fields(total):
        if field.name not in ("engine", "started"):
          setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))

  def metrics(self) -> dict[str, float]:
    """Flat numbers for the step report."""
    return {
      "rollout_s": self.seconds,
      "decode_s": self.engine.decode_s,
      "prefill_s": self.engine.prefill_s,
      "tool_wait_s": self.wait_s + self.judge_wait_s,
      "beside_s": self.beside_s,
      "sampled_tokens": self.engine.sampled_tokens,
      "prefilled_tokens": self.engine.prefilled_tokens,
      "prefill_filled": self.engine.prefill_filled,
      "shared_tokens": self.engine.shared_tokens,
      "lane_occupancy": self.engine.occupancy,
      "tokens_per_step": self.engine.tokens_per_step,
      "drafts_kept": self.engine.kept_share,
      "tokens_per_s": self.tokens_per_s,
      "episodes": self.episodes,
      "episodes_failed": self.failed,
    }
