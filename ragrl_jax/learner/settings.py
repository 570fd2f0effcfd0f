"""The learner's settings, derived from a run's settings by `from_config`.

The objective has the loss's settings and the others that an update reads. No setting has its default here.
"""

import dataclasses
from typing import Any

import jax

from ragrl_jax import settings as run_settings
from ragrl_jax.learner import row_layout
from ragrl_jax.models import attention, splash
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.settings import Rollout
from ragrl_jax.settings.learning import Advantage as AdvantageSettings, Critic, Learner, Loss, Optimizer

OBJECTIVES = ("policy", "sft")


@dataclasses.dataclass(frozen=True)
class OptimizerSettings(Optimizer):
  """config.optimizer for a run of a known length.

  The learning rate rises to its peak in `warmup_steps`, on a straight line from 0. After that it is "constant"; falls
  to final_share * learning_rate at `total_steps` ("cosine", "linear"); or is learning_rate * sqrt(n / step) with
  n = max(warmup_steps, 1) ("inverse_sqrt").

  Attributes:
    total_steps: optimiser steps of the run.
  """

  total_steps: int = run_settings.Settings.steps

  def rules(self) -> run_settings.Rules:
    yield from super().rules()
    yield (
      self.warmup_steps <= self.total_steps,
      f"config.optimizer.warmup_steps={self.warmup_steps}: it must lie between 0 and the run's {self.total_steps} "
      "steps.",
    )


@dataclasses.dataclass(frozen=True)
class CriticSettings:
  """config.critic, with an optimizer made from its learning rate and warm-up.

  Attributes:
    kind, clip, coef, alone_steps: as in config.critic.
    optimizer: of a separate critic, or of the value head of a shared critic.
  """

  kind: str = Critic.kind
  optimizer: OptimizerSettings = OptimizerSettings(learning_rate=Critic.learning_rate)
  clip: float | None = Critic.clip
  coef: float = Critic.coef
  alone_steps: int = Critic.alone_steps

  def __post_init__(self) -> None:
    # Each field is checked in its section. Relations between fields are checked for training only.
    if self.alone_steps and self.kind != "own":
      raise ValueError(
        f"config.critic.alone_steps={self.alone_steps} with kind={self.kind!r}: only a critic of kind 'own' can learn "
        "alone."
      )


@dataclasses.dataclass(frozen=True)
class Settings(Loss):
  """The objective and how it is computed: config.loss, and the fields below.

  Attributes:
    objective: "policy" (clipped surrogate) or "sft" (weighted log-likelihood; `Batch.advantages` holds the weights).
    norm: divisor of seq_mean_token_sum_norm in tokens; a config gives the longest row length, or its
      context if row lengths are chosen from the data.
    advantage: how rewards become advantages; None: the batches hold advantages already.
    critic: PPO's.
    temperature: the sampler's; the learner scores with the same one.
    logprob_chunk, max_nonfinite: as in config.learner.
  """

  objective: str = "policy"
  norm: float | None = None
  advantage: AdvantageSettings | None = None
  critic: CriticSettings = CriticSettings()
  temperature: float = Rollout.temperature
  logprob_chunk: int = Learner.logprob_chunk
  max_nonfinite: int = Learner.max_nonfinite

  def rules(self) -> run_settings.Rules:
    yield from super().rules()
    yield (self.objective in OBJECTIVES, f"objective={self.objective!r}: it must be one of {', '.join(OBJECTIVES)}.")
    yield (
      not (self.kl == "k1" and self.kl_in == "loss"),
      "config.loss.kl='k1': as a loss its gradient does not depend on the reference, so it pulls nowhere and only "
      "adds noise. Use 'k2' or 'k3', 'k1+' for k1's value with k2's gradient, or config.loss.kl_in='reward'.",
    )
    yield (
      self.aggregation != "seq_mean_token_sum_norm" or self.norm is not None,
      "config.loss.aggregation='seq_mean_token_sum_norm' needs norm, the tokens to divide by: rows of several "
      "lengths have no padded length in common.",
    )
    yield (
      self.kl_in != "reward" or self.kl == "none" or self.advantage is not None,
      "config.loss.kl_in='reward' needs advantages that come from the rewards: set config.advantage.",
    )
    yield (
      not self.teacher.in_reward or self.advantage is not None,
      "config.loss.teacher.kind='k1' is part of the reward, and there is none: use 'forward', 'reverse' or 'jsd'.",
    )
    yield (
      self.objective == "policy" or not self.teacher.itself,
      "config.loss.teacher.path='policy': in fine-tuning the policy cannot teach itself, because nothing is sampled. "
      "Name another model, or leave it empty.",
    )
    yield (
      self.objective == "policy" or not self.teacher.path or self.teacher.tokens == self.teacher.episodes == "all",
      f"config.loss.teacher.tokens={self.teacher.tokens!r}, episodes={self.teacher.episodes!r}: both must be 'all' in "
      "fine-tuning, whose transcripts have weights instead (config.sft.environment_weight).",
    )
    kind = self.advantage and self.advantage.kind
    yield (
      (kind == "gae") == (self.critic.kind != "none"),
      f"config.critic.kind={self.critic.kind!r} with config.advantage.kind={kind!r}: 'gae' needs a critic ('own' or "
      "'shared'), and nothing else does.",
    )

  @property
  def needs_reference(self) -> bool:
    """Whether the reference policy scores the batch."""
    return self.objective == "policy" and self.kl != "none"

  @property
  def steps(self) -> int:
    """Optimiser steps on one batch of episodes."""
    return self.epochs * self.minibatches

  @property
  def scores_old(self) -> bool:
    """Whether the old policy needs a forward pass. With a single step it is the current policy, so it does not."""
    return self.objective == "policy" and (self.steps > 1 or self._penalised)

  @property
  def scores_first(self) -> bool:
    """Whether advantages need scores: a critic's values, or a penalty in the reward."""
    return self.critic.kind != "none" or self._penalised

  @property
  def _penalised(self) -> bool:
    return (self.kl != "none" and self.kl_in == "reward") or self.teacher.in_reward


def from_config(run: run_settings.Settings, *, objective: str = "policy") -> Settings:
  """The learner's settings for a run. SFT takes the mean over weighted tokens, without KL or entropy bonus.

  Raises:
    ValueError: settings that contradict each other.
  """
  shared: dict[str, Any] = dict(logprob_chunk=run.learner.logprob_chunk, max_nonfinite=run.learner.max_nonfinite)
  if objective == "sft":
    return Settings(objective="sft", teacher=run.loss.teacher, **shared)
  if run.learner.share_prompts and row_layout.longest_row(run) > splash.LONGEST_SHARED:
    raise ValueError(
      f"config.learner.share_prompts=True with row_lengths={run.learner.row_lengths}: rows with shared beginnings have "
      f"at most {splash.LONGEST_SHARED} tokens, as the TPU's attention kernel takes them. Lower "
      "config.learner.row_lengths, or set config.learner.share_prompts=False."
    )
  if run.advantage.informs and not run.learner.share_prompts:
    raise ValueError(
      "config.advantage.credit='information' with config.learner.share_prompts=False: the gold answer is scored behind "
      "every turn, which is cheap only in rows that share beginnings. Set config.learner.share_prompts=True."
    )
  if run.loss.reference == "base" and not (run.model.lora.path or run.model.lora.rank):
    raise ValueError(
      "config.loss.reference='base' without adapters: the policy that the run starts from is the base. Leave it at "
      "'start', or train adapters (config.model.lora)."
    )
  critic = run.critic
  if critic.alone_steps >= (total := _updates(run)):
    raise ValueError(
      f"config.critic.alone_steps={critic.alone_steps}: the run has only {total} optimiser steps (steps · epochs · "
      "minibatches), so the policy would never learn. Lower it, or raise config.steps."
    )
  of_policy = optimizer_from_config(run)
  if critic.warmup_steps > of_policy.total_steps:
    raise ValueError(
      f"config.critic.warmup_steps={critic.warmup_steps}: it must lie between 0 and the run's {of_policy.total_steps} "
      "steps."
    )
  rates = dict(learning_rate=critic.learning_rate, warmup_steps=critic.warmup_steps)
  total_steps = of_policy.total_steps + critic.alone_steps
  critic_optimizer = dataclasses.replace(of_policy, kind="adamw", total_steps=total_steps, **rates)
  return Settings(
    objective=objective,
    norm=float(max(run.learner.row_lengths, default=run.rollout.context)),
    temperature=run.rollout.temperature,
    advantage=run.advantage,
    critic=CriticSettings(critic.kind, critic_optimizer, critic.clip, critic.coef, critic.alone_steps),
    **vars(run.loss),
    **shared,
  )


def sharing(
  run: run_settings.Settings, shape: DecoderConfig, mesh: jax.sharding.Mesh | None
) -> row_layout.Sharing | None:
  """How the rows of a run with these settings share beginnings on these devices (None: the default one)."""
  # A delta layer keeps two states: of the last token, and of the end of the shared beginning.
  deep = attention.platform(mesh) not in attention.KERNELS and not shape.traits.hybrid
  return row_layout.Sharing(deep) if run.learner.share_prompts else None


def optimizer_from_config(run: run_settings.Settings, *, total_steps: int | None = None) -> OptimizerSettings:
  """The optimiser's settings for a run of `total_steps` steps of the policy.

  If None, config.steps · epochs · minibatches, without those in which only the critic learns.
  """
  if total_steps is None:
    total_steps = max(1, _updates(run) - run.critic.alone_steps * (run.critic.kind == "own"))  # others are refused
  return OptimizerSettings(total_steps=total_steps, **vars(run.optimizer))


def _updates(run: run_settings.Settings) -> int:
  """The run's optimiser steps."""
  return run.steps * run.loss.epochs * run.loss.minibatches
