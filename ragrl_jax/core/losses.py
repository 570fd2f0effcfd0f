"""Policy loss, value loss, and their averages over tokens and sequences: the losses of GRPO, DAPO, GSPO and PPO."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from ragrl_jax.core import masked
from ragrl_jax.core.masked import AnyArray, Mask, Number

AGGREGATIONS = ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")
MAX_LOG_RATIO = 20.0  # e^20 is far beyond any clip bound and far below float32's maximum

Count = Shaped[AnyArray, ""] | Number
Totals = tuple[Count, Count]


def aggregate(
  per_token: Shaped[AnyArray, "R T"],
  mask: Mask,
  mode: str,
  *,
  segment_ids: Int[AnyArray, "R T"] | None = None,
  totals: Totals | None = None,
  norm: Number | None = None,
) -> Float[Array, ""]:
  """Reduces one value per token to a scalar.

  | mode                    | formula (over sequences with at least one trained token)         | as in |
  |-------------------------|------------------------------------------------------------------|-------|
  | token_mean              | sum over tokens / number of trained tokens                        | DAPO  |
  | seq_mean_token_sum      | mean over sequences of their sums                                 | RLOO  |
  | seq_mean_token_mean     | mean over sequences of their means                                | GRPO  |
  | seq_mean_token_sum_norm | mean over sequences of their sums, divided by `norm`              | Dr. GRPO |

  Args:
    per_token: entry t belongs to token t. Values where the mask is 0 are ignored, even inf and NaN.
    mask: 1 on trained tokens.
    mode: a mode of the table.
    segment_ids: the sequence of each token in its row; if None, each row is one sequence.
    totals: (tokens, sequences) of the whole optimiser step, for a call that sees only a part of it. The results of all
      parts then add up to the result of one call over everything. Counted from the mask if None.
    norm: divisor of the last mode, in tokens; the padded length T if None.

  Returns:
    A scalar; 0 where nothing is trained.

  Raises:
    ValueError: an unknown mode.
  """
  if mode not in AGGREGATIONS:
    raise ValueError(f"aggregation {mode!r}: it must be one of {', '.join(AGGREGATIONS)} (config.loss.aggregation).")
  tokens, sequences = _totals(mask, segment_ids, totals)
  per_token = masked.keep(per_token, mask)
  if mode == "token_mean":
    return per_token.sum() / tokens
  if mode == "seq_mean_token_mean":
    length = masked.segment_sums(jnp.ones(per_token.shape, jnp.float32), mask, segment_ids)
    return (per_token / jnp.maximum(length, 1.0)).sum() / sequences
  # A sum over tokens of a sequence, summed over sequences, is a sum over tokens.
  total = per_token.sum() / sequences
  if mode == "seq_mean_token_sum_norm":
    total = total / (per_token.shape[1] if norm is None else norm)
  return total


def _totals(mask, segment_ids, totals) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """The divisors (tokens, sequences), each at least 1."""
  if totals is None:
    totals = masked.as_bool(mask).sum(), masked.num_sequences(mask, segment_ids)
  tokens, sequences = (jnp.maximum(jnp.asarray(x).astype(jnp.float32), 1.0) for x in totals)
  return tokens, sequences


def policy_loss(
  logprobs: Shaped[AnyArray, "R T"],
  old_logprobs: Shaped[AnyArray, "R T"],
  advantages: Shaped[AnyArray, "R T"],
  mask: Mask,
  *,
  clip_low: Number,
  clip_high: Number,
  dual_clip: Number | None = None,
  aggregation: str,
  ratio: str = "token",
  segment_ids: Int[AnyArray, "R T"] | None = None,
  totals: Totals | None = None,
  norm: Number | None = None,
  weights: Shaped[AnyArray, "R T"] | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """The clipped surrogate loss, to be minimised.

  With rho = exp(logprobs - old_logprobs), a token's loss is max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)).
  With a dual clip and A < 0, the loss is at most -A * dual_clip.

  Args:
    logprobs: log-probabilities of the sampled tokens under the policy; the gradient flows here.
    old_logprobs: log-probabilities of the same tokens at the start of the update; constant.
    advantages: one per token; constant.
    mask: 1 on trained tokens. Other tokens affect neither the loss nor the gradient, not even with inf or NaN.
    clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
    dual_clip: above 1; None turns it off.
    aggregation: a mode of `aggregate`.
    ratio: "token", or "sequence": all tokens of a sequence share exp(mean of logprobs - old_logprobs).
    segment_ids, totals, norm: as for `aggregate`.
    weights: constant factors of the tokens' losses, such as `importance_weights`; 1 if None.

  Returns:
    (loss, metrics): clip_fraction (share of tokens whose clipped branch is the larger loss), dual_clip_fraction, ratio
    (mean) and old_kl (mean of the k3 estimate of KL(old || policy), in nats). All metrics are means over tokens, with
    the denominator of token_mean.

  Raises:
    ValueError: unknown ratio or aggregation, a negative bound, or a dual_clip of 1 or less.

  Source: PPO (arXiv 1707.06347) eq. 7; two bounds, DAPO (arXiv 2503.14476); dual clip, Ye et al. (arXiv 1912.09729)
  eq. 5; sequence ratio, GSPO (arXiv 2507.18071) eq. 7.
  """
  _check(clip_low, clip_high, dual_clip, ratio)
  on = masked.as_bool(mask)
  advantages = jax.lax.stop_gradient(masked.keep(advantages, on))
  gap = masked.keep(logprobs, on) - jax.lax.stop_gradient(masked.keep(old_logprobs, on))
  if ratio == "sequence":
    length = masked.segment_sums(jnp.ones(gap.shape, jnp.float32), on, segment_ids)
    gap = masked.segment_sums(gap, on, segment_ids) / jnp.maximum(length, 1.0)
  gap = jnp.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO)
  rho = jnp.exp(gap)
  plain = -advantages * rho
  clipped = -advantages * jnp.clip(rho, 1.0 - clip_low, 1.0 + clip_high)
  loss = jnp.maximum(plain, clipped)  # pessimistic: clipping never lowers the loss
  dual = jnp.zeros(on.shape, bool)
  if dual_clip is not None:  # without it, the loss of a token with A < 0 grows with its ratio without limit
    bound = -advantages * dual_clip
    dual = (advantages < 0.0) & (loss > bound)
    loss = jnp.where(dual, bound, loss)
  if weights is not None:
    loss = loss * jax.lax.stop_gradient(masked.keep(weights, on))
  tokens, _ = _totals(on, segment_ids, totals)
  share = lambda x: jax.lax.stop_gradient(masked.total(x, on) / tokens)
  metrics = dict(
    clip_fraction=share(clipped > plain),
    dual_clip_fraction=share(dual),
    ratio=share(rho),
    old_kl=share(rho - 1.0 - gap),
  )
  return aggregate(loss, on, aggregation, segment_ids=segment_ids, totals=totals, norm=norm), metrics


def importance_weights(
  old_logprobs: Shaped[AnyArray, "R T"], sampler_logprobs: Shaped[AnyArray, "R T"], mask: Mask, *, cap: Number
) -> Float[Array, "R T"]:
  """min(pi_old / pi_sampler, cap) per token: corrects for tokens drawn from another distribution than the learner's.

  The sampler may have used older weights, another dtype or another program. The result is constant (no gradient), and
  0 on untrained tokens.

  Args:
    old_logprobs: log-probabilities of the sampled tokens under the learner's policy at the start of the update.
    sampler_logprobs: log-probabilities of the same tokens, recorded by the sampler.
    mask: 1 on trained tokens.
    cap: the largest weight, >= 1. The cap adds a small bias and bounds the variance.

  Raises:
    ValueError: cap below 1.

  Source: Espeholt et al. (arXiv 1802.01561) sec. 4.1; per token for language models, Yao et al., "Your efficient RL
  framework secretly brings you off-policy RL training" (2025).
  """
  if not cap >= 1:
    raise ValueError(f"importance_cap={cap}: it must be at least 1, or None for no weights (config.loss).")
  on = masked.as_bool(mask)
  gap = masked.keep(old_logprobs, on) - masked.keep(sampler_logprobs, on)
  weights = jnp.minimum(jnp.exp(jnp.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO)), cap)
  return jax.lax.stop_gradient(masked.keep(weights, on))


def _check(clip_low, clip_high, dual_clip, ratio) -> None:
  if ratio not in ("token", "sequence"):
    raise ValueError(f"ratio={ratio!r}: it must be 'token' or 'sequence' (config.loss.ratio).")
  if clip_low < 0 or clip_high < 0:
    raise ValueError(
      f"clip_low={clip_low}, clip_high={clip_high}: the bounds are 1 - clip_low and 1 + clip_high, so neither may be "
      "negative (config.loss)."
    )
  if dual_clip is not None and not dual_clip > 1:
    raise ValueError(f"dual_clip={dual_clip}: it must be above 1, or None for none (config.loss.dual_clip).")


def value_loss(
  values: Shaped[AnyArray, "R T"],
  old_values: Shaped[AnyArray, "R T"],
  returns: Shaped[AnyArray, "R T"],
  mask: Mask,
  *,
  clip: Number | None,
  aggregation: str,
  segment_ids: Int[AnyArray, "R T"] | None = None,
  totals: Totals | None = None,
) -> Float[Array, ""]:
  """The clipped value loss: half the larger of two squared errors, with the value and with the clipped value.

  The clipped value lies within `clip` of the old value.

  Args:
    values: the critic's values; the gradient flows here.
    old_values: the critic's values at the start of the update; constant.
    returns: the regression targets; constant.
    mask: 1 on trained tokens.
    clip: the largest change of a value in one update, in reward units; None for no clip.
    aggregation, segment_ids, totals: as for `aggregate`.

  Raises:
    ValueError: a negative clip, or an unknown aggregation.

  Source: PPO's authors' code (openai/baselines, ppo2); verl `compute_value_loss`.
  """
  if clip is not None and clip < 0:
    raise ValueError(f"value clip {clip}: it must be >= 0, or None for none.")
  values = masked.keep(values, mask)
  old_values, returns = (jax.lax.stop_gradient(masked.keep(x, mask)) for x in (old_values, returns))
  error = jnp.square(values - returns)
  if clip is not None:
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return 0.5 * aggregate(error, mask, aggregation, segment_ids=segment_ids, totals=totals)
