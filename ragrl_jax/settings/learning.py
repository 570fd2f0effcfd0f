"""Settings for learning: advantages, loss, critic, optimizer, updates, checkpoints and logs."""

import dataclasses
from typing import Any

from ragrl_jax.core import kl, losses, masked
from ragrl_jax.settings.fields import Rules, Section, setting

# Advantages either compare an episode with the samples of the same prompt, or are sums along its tokens.
COMPARED = ("group_relative", "leave_one_out", "reinforce_plus_plus_baseline")
COUNTED = ("gae", "reinforce_plus_plus")
ALSO_CALLED = {"grpo": "group_relative", "rloo": "leave_one_out", "ppo": "gae"}


@dataclasses.dataclass(frozen=True)
class Advantage(Section, path="advantage"):
  """How rewards become advantages (core/advantages.py)."""

  kind: str = setting(
    "group_relative",
    "GRPO, RLOO, REINFORCE++ on the group, PPO (needs a critic), REINFORCE++",
    choices=(*COMPARED, *COUNTED),
  )
  credit: str = setting(
    "episode",
    "episode: every token has its episode's advantage; turn: a turn is credited with its own and later rewards; "
    "information: also with the rise of the gold answer's mean log-probability, in nats per token (IGPO); gae and "
    "reinforce_plus_plus credit each token by itself",
    choices=("episode", "turn", "information"),
  )
  gain_over: str = setting(
    "before",
    "credit=information: what the log-probability behind a turn's results is compared with: that before the turn, or "
    "that behind results of another question (IG-Search)",
    choices=("before", "random"),
  )
  gain_lead: str = setting("<answer> ", "credit=information: the text between a turn's results and the gold answer")
  std: str = setting("sample", "group_relative: what to divide by", choices=("sample", "population", "none"))
  std_floor: float = setting(0.0, "group_relative: smallest standard deviation to divide by", least=0)
  eps: float = setting(1e-6, "group_relative: added to the standard deviation", least=0)
  gamma: float = setting(1.0, "gae, reinforce_plus_plus: discount per trained token", least=0, most=1)
  lam: float = setting(1.0, "gae: trace per trained token", least=0, most=1)
  whiten: bool = setting(True, "gae: scale advantages to mean 0 and deviation 1 over the batch's trained tokens")

  def rules(self) -> Rules:
    changed = [name for name in ("gain_over", "gain_lead") if getattr(self, name) != getattr(type(self), name)]
    yield (
      self.informs or not changed,
      f"config.advantage.credit={self.credit!r}, but {', '.join(changed)} is set: no gain is measured. Set "
      "credit='information'.",
    )

  def refusal(self, name: str, value: Any, must: str) -> str:
    """See `Checked.refusal`; an algorithm's name as its kind gets the kind that it has here."""
    here = ALSO_CALLED.get(str(value).lower()) if name == "kind" else None
    return super().refusal(name, value, f"{here!r}, which is {value.upper()}" if here else must)

  @property
  def compares(self) -> bool:
    """Whether an episode is compared with the samples of the same prompt."""
    return self.kind in COMPARED

  @property
  def informs(self) -> bool:
    """Whether turns are credited with information gains."""
    return self.credit == "information"

  @property
  def whitens(self) -> bool:
    """Whether advantages have mean 0 and deviation 1 over the batch."""
    return self.kind.startswith("reinforce_plus_plus") or (self.kind == "gae" and self.whiten)


@dataclasses.dataclass(frozen=True)
class Teacher(Section, path="loss.teacher"):
  """A model to whose word on the policy's own tokens the policy is pulled (learner/teacher.py)."""

  path: str = setting(
    "",
    "folder or Hugging Face name of a model with the policy's tokenizer; policy: the policy at the start of the "
    "update, which is told what `tells` says; http(s)://host/v1: a server that scores given ids, as vLLM does; empty: "
    "no teacher",
  )
  model: str = setting("", "path=http(s)://…: the model's name at the server")
  key_variable: str = setting("", "path=http(s)://…: environment variable with the key, never stored; empty: no key")
  tells: str = setting(
    "passages",
    "path=policy: what is added to its prompt: the question's supporting passages, or its answer",
    choices=("passages", "answer"),
  )
  kind: str = setting(
    "reverse",
    "reverse: KL(policy || teacher) over the whole vocabulary; forward: KL(teacher || policy); jsd: between both; k1: "
    "of the sampled token, subtracted from its reward",
    choices=("reverse", "forward", "jsd", "k1"),
  )
  beta: float = setting(0.5, "jsd: the teacher's share of the mixture (core/kl.py)", above=0, below=1)
  tokens: str = setting(
    "all",
    "the model's tokens that are taught; queries: what it searched for, answers: its answer, thought: all others",
    choices=("all", "thought", "queries", "answers"),
  )
  episodes: str = setting("all", "failed: only those whose outcome is 0 (DGPO)", choices=("all", "failed"))
  alone: bool = setting(False, "the term is the whole loss: rewards, KL and entropy are measured, and teach nothing")
  coef: float = setting(1.0, "weight of the term, at the first step", least=0)
  final_coef: float | None = setting(None, "its weight from `final_step` on, on a straight line; None: coef", least=0)
  final_step: int = setting(0, "0: the run's last step", unit="steps", least=0)

  @property
  def itself(self) -> bool:
    """Whether the policy teaches itself."""
    return self.path == "policy"

  @property
  def remote(self) -> bool:
    """Whether the teacher is behind a server."""
    return "://" in self.path

  @property
  def local(self) -> bool:
    """Whether the teacher is another model, in this process."""
    return bool(self.path) and not self.itself and not self.remote

  @property
  def in_loss(self) -> bool:
    """Whether the term is a divergence over the whole vocabulary, in the loss."""
    return bool(self.path) and self.kind != "k1"

  @property
  def in_reward(self) -> bool:
    """Whether the term is subtracted from the rewards of tokens."""
    return bool(self.path) and self.kind == "k1"

  @property
  def mixture(self) -> float:
    """beta of `core.kl.divergence_terms`."""
    return dict(forward=0.0, reverse=1.0).get(self.kind, self.beta)

  def rules(self) -> Rules:
    others = [field for field in dataclasses.fields(self) if field.name != "path"]
    changed = [field.name for field in others if getattr(self, field.name) != field.default]
    yield (
      bool(self.path) or not changed,
      f"config.loss.teacher.path is empty, but {', '.join(changed)} is set: name the teacher, a model's folder or its "
      "name on the hub, or 'policy'.",
    )
    needs = {
      "beta": (self.kind == "jsd", "kind='jsd'"),
      "tells": (self.itself, "path='policy'"),
      "final_step": (self.final_coef is not None, "final_coef"),
      **dict.fromkeys(("model", "key_variable"), (self.remote, "a server's address as path")),
    }
    for name in changed:
      has, need = needs.get(name, (True, ""))
      yield (
        has or not self.path,
        f"config.loss.teacher.{name}={getattr(self, name)!r} with path={self.path!r}, kind={self.kind!r}: it has no "
        f"effect without {need}. Set that, or leave {name} out.",
      )
    yield (
      not self.remote or (self.kind == "k1" and bool(self.model)),
      f"config.loss.teacher.path={self.path!r} with kind={self.kind!r}, model={self.model!r}: a server says the "
      "log-probabilities of sampled tokens only. Set kind='k1', and model to its name there.",
    )
    yield (
      not self.alone or self.kind != "k1",
      "config.loss.teacher.alone=True with kind='k1': k1 is part of the reward, which then teaches nothing. Use "
      "'reverse', 'forward' or 'jsd'.",
    )


@dataclasses.dataclass(frozen=True)
class Loss(Section, path="loss"):
  """The policy's loss (core/losses.py)."""

  aggregation: str = setting("token_mean", "how tokens are averaged", choices=masked.AGGREGATIONS)
  clip_low: float = setting(0.2, "the policy ratio is clipped at 1 - clip_low", least=0)
  clip_high: float = setting(0.2, "the policy ratio is clipped at 1 + clip_high", least=0)
  dual_clip: float | None = setting(None, "upper bound of the ratio for tokens with negative advantage", above=1)
  surrogate: str = setting(
    "clipped",
    "clipped: PPO's, without a gradient where the clip acts; cispo: the clipped ratio is a constant weight of the "
    "token's log-probability, so every token keeps a gradient",
    choices=losses.SURROGATES,
  )
  ratio: str = setting("token", "the clipped ratio; sequence: GSPO's", choices=("token", "sequence"))
  kl: str = setting("none", "estimator of the penalty; none: no penalty", choices=("none", *kl.ESTIMATORS))
  kl_in: str = setting("loss", "where the penalty is added", choices=("loss", "reward"))
  kl_corrected: bool = setting(
    False,
    "k2, k1+ and k3+ in the loss: weigh each token's estimate by its ratio to the policy before the batch's updates",
  )
  kl_coef: float = setting(0.0, "weight of the penalty", least=0)
  reference: str = setting(
    "start",
    "whom the penalty pulls back to: the policy that the run starts from, or the model without its adapters",
    choices=("start", "base"),
  )
  kl_tangent: float | None = setting(
    5.0,
    "gap of the log-probabilities beyond which k3 follows its tangent; None: e^gap everywhere, as published",
    unit="nats",
    above=0,
  )
  kl_target: float = setting(0.0, "the KL that kl_coef is steered to; 0: it is fixed", unit="nats per token", least=0)
  entropy_coef: float = setting(0.0, "this times the mean entropy is subtracted from the loss")
  mask_truncated: bool = setting(
    False, "episodes that ran out of tokens count in their groups, but none of their tokens is trained (DAPO's filter)"
  )
  llds_coef: float = setting(
    0.0,
    "this times the mean fall of log-probability is added, of tokens with advantage >= 0 in turns that became less "
    "likely (LLDS)",
    least=0,
  )
  importance_cap: float | None = setting(
    None, "largest importance weight that corrects for the sampler's mismatch; None: no weights", least=1
  )
  importance_floor: float | None = setting(
    None,
    "tokens with an importance weight below it, or above importance_cap, are left out (IcePop); None: none is, and "
    "larger weights are the cap",
    least=0,
    most=1,
  )
  sequence_low: float | None = setting(
    None,
    "sequences are left out whose geometric mean of the tokens' probability over that at sampling is below it",
    above=0,
    most=1,
  )
  sequence_high: float | None = setting(
    None,
    "sequences are left out whose geometric mean of the tokens' probability over that at sampling is above it",
    least=1,
  )
  max_fall: float | None = setting(
    None,
    "tokens without a positive advantage are left out once they are less likely than at sampling by more (DPPO)",
    unit="probability",
    above=0,
    most=1,
  )
  max_rise: float | None = setting(
    None,
    "tokens with a positive advantage are left out once they are more likely than at sampling by more (DPPO)",
    unit="probability",
    above=0,
    most=1,
  )
  epochs: int = setting(1, "passes over one batch of episodes", unit="passes", least=1)
  minibatches: int = setting(1, "optimiser steps per pass, each on its own prompts", unit="steps", least=1)
  teacher: Teacher = Teacher()

  @property
  def masks_sequences(self) -> bool:
    """Whether whole sequences may be left out."""
    return self.sequence_low is not None or self.sequence_high is not None

  @property
  def masks_tokens(self) -> bool:
    """Whether tokens may be left out because they moved since they were sampled."""
    return self.max_fall is not None or self.max_rise is not None

  def rules(self) -> Rules:
    yield (
      self.surrogate != "cispo" or self.dual_clip is None,
      f"config.loss.dual_clip={self.dual_clip} with config.loss.surrogate='cispo': its ratio is clipped whatever the "
      "advantage's sign. Set dual_clip to None, or surrogate to 'clipped'.",
    )
    yield (
      not self.kl_corrected or (self.kl in kl.UNBIASED and self.kl_in == "loss"),
      f"config.loss.kl_corrected=True with kl={self.kl!r} in the {self.kl_in}: the ratio corrects a penalty in the "
      "loss with the KL's gradient, 'k3+', 'k1+' or 'k2'. Name one, with kl_in='loss', or set kl_corrected to False.",
    )
    yield (
      self.llds_coef == 0 or self.epochs * self.minibatches > 1,
      f"config.loss.llds_coef={self.llds_coef} with one optimiser step per batch: nothing has fallen before it. Raise "
      "config.loss.epochs or minibatches (its authors take at least 4 steps), or set llds_coef to 0.",
    )
    yield (
      self.importance_floor is None or self.importance_cap is not None,
      f"config.loss.importance_floor={self.importance_floor} with config.loss.importance_cap=None: there are no "
      "weights to leave tokens out by. Set importance_cap, or importance_floor to None.",
    )
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
class Critic(Section, path="critic"):
  """The value function, which advantage.kind="gae" needs."""

  kind: str = setting(
    "none",
    "own: a second decoder that starts as a copy of the policy; shared: a value head on the policy's trunk",
    choices=("none", "own", "shared"),
  )
  learning_rate: float = setting(1e-5, "AdamW's learning rate; its other settings are config.optimizer's", least=0)
  warmup_steps: int = setting(0, "length of the warm-up", unit="optimiser steps", least=0)
  clip: float | None = setting(0.5, "largest change of a value in an update; None: any", unit="reward units", least=0)
  coef: float = setting(0.5, "shared critic: this times the value loss is added to the policy's loss", least=0)
  alone_steps: int = setting(0, "own critic: first steps, which train only it", unit="optimiser steps", least=0)


@dataclasses.dataclass(frozen=True)
class Reward(Section, path="reward"):
  """DAPO's soft penalty on long answers."""

  overlong_limit: int = setting(0, "model tokens where the penalty is 1; 0: no penalty", unit="tokens", least=0)
  overlong_buffer: int = setting(0, "model tokens before it over which the penalty grows", unit="tokens", least=0)

  def rules(self) -> Rules:
    yield (
      not self.overlong_limit or 1 <= self.overlong_buffer <= self.overlong_limit,
      f"config.reward.overlong_buffer={self.overlong_buffer}: it must lie between 1 and overlong_limit="
      f"{self.overlong_limit}.",
    )
    yield (
      bool(self.overlong_limit) or not self.overlong_buffer,
      f"config.reward.overlong_buffer={self.overlong_buffer} with config.reward.overlong_limit=0: no length is "
      "penalised. Set the limit, or the buffer to 0.",
    )


@dataclasses.dataclass(frozen=True)
class Optimizer(Section, path="optimizer"):
  """AdamW, or Muon for the hidden matrices and AdamW for the rest, a hybrid's delta layers among it."""

  kind: str = setting("adamw", "muon: adapters and delta layers are left to AdamW", choices=("adamw", "muon"))
  learning_rate: float = setting(1e-6, "the peak of the learning rate", least=0, most=0.5)
  warmup_steps: int = setting(0, "length of the warm-up, from 0 on a straight line", unit="optimiser steps", least=0)
  schedule: str = setting(
    "constant",
    "the learning rate after the warm-up; cosine and linear fall until the last step, inverse_sqrt needs no known end",
    choices=("constant", "cosine", "linear", "inverse_sqrt"),
  )
  final_share: float = setting(0.1, "cosine, linear: the last rate over the peak", unit="share", least=0, most=1)
  b1: float = setting(0.9, "decay of the mean of gradients", least=0, below=1)
  b2: float = setting(0.999, "decay of the mean of squared gradients", least=0, below=1)
  weight_decay: float = setting(0.01, "decay of matrices and embeddings, never of norms and biases", least=0)
  clip_norm: float = setting(1.0, "largest global norm of the gradient; 0: no clipping", least=0)
  muon_scale: float = setting(5.0, "Muon's learning rate divided by AdamW's", above=0)


@dataclasses.dataclass(frozen=True)
class Learner(Section, path="learner"):
  """How an update is computed."""

  micro_rows: int = setting(8, "rows of one accumulation block", unit="rows", least=1)
  row_lengths: tuple[int, ...] = setting((), "T: up to three lengths of rows; (): chosen from the data", unit="tokens")
  share_prompts: bool = setting(
    False, "compute common beginnings once per row: a group's prompt and equal turns; in SFT the instructions"
  )
  logprob_chunk: int = setting(
    512, "tokens whose logits a device holds at once; a CPU at most 32 MB of them", unit="tokens", least=1
  )
  max_nonfinite: int = setting(3, "skipped steps in succession before the run stops", unit="steps", least=1)

  def rules(self) -> Rules:
    lengths = self.row_lengths
    yield (
      isinstance(lengths, tuple)
      and len(set(lengths)) == len(lengths) <= 3
      and all(type(x) is int and x >= 2 for x in lengths),
      f"config.learner.row_lengths={lengths}: one to three different lengths in tokens, at least 2 each, because "
      "each is compiled; or (), and they are chosen from the data.",
    )


@dataclasses.dataclass(frozen=True)
class Mesh(Section, path="mesh"):
  """Sizes of the device mesh. One of them may be -1: all remaining devices."""

  data: int = setting(-1, "shards of rows", unit="devices")
  fsdp: int = setting(1, "shards of rows and of weights, gradients and the optimiser's state", unit="devices")
  tensor: int = setting(1, "shards of heads, the MLP's width, vocabulary and experts", unit="devices")
  sequence: int = setting(1, "shards of each row's tokens", unit="devices")

  def rules(self) -> Rules:
    sizes = dataclasses.asdict(self)
    yield (
      all(size >= 1 or size == -1 for size in sizes.values()) and list(sizes.values()).count(-1) <= 1,
      f"config.mesh={sizes}: sizes must be at least 1, and one may be -1 for the remaining devices.",
    )


@dataclasses.dataclass(frozen=True)
class Checkpoint(Section, path="checkpoint"):
  """When a run is saved."""

  every: int = setting(50, "steps between two checkpoints", unit="steps", least=1)
  keep: int = setting(2, "newest checkpoints that are kept", unit="checkpoints", least=1)


@dataclasses.dataclass(frozen=True)
class Guard(Section, path="guard"):
  """What a run does when it collapses (run/rollback.py)."""

  rollback: int = setting(
    0,
    "steps in a row in which a detector holds until the run returns to its last healthy checkpoint, at half the "
    "learning rate and with the questions that come next; 0: it goes on",
    unit="steps",
    least=0,
  )
  most_rollbacks: int = setting(3, "most returns; when a detector holds again, the run stops", unit="returns", least=1)
  ignored: tuple[str, ...] = setting((), "metrics whose detectors cause no return, such as ('searches',)")


@dataclasses.dataclass(frozen=True)
class Evaluate(Section, path="evaluate"):
  """Held-out questions during training. Fine-tuning measures none."""

  every: int = setting(0, "steps between two evaluations; 0: only at the end", unit="steps", least=0)
  examples: int = setting(200, "questions of an evaluation, the set's first ones; 0: all", unit="questions", least=0)
  batch: int = setting(0, "played at a time; 0: four per cache row; 1: latency is measured", unit="episodes", least=0)


@dataclasses.dataclass(frozen=True)
class Log(Section, path="log"):
  """Logs of training."""

  price_per_hour: float = setting(0.0, "price of an hour of all the run's devices; 0: no price is shown", least=0)
  tensorboard: bool = setting(True, "write TensorBoard's files")
  wandb: bool = setting(False, "log to W&B: offline, unless the environment variable WANDB_MODE says otherwise")
  trackio: bool = setting(False, "log to Trackio: here, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set")
  mlflow: bool = setting(False, "log to MLflow: in the run's folder, unless MLFLOW_TRACKING_URI is set")


@dataclasses.dataclass(frozen=True)
class SFT(Section, path="sft"):
  """Supervised fine-tuning."""

  environment_weight: float = setting(0.3, "weight of tokens of prompts and results; the model's have 1", least=0)
  batch: int = setting(0, "transcripts per step; 0: as many as fit into one block of rows", unit="transcripts", least=0)
  epochs: int = setting(0, "passes over the transcripts, instead of `steps`; needs `batch`", unit="passes", least=0)
  warmup_share: float = setting(
    0.0, "with `epochs`: share of the steps, instead of optimizer.warmup_steps", unit="share", least=0, most=1
  )
  max_tokens: int = setting(0, "longer transcripts are cut at the end; 0: no limit", unit="tokens", least=0)

  def rules(self) -> Rules:
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
