"""What the engine did, in numbers."""

import dataclasses


@dataclasses.dataclass
class Counters:
  """What the engine did, since the caller last made new ones. Seconds are the dispatching thread's."""

  decode_s: float = 0.0
  prefill_s: float = 0.0
  sampled_tokens: int = 0
  prefilled_tokens: int = 0
  shared_tokens: int = 0  # prompt tokens that were copied, not computed
  lane_steps: int = 0  # lanes × steps
  chunks: int = 0
  extensions: int = 0
  lent_rows: int = 0

  @property
  def occupancy(self) -> float:
    """Share of lane steps that drew a token."""
    return self.sampled_tokens / self.lane_steps if self.lane_steps else 0.0
