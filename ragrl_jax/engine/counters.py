"""Counts and times of the engine's work."""

import dataclasses

from ragrl_jax.engine.lanes import Chunk


@dataclasses.dataclass
class Counters:
  """The engine's work since `Engine.restart_counters`. Seconds are those of the thread that calls `Engine.step`."""

  decode_s: float = 0.0
  prefill_s: float = 0.0
  sampled_tokens: int = 0
  prefilled_tokens: int = 0
  shared_tokens: int = 0  # prompt tokens that were copied, not computed
  lane_steps: int = 0  # lanes × steps
  drawing_steps: int = 0  # lane steps that sampled a token or more; exactly one token without drafts
  drafted_tokens: int = 0  # tokens that drafts proposed
  kept_tokens: int = 0  # drafted tokens that sampling also chose
  chunks: int = 0  # calls of `decode`
  extensions: int = 0  # calls of `extend`
  swapped_rows: int = 0  # rows moved to the host to make room

  def add_chunk(self, chunk: Chunk, replicas: int) -> None:
    """Counts what a call of `decode` did."""
    steps = chunk.steps.reshape(replicas, -1)
    # A replica runs until its longest lane is done. Its other lanes are idle for the rest of these steps.
    self.lane_steps += int(steps.max(axis=1).sum()) * steps.shape[1]
    self.drawing_steps += int(steps.sum())
    self.sampled_tokens += int(chunk.count.sum())
    self.drafted_tokens += int(chunk.drafted.sum())
    self.kept_tokens += int(chunk.kept.sum())
    self.chunks += 1

  @property
  def occupancy(self) -> float:
    """Share of the lane steps that sampled a token."""
    return self.drawing_steps / self.lane_steps if self.lane_steps else 0.0

  @property
  def tokens_per_step(self) -> float:
    """Mean number of tokens per lane step that sampled; 1 without drafts."""
    return self.sampled_tokens / self.drawing_steps if self.drawing_steps else 0.0

  @property
  def kept_share(self) -> float:
    """Share of the drafted tokens that sampling also chose."""
    return self.kept_tokens / self.drafted_tokens if self.drafted_tokens else 0.0
