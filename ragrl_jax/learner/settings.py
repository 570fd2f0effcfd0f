"""What the learner has to know, checked once. `from_config` is the only place that sees a ConfigDict."""

import dataclasses

import ml_collections

from ragrl_jax.core import kl, losses

OBJECTIVES = ("policy", "sft")
# Compared with the samples of the same prompt; or counted along the trajectory.
COMPARED = ("group_relative", "leave_one_out", "reinforce_plus_plus_baseline")
COUNTED = ("gae", "reinforce_plus_plus")
CREDITS = ("episode", "turn")
CRITICS = ("none", "own", "shared")
PLACES = ("loss", "reward")
SCHEDULES = ("constant", "cosine", "inverse_sqrt")
OPTIMIZERS = ("adamw", "muon")


def _one_of(name, value, allowed):
  if value not in allowed:
    raise ValueError(f"{name}={value!r}: it must be one of {', '.join(allowed)}.")


@dataclasses.dataclass(frozen=True)
class AdvantageSettings:
  """How rewards become advantages.

  Attributes:
    kind: "group_relative" (GRPO), "leave_one_out" (RLOO), "reinforce_plus_plus" (returns, whitened over the batch),
      "reinforce_plus_plus_baseline" (centred on the group, then whitened), or "gae" (needs a critic).
    credit: "episode": every token has its episode's advantage; "turn": a turn answers for its own and later rewards.
      What is counted along the trajectory credits each token by itself.
    std, std_floor, eps: of group_relative, see `core.advantages`.
    gamma, lam: discount and trace a trained token, of reinforce_plus_plus and gae.
    whiten: gae's advantages to mean 0 and deviation 1 over the batch's trained tokens.
  """

  kind: str = "group_relative"
  credit: str = "episode"
  std: str = "sample"
  std_floor: float = 0.0
  eps: float = 1e-6
  gamma: float = 1.0
  lam: float = 1.0
  whiten: bool = True

  def __post_init__(self):
    _one_of("config.advantage.kind", self.kind, COMPARED + COUNTED)
    _one_of("config.advantage.credit", self.credit, CREDITS)
    for name in ("gamma", "lam"):
      if not 0 <= getattr(self, name) <= 1:
        raise ValueError(f"config.advantage.{name}={getattr(self, name)}: it must lie between 0 and 1.")

  @property
  def compares(self) -> bool:
    """Whether episodes are compared with others of their group."""
    return self.kind in COMPARED

  @property
  def whitens(self) -> bool:
    """Whether advantages are normalised over the batch."""
    return self.kind.startswith("reinforce_plus_plus") or (self.kind == "gae" and self.whiten)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """AdamW, or Muon for the hidden matrices and AdamW for the rest.

  Attributes:
    learning_rate: the peak, after `warmup_steps` on a straight line from 0.
    schedule: "constant"; "cosine" down to final_share * learning_rate at `total_steps`; or, for a run whose end is not
      known, "inverse_sqrt": learning_rate * sqrt(n / step) after n = max(warmup_steps, 1) steps.
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
        f"{self.total_steps} steps."
      )


@dataclasses.dataclass(frozen=True)
class CriticSettings:
  """PPO's critic.

  Attributes:
    kind: "none"; "own": a decoder of its own that starts as the policy's copy; "shared": a value head on the policy's
      trunk, which then learns from both losses.
    optimizer: its own; where the trunk is shared, the head's.
    clip: how far a value may move from the old one in an update, in reward units; None for no clip.
    coef: times the value loss is added to the policy's, where the trunk is shared.
    alone_steps: optimiser steps at the start in which only the critic learns; of an own critic.
  """

  kind: str = "none"
  optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5)
  clip: float | None = 0.5
  coef: float = 0.5
  alone_steps: int = 0

  def __post_init__(self):
    _one_of("config.critic.kind", self.kind, CRITICS)
    for name in ("coef", "alone_steps"):
      if getattr(self, name) < 0:
        raise ValueError(f"config.critic.{name}={getattr(self, name)}: it must be at least 0.")
    if self.alone_steps and self.kind != "own":
      raise ValueError(
        f"config.critic.alone_steps={self.alone_steps} with kind={self.kind!r}: only an own critic can learn alone."
      )


@dataclasses.dataclass(frozen=True)
class Settings:
  """The objective and how it is computed.

  Attributes:
    objective: "policy" (clipped surrogate) or "sft" (weighted log-likelihood; `Batch.advantages` holds the weights).
    aggregation, clip_low, clip_high, dual_clip, ratio: as for `core.losses.policy_loss`.
    norm: divisor of seq_mean_token_sum_norm in tokens; a config gives the longest row length.
    kl: an estimator's name puts kl_coef times the penalty into the loss or the reward; "none".
    kl_in: "loss" or "reward".
    kl_tangent: |log-gap| from which k3 is continued by its tangent.
    kl_target: nats a token that the coefficient is steered to over kl_horizon sequences; 0 keeps it fixed.
    entropy_coef: times the mean entropy is taken off the loss.
    importance_cap: the largest weight that corrects a token for the sampler's mismatch; None for no weights.
    epochs: passes over one batch of episodes.
    minibatches: optimiser steps in one pass, each on its own share of the prompts.
    advantage: how rewards become advantages; None: the batches hold advantages already.
    critic: PPO's.
    temperature: the sampler's; the learner scores with the same one (greedy samplers are scored at 1).
    logprob_chunk: tokens whose logits a device holds at once.
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
  kl_in: str = "loss"
  kl_tangent: float = 5.0
  kl_target: float = 0.0
  kl_horizon: int = 10_000
  entropy_coef: float = 0.0
  importance_cap: float | None = None
  epochs: int = 1
  minibatches: int = 1
  advantage: AdvantageSettings | None = None
  critic: CriticSettings = CriticSettings()
  temperature: float = 1.0
  logprob_chunk: int = 512
  max_nonfinite: int = 3

  def __post_init__(self):
    _one_of("objective", self.objective, OBJECTIVES)
    _one_of("config.loss.aggregation", self.aggregation, losses.AGGREGATIONS)
    _one_of("config.loss.kl", self.kl, ("none", *kl.ESTIMATORS))
    _one_of("config.loss.kl_in", self.kl_in, PLACES)
    if self.kl == "k1" and self.kl_in == "loss":
      raise ValueError(
        "config.loss.kl='k1': as a loss its gradient does not depend on the reference, so it pulls nowhere and only "
        "adds noise. Use 'k2' or 'k3', 'k1+' for k1's value with k2's gradient, or config.loss.kl_in='reward'."
      )
    for name in ("epochs", "minibatches", "kl_horizon", "logprob_chunk", "max_nonfinite"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name}={getattr(self, name)}: it must be at least 1 (config.loss, config.learner).")
    for name in ("kl_coef", "kl_target"):
      if getattr(self, name) < 0:
        raise ValueError(f"config.loss.{name}={getattr(self, name)}: it must be at least 0.")
    if self.aggregation == "seq_mean_token_sum_norm" and self.norm is None:
      raise ValueError(
        "config.loss.aggregation='seq_mean_token_sum_norm' needs norm, the tokens to divide by: rows of several "
        "lengths have no padded length in common."
      )
    if self.kl_in == "reward" and self.kl != "none" and self.advantage is None:
      raise ValueError("config.loss.kl_in='reward' needs advantages that come from the rewards: set config.advantage.")
    wants = self.advantage is not None and self.advantage.kind == "gae"
    if wants != (self.critic.kind != "none"):
      raise ValueError(
        f"config.critic.kind={self.critic.kind!r} with config.advantage.kind="
        f"{self.advantage and self.advantage.kind!r}: 'gae' needs a critic ('own' or 'shared'), and nothing else does."
      )

  @property
  def needs_reference(self) -> bool:
    """Whether a KL term needs the reference model's log-probabilities."""
    return self.objective == "policy" and self.kl != "none"

  @property
  def steps(self) -> int:
    """Optimiser steps on one batch of episodes."""
    return self.epochs * self.minibatches

  @property
  def scores_old(self) -> bool:
    """Whether the old policy takes a forward pass: with a single step it is the current one, and known for nothing."""
    return self.objective == "policy" and (self.steps > 1 or (self.kl != "none" and self.kl_in == "reward"))


def from_config(config: ml_collections.ConfigDict, *, objective: str = "policy") -> Settings:
  """The learner's settings of a run; for SFT the mean over weighted tokens, without KL or entropy bonus."""
  shared = dict(logprob_chunk=config.learner.logprob_chunk, max_nonfinite=config.learner.max_nonfinite)
  if objective == "sft":
    return Settings(objective="sft", **shared)
  critic = config.critic
  steps = config.steps * config.loss.epochs * config.loss.minibatches
  made = CriticSettings(
    kind=critic.kind,
    clip=critic.clip,
    coef=critic.coef,
    alone_steps=critic.alone_steps,
    optimizer=dataclasses.replace(
      optimizer_from_config(config, total_steps=steps),
      kind="adamw",
      learning_rate=critic.learning_rate,
      warmup_steps=critic.warmup_steps,
    ),
  )
  return Settings(
    objective=objective,
    norm=float(max(config.learner.row_lengths)),
    temperature=config.rollout.temperature or 1.0,
    advantage=AdvantageSettings(**config.advantage.to_dict()),
    critic=made,
    **config.loss.to_dict(),
    **shared,
  )


def optimizer_from_config(config: ml_collections.ConfigDict, *, total_steps: int | None = None) -> OptimizerSettings:
  """The optimiser's settings of a run of `total_steps` steps (config.steps · epochs · minibatches if None)."""
  if total_steps is None:
    total_steps = config.steps * config.loss.epochs * config.loss.minibatches
  return OptimizerSettings(total_steps=total_steps, **config.optimizer.to_dict())
