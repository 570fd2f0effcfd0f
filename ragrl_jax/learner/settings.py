"""What the learner has to know, checked once. `from_config` is the only place that sees a ConfigDict."""

import dataclasses

import ml_collections

from ragrl_jax.core import kl, losses

OBJECTIVES = ("policy", "sft")
ADVANTAGES = ("group_relative", "leave_one_out")
SCHEDULES = ("constant", "cosine")
OPTIMIZERS = ("adamw", "muon")


@dataclasses.dataclass(frozen=True)
class Settings:
  """The objective and how it is computed.

  Attributes:
    objective: "policy" (clipped surrogate) or "sft" (weighted log-likelihood; `Batch.advantages` holds the weights).
    aggregation, clip_low, clip_high, dual_clip, ratio: as for `core.losses.policy_loss`.
    norm: divisor of seq_mean_token_sum_norm in tokens; a config gives the longest row length.
    kl: an estimator's name puts kl_coef times the penalty into the loss; "none".
    kl_tangent: |log-gap| from which k3 is continued by its tangent.
    entropy_coef: times the mean entropy is taken off the loss.
    updates_per_batch: optimiser steps on one batch of episodes.
    temperature: the sampler's; the learner scores with the same one (greedy samplers are scored at 1).
    logprob_chunk: tokens whose logits exist at once.
    max_nonfinite: skipped steps in a row before the run stops.
  """

  objective: str = "policy"
  aggregation: str = "token_mean"
  clip_low: float = 0.2
  clip_high: float = 0.2
  dual_clip: float | None = None
  ratio: str = "token"
  norm: float | None = None
  kl: str = "none"
  kl_coef: float = 0.0
  kl_tangent: float = 5.0
  entropy_coef: float = 0.0
  updates_per_batch: int = 1
  temperature: float = 1.0
  logprob_chunk: int = 512
  max_nonfinite: int = 3

  def __post_init__(self):
    _one_of("objective", self.objective, OBJECTIVES)
    _one_of("config.loss.aggregation", self.aggregation, losses.AGGREGATIONS)
    _one_of("config.loss.kl", self.kl, ("none", *kl.ESTIMATORS))
    if self.kl == "k1":
      raise ValueError(
        "config.loss.kl='k1': as a loss its gradient does not depend on the reference, so it pulls nowhere and only "
        "adds noise. Use 'k2' or 'k3', or 'k1+' for k1's value with k2's gradient.")
    for name, least in (("updates_per_batch", 1), ("logprob_chunk", 1), ("max_nonfinite", 1)):
      if getattr(self, name) < least:
        raise ValueError(f"{name}={getattr(self, name)}: it must be at least {least} (config.loss, config.learner).")
    if self.aggregation == "seq_mean_token_sum_norm" and self.norm is None:
      raise ValueError(
        "config.loss.aggregation='seq_mean_token_sum_norm' needs norm, the tokens to divide by: rows of several "
        "lengths have no padded length in common.")
    if self.kl_coef < 0:
      raise ValueError(f"config.loss.kl_coef={self.kl_coef}: it must be at least 0.")

  @property
  def needs_reference(self) -> bool:
    return self.objective == "policy" and self.kl != "none"

  @property
  def on_policy(self) -> bool:
    """One step a batch: the old policy is the current one, and no extra forward pass is needed to know it."""
    return self.updates_per_batch == 1


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """AdamW, or Muon for the hidden matrices and AdamW for the rest.

  Attributes:
    learning_rate: the peak, after `warmup_steps` on a straight line from 0.
    schedule: "constant", or "cosine" down to final_share * learning_rate at `total_steps`.
    clip_norm: the accumulated gradient is scaled down to this global norm; 0 for no clipping.
    weight_decay: on matrices and embeddings; never on norms and biases.
    muon_scale: Muon's learning rate over AdamW's.
  """

  kind: str = "adamw"
  learning_rate: float = 1e-6
  warmup_steps: int = 0
  schedule: str = "constant"
  final_share: float = 0.1
  total_steps: int = 100
  b1: float = 0.9
  b2: float = 0.999
  weight_decay: float = 0.01
  clip_norm: float = 1.0
  muon_scale: float = 5.0

  def __post_init__(self):
    _one_of("config.optimizer.kind", self.kind, OPTIMIZERS)
    _one_of("config.optimizer.schedule", self.schedule, SCHEDULES)
    if not 0 <= self.warmup_steps <= self.total_steps:
      raise ValueError(
        f"config.optimizer.warmup_steps={self.warmup_steps}: it must lie between 0 and the run's "
        f"{self.total_steps} steps.")


def _one_of(name, value, allowed):
  if value not in allowed:
    raise ValueError(f"{name}={value!r}: it must be one of {', '.join(allowed)}.")


def from_config(config: ml_collections.ConfigDict, *, objective: str = "policy") -> Settings:
  """The learner's settings of a run; for SFT the mean over weighted tokens, without KL or entropy bonus."""
  temperature = config.rollout.temperature or 1.0
  shared = dict(logprob_chunk=config.learner.logprob_chunk, max_nonfinite=config.learner.max_nonfinite)
  if objective == "sft":
    return Settings(objective="sft", **shared)
  loss = config.loss
  return Settings(
    objective=objective, aggregation=loss.aggregation, clip_low=loss.clip_low, clip_high=loss.clip_high,
    dual_clip=loss.dual_clip, ratio=loss.ratio, norm=float(max(config.learner.row_lengths)), kl=loss.kl,
    kl_coef=loss.kl_coef, entropy_coef=loss.entropy_coef, updates_per_batch=loss.updates_per_batch,
    temperature=temperature, **shared)


def optimizer_from_config(config: ml_collections.ConfigDict, *, total_steps: int | None = None) -> OptimizerSettings:
  """The optimiser's settings of a run of `total_steps` optimiser steps (config.steps · updates_per_batch if None)."""
  if total_steps is None:
    total_steps = config.steps * config.loss.updates_per_batch
  o = config.optimizer
  return OptimizerSettings(
    kind=o.kind, learning_rate=o.learning_rate, warmup_steps=o.warmup_steps, schedule=o.schedule,
    final_share=o.final_share, total_steps=total_steps, b1=o.b1, b2=o.b2, weight_decay=o.weight_decay,
    clip_norm=o.clip_norm, muon_scale=o.muon_scale)
