"""Metrics of the update.

For each trained token, r = exp(logprob − old_logprob), and A is the advantage.
"""

from ragrl_jax.core.metrics.declared.metric import Metric

UPDATE = (
  Metric(
    "loss",
    "loss",
    "the minimised loss: `policy_loss`, plus `kl_coef` · KL, minus `entropy_coef` · entropy. In SFT: −Σ weight · "
    "logprob / Σ weight",
    "its size means little in RL; not finite: the step is skipped",
  ),
  Metric(
    "policy_loss", "loss", "max(−A·r, −A·clip(r, 1 − clip_low, 1 + clip_high)), aggregated as `loss.aggregation` says"
  ),
  Metric(
    "kl",
    "nats",
    "mean of tokens of the estimator `loss.kl` of KL(policy ‖ reference)",
    "above 1 nat: the policy is far from its reference; raise `loss.kl_coef`",
  ),
  Metric(
    "kl_k2 kl_k3",
    "nats",
    "the same mean with these two estimators, whichever is in the loss. Beyond a gap of `loss.kl_tangent` nats k3 "
    "continues along its tangent: `kl_k3` is comparable between runs with the same one",
    "`kl_k3` far above `kl_k2`: some tokens have almost lost their probability",
  ),
  Metric(
    "old_kl",
    "nats",
    "mean of tokens of r − 1 − ln r, with each token's own r: how far the updates of one step moved the policy",
    "above 0.05: too many updates per batch, or too high a learning rate. 0 with one update per batch",
  ),
  Metric(
    "ratio", "ratio", "mean of tokens of r; with `loss.ratio=sequence`, of their sequence's r", "far from 1: as above"
  ),
  Metric(
    "entropy",
    "nats",
    "mean of tokens of the policy's entropy, nats, at the sampler's temperature",
    "falls below a fifth of its start: the policy stops exploring. Rises fivefold: the policy becomes random",
  ),
  Metric(
    "clip_fraction",
    "share",
    "share of tokens at which the clipped term is the larger one",
    "above 0.3: lower `loss.epochs` or the learning rate",
  ),
  Metric("dual_clip_fraction", "share", "share of tokens limited by `loss.dual_clip`"),
  Metric(
    "importance",
    "ratio",
    "mean of tokens of min(π_old / π_sampler, `loss.importance_cap`)",
    "far from 1: the sampler uses other weights or another dtype",
  ),
  Metric("importance_capped", "share", "share of tokens at the cap", "above 0.05: as above"),
  Metric("return_mean", "reward", "mean of tokens of the discounted future reward, minus KL penalties in the reward"),
  Metric("value_mean", "reward", "mean of the critic's values"),
  Metric(
    "explained_variance",
    "share",
    "1 − Var(return − value) / Var(return), of the values before the update",
    "below 0 after some dozens of steps: the critic is worse than a constant; raise `critic.learning_rate` or "
    "`critic.alone_steps`",
  ),
  Metric("value_loss", "loss", "the critic's loss", "as for the policy"),
  Metric("critic_grad_norm", "norm", "norm of the critic's gradient before clipping", "as for the policy"),
  Metric("critic_skipped", "steps", "the critic's skipped steps", "as for the policy"),
  Metric(
    "kl_coef",
    "weight",
    "the weight of the KL term; `loss.kl_target` moves it",
    "grows without bound: the learning rate is too high for the target",
  ),
  Metric(
    "mismatch",
    "nats",
    "mean of tokens of abs(log-probability as scored by the learner before its steps − as sampled)",
    "f32: 1e-6; bf16: 1e-2. Above 0.05 the two differ in weights, temperature or dtype. With stale groups it includes"
    " the policy's last step",
  ),
  Metric(
    "grad_norm",
    "norm",
    "norm of the gradient before clipping",
    "spikes: one odd batch; growth: lower the learning rate",
  ),
  Metric("update_norm", "norm", "norm of the change of the parameters", "0: the step was skipped"),
  Metric("learning_rate", "rate", "learning rate of this step"),
  Metric("optimizer_step", "steps", "optimiser steps applied so far", "below `step`: steps were skipped"),
  Metric(
    "skipped",
    "count",
    "optimiser steps skipped because gradient or update was not finite",
    "above 0: see `nonfinite_in_a_row`",
  ),
  Metric("nonfinite_in_a_row", "count", "skipped steps in a row", "at `learner.max_nonfinite` the run stops"),
  Metric("tokens", "tokens", "trained tokens"),
  Metric("packed_tokens", "tokens", "all tokens in the packed rows"),
  Metric("sequences", "count", "sequences in the packed rows"),
  Metric(
    "mask_coverage", "share", "`tokens` / `packed_tokens`", "below 0.02: nearly all tokens are prompts and results"
  ),
  Metric("packing", "share", "`packed_tokens` / places in the rows", "below 0.5: choose other `learner.row_lengths`"),
  Metric("zero_advantage_share", "share", "share of trained tokens with advantage 0", "1: the step learns nothing"),
  Metric("flops", "FLOP", "operations of the update, by formula"),
)
