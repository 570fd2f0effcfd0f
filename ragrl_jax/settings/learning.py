"""Settings for learning: advantages, loss, critic, optimizer, updates, checkpoints and logs."""

import dataclasses

from ragrl_jax.core import aggregate
from ragrl_jax.core import kl as kl_lib
from ragrl_jax.settings.fields import Rules, Section, setting

# Advantages either compare an episode with the samples of the same prompt, or are sums along its tokens.
COMPARED = ("group_relative", "leave_one_out", "reinforce_plus_plus_baseline")
COUNTED = ("gae", "reinforce_plus_plus")


@dataclasses.dataclass(frozen=True)
class Advantage(Section):
  """How rewards become advantages (core/advantages.py)."""

  PATH = "advantage"

  # GRPO, RLOO, REINFORCE++ on the group, PPO (needs a critic), REINFORCE++
  kind: str = setting("group_relative", choices=(*COMPARED, *COUNTED))
  # "episode": every token has its episode's advantage; "turn": a turn is credited with its own and later rewards.
  # gae and reinforce_plus_plus credit each token by itself
  credit: str = setting("episode", choices=("episode", "turn"))
  std: str = setting("sample", choices=("sample", "population", "none"))  # group_relative: the divisor
  std_floor: float = setting(0.0, least=0)  # group_relative: smallest standard deviation to divide by
  eps: float = setting(1e-6, least=0)  # group_relative: added to the standard deviation
  gamma: float = setting(1.0, least=0, most=1)  # gae, reinforce_plus_plus: discount per trained token
  lam: float = setting(1.0, least=0, most=1)  # gae: trace per trained token
  whiten: bool = True  # gae: scale advantages to mean 0 and deviation 1 over the batch's trained tokens

  @property
  def compares(self) -> bool:
    """Whether an episode is compared with the samples of the same prompt."""
    return self.kind in COMPARED

  @property
  def whitens(self) -> bool:
    """Whether advantages have mean 0 and deviation 1 over the batch."""
    return self.kind.startswith("reinforce_plus_plus") or (self.kind == "gae" and self.whiten)


@dataclasses.dataclass(frozen=True)
class Loss(Section):
  """The policy's loss (core/losses.py)."""

  PATH = "loss"

  aggregation: str = setting("token_mean", choices=aggregate.AGGREGATIONS)  # how tokens are averaged
  clip_low: float = setting(0.2, least=0)  # the policy ratio is clipped at 1 - clip_low
  clip_high: float = setting(0.2, least=0)  # and at 1 + clip_high
  dual_clip: float | None = setting(None, above=1)  # upper bound of the ratio for tokens with negative advantage
  ratio: str = setting("token", choices=("token", "sequence"))  # "sequence": GSPO's ratio
  kl: str = setting("none", choices=("none", *kl_lib.ESTIMATORS))  # estimator of the penalty; "none": no penalty
  kl_in: str = setting("loss", choices=("loss", "reward"))  # whether the penalty is in the loss or in the reward
  kl_coef: float = setting(0.0, least=0)
  # whom the penalty pulls back to: the policy that the run starts from, or the model without its adapters
  reference: str = setting("start", choices=("start", "base"))
  # nats between the two log-probabilities beyond which k3 follows its tangent; None: e^gap everywhere, as published
  kl_tangent: float | None = setting(5.0, above=0)
  kl_target: float = setting(0.0, least=0)  # nats per token that kl_coef is steered to; 0: kl_coef is fixed
  entropy_coef: float = 0.0  # this times the mean entropy is subtracted from the loss
  # largest importance weight that corrects for the sampler's mismatch; None: no weights
  importance_cap: float | None = setting(None, least=1)
  epochs: int = setting(1, least=1)  # passes over one batch of episodes
  minibatches: int = setting(1, least=1)  # optimiser steps per pass, each on its own prompts

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.kl_coef == 0 or self.kl != "none",
      f"config.loss.kl_coef={self.kl_coef} with config.loss.kl='none': name an estimator ('k2', 'k3', …) or set the "
      "coefficient to 0.",
    )
    yield (
      self.kl_target == 0 or self.kl_coef > 0,
      f"config.loss.kl_target={self.kl_target} with config.loss.kl_coef={self.kl_coef}: the controller multiplies the "
      "coefficient, and 0 would stay 0. Set kl_coef above 0 and an estimator (config.loss.kl), or kl_target to 0.",
    )


@dataclasses.dataclass(frozen=True)
class Critic(Section):
  """The value function, which advantage.kind="gae" needs."""

  PATH = "critic"

  # "own": a second decoder that starts as a copy of the policy; "shared": a value head on the policy's trunk
  kind: str = setting("none", choices=("none", "own", "shared"))
  learning_rate: float = setting(1e-5, least=0)  # of AdamW; its other settings are those of config.optimizer
  warmup_steps: int = setting(0, least=0)  # optimiser steps
  clip: float | None = setting(0.5, least=0)  # largest change of a value in an update, in reward units; None: no clip
  coef: float = setting(0.5, least=0)  # shared critic: this times the value loss is added to the policy's loss
  alone_steps: int = setting(0, least=0)  # own critic: optimiser steps at the start that train only the critic


@dataclasses.dataclass(frozen=True)
class Reward(Section):
  """DAPO's soft penalty on long answers."""

  PATH = "reward"

  overlong_limit: int = setting(0, least=0)  # model tokens of an episode, where the penalty is 1; 0: no penalty
  overlong_buffer: int = setting(0, least=0)  # model tokens before the limit over which the penalty grows

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      not self.overlong_limit or 1 <= self.overlong_buffer <= self.overlong_limit,
      f"config.reward.overlong_buffer={self.overlong_buffer}: it must lie between 1 and overlong_limit="
      f"{self.overlong_limit}.",
    )


@dataclasses.dataclass(frozen=True)
class Optimizer(Section):
  """AdamW, or Muon for the hidden matrices and AdamW for the rest."""

  PATH = "optimizer"

  kind: str = setting("adamw", choices=("adamw", "muon"))
  learning_rate: float = setting(1e-6, least=0)  # the peak
  warmup_steps: int = setting(0, least=0)  # optimiser steps, from 0 on a straight line
  # after the warm-up; "cosine" and "linear" fall until the last step, "inverse_sqrt" suits a run whose end is not known
  schedule: str = setting("constant", choices=("constant", "cosine", "linear", "inverse_sqrt"))
  final_share: float = setting(0.1, least=0, most=1)  # cosine, linear: the last learning rate over the peak
  b1: float = setting(0.9, least=0, below=1)
  b2: float = setting(0.999, least=0, below=1)
  weight_decay: float = setting(0.01, least=0)  # on matrices and embeddings, never on norms and biases
  clip_norm: float = setting(1.0, least=0)  # largest global norm of the gradient; 0: no clipping
  muon_scale: float = setting(5.0, above=0)  # Muon's learning rate divided by AdamW's


@dataclasses.dataclass(frozen=True)
class Learner(Section):
  """How an update is computed."""

  PATH = "learner"

  micro_rows: int = setting(8, least=1)  # rows of one accumulation block
  row_lengths: tuple[int, ...] = ()  # T: tokens of a row; at most three lengths; (): chosen from the first step's data
  share_prompts: bool = False  # compute a group's prompt once per row; saves work where prompts are long
  logprob_chunk: int = setting(512, least=1)  # tokens whose logits a device holds at once
  max_nonfinite: int = setting(3, least=1)  # skipped steps in succession before the run stops

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    lengths = self.row_lengths
    yield (
      isinstance(lengths, tuple)
      and len(set(lengths)) == len(lengths) <= 3
      and all(type(x) is int and x >= 2 for x in lengths),
      f"config.learner.row_lengths={lengths}: one to three different lengths in tokens, at least 2 each, because "
      "each is compiled; or (), and they are chosen from the data.",
    )


@dataclasses.dataclass(frozen=True)
class Mesh(Section):
  """Sizes of the device mesh. One of them may be -1: all remaining devices."""

  PATH = "mesh"

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  sequence: int = 1

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    sizes = dataclasses.asdict(self)
    yield (
      all(size >= 1 or size == -1 for size in sizes.values()) and list(sizes.values()).count(-1) <= 1,
      f"config.mesh={sizes}: sizes must be at least 1, and one may be -1 for the remaining devices.",
    )


@dataclasses.dataclass(frozen=True)
class Checkpoint(Section):
  """When a run is saved."""

  PATH = "checkpoint"

  every: int = setting(50, least=1)  # steps
  keep: int = setting(2, least=1)  # newest checkpoints that are kept


@dataclasses.dataclass(frozen=True)
class Evaluate(Section):
  """Held-out questions during training."""

  PATH = "evaluate"

  every: int = setting(0, least=0)  # steps; 0: only at the end
  examples: int = setting(200, least=0)  # questions; 0: all
  batch: int = setting(0, least=0)  # episodes played at a time; 0: four per cache row; 1: latency is measured


@dataclasses.dataclass(frozen=True)
class Log(Section):
  """Logs of training."""

  PATH = "log"

  tensorboard: bool = True
  wandb: bool = False  # offline, unless the environment variable WANDB_MODE says otherwise
  trackio: bool = False  # on this machine, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set
  mlflow: bool = False  # in the run's folder, unless MLFLOW_TRACKING_URI is set


@dataclasses.dataclass(frozen=True)
class SFT(Section):
  """Supervised fine-tuning."""

  PATH = "sft"

  # weight of the tokens of prompts and search results; the model's tokens have weight 1
  environment_weight: float = setting(0.3, least=0)
  batch: int = setting(0, least=0)  # transcripts per step; 0: as many as fit into one block of rows
  epochs: int = setting(0, least=0)  # passes over the transcripts, instead of config.steps; needs `batch`
  warmup_share: float = setting(
    0.0, least=0, most=1
  )  # with `epochs`: share of the steps, instead of optimizer.warmup_steps
  max_tokens: int = setting(0, least=0)  # longer transcripts are cut at the end; 0: no limit

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      bool(self.batch) or not self.epochs,
      f"config.sft.epochs={self.epochs} with config.sft.batch=0: the number of steps in an epoch depends on the batch. "
      "Set batch, or leave epochs at 0 and set config.steps.",
    )
    yield (
      bool(self.epochs) or not self.warmup_share,
      f"config.sft.warmup_share={self.warmup_share} without config.sft.epochs: set epochs, or "
      "config.optimizer.warmup_steps.",
    )
