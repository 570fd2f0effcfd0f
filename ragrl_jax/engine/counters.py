"""Counts and times of the engine's work."""

import dataclasses


@dataclasses.dataclass
class Counters:
  """What the engine did since `Engine.restart_counters`. Seconds are those of the thread that calls `Engine.step`."""

  decode_s: float = 0.0
  prefill_s: float = 0.0
  sampled_tokens: int = 0
  prefilled_tokens: int = 0
  shared_tokens: int = 0  # prompt tokens that were copied, not computed
  lane_steps: int = 0  # lanes × steps
  chunks: int = 0  # calls of `decode`
  extensions: int = 0  # calls of `extend`
  swapped_rows: int = 0  # rows moved to the host to make room

  @property
  def occupancy(self) -> float:
    """Share of lane steps that drew a token."""
    return self.sampled_tokens / self.lane_steps if self.lane_steps else 0.0
