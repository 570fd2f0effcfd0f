"""The policy's loss: that of GRPO, DAPO, GSPO, CISPO and PPO.

How tokens are averaged: `masked.aggregate`. PPO's critic: core/value.py. KL penalties: core/kl.py.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ragrl_jax.core import masked
from ragrl_jax.core.masked import Mask, Number, PerToken, Segments, Totals

SURROGATES = ("clipped", "cispo")
MAX_LOG_RATIO = 20.0  # e^20 is far beyond any clip bound and far below float32's maximum


def policy_loss(
  logprobs: PerToken,
  old_logprobs: PerToken,
  advantages: PerToken,
  mask: Mask,
  *,
  clip_low: Number,
  clip_high: Number,
  dual_clip: Number | None = None,
  aggregation: str,
  ratio: str = "token",
  surrogate: str = "clipped",
  segment_ids: Segments = None,
  totals: Totals | None = None,
  norm: Number | None = None,
  weights: PerToken | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """The surrogate loss, to be minimised.

  With rho = exp(logprobs - old_logprobs), a token's loss is max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)).
  With a dual clip and A < 0, the loss is at most -A * dual_clip.

  Args:
    logprobs: log-probabilities of the sampled tokens under the policy; the gradient flows here.
    old_logprobs: log-probabilities of the same tokens at the start of the update; constant.
    advantages: one per token; constant.
    mask: 1 on trained tokens. Other tokens affect neither the loss nor the gradient, not even with inf or NaN.
    clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
    dual_clip: above 1; None turns it off.
    aggregation: a mode of `masked.aggregate`.
    ratio: "token", or "sequence": all tokens of a sequence share exp(mean of logprobs - old_logprobs).
    surrogate: "clipped", or "cispo": -A clip(rho) logprob with a constant clip(rho), so clipped tokens keep a gradient.
    segment_ids, totals, norm: as for `masked.aggregate`.
    weights: constant factors of the tokens' losses, such as `guards.importance_weights`; 1 if None.

  Returns:
    (loss, metrics): clip_fraction (share of tokens whose clipped branch is the larger loss; for cispo, whose ratio is
    clipped), dual_clip_fraction, ratio (mean) and old_kl (mean of the tokens' k3 estimate of KL(old || policy), in
    nats). All are means over tokens, with the denominator of token_mean.

  Raises:
    ValueError: unknown ratio, surrogate or aggregation, a negative bound, or a dual_clip of 1 or less.

  Source: PPO (arXiv 1707.06347) eq. 7; two bounds, DAPO (arXiv 2503.14476); dual clip, Ye et al. (arXiv 1912.09729)
  eq. 5; sequence ratio, GSPO (arXiv 2507.18071) eq. 7; CISPO (arXiv 2506.13585) eq. 4.
  """
  _check(clip_low, clip_high, dual_clip, ratio, surrogate)
  on = masked.as_bool(mask)
  advantages = jax.lax.stop_gradient(masked.keep(advantages, on))
  gap = masked.keep(logprobs, on) - jax.lax.stop_gradient(masked.keep(old_logprobs, on))
  limited = lambda x: jnp.clip(x, -MAX_LOG_RATIO, MAX_LOG_RATIO)
  rho = jnp.exp(log_ratio := limited(gap))
  moved = rho - 1.0 - log_ratio  # of tokens, also if those of a sequence share one ratio
  if ratio == "sequence":
    rho = jnp.exp(limited(masked.segment_sums(gap, on, segment_ids) / masked.segment_lengths(on, segment_ids)))
  unclipped = -advantages * rho
  bounded = jnp.clip(rho, 1.0 - clip_low, 1.0 + clip_high)
  clipped = -advantages * bounded
  loss, cut = jnp.maximum(unclipped, clipped), clipped > unclipped  # pessimistic: clipping never lowers the loss
  if surrogate == "cispo":
    loss, cut = jax.lax.stop_gradient(clipped) * masked.keep(logprobs, on), bounded != rho
  dual = jnp.zeros(on.shape, bool)
  if dual_clip is not None:  # without it, the loss of a token with A < 0 grows with its ratio without limit
    bound = -advantages * dual_clip
    dual = (advantages < 0.0) & (loss > bound)
    loss = jnp.where(dual, bound, loss)
  if weights is not None:
    loss = loss * jax.lax.stop_gradient(masked.keep(weights, on))
  tokens, _ = masked.divisors(on, segment_ids, totals)
  share = lambda x: jax.lax.stop_gradient(masked.total(x, on) / tokens)
  metrics = dict(clip_fraction=share(cut), dual_clip_fraction=share(dual), ratio=share(rho), old_kl=share(moved))
  return masked.aggregate(loss, on, aggregation, segment_ids=segment_ids, totals=totals, norm=norm), metrics


def _check(clip_low, clip_high, dual_clip, ratio, surrogate) -> None:
  if surrogate not in SURROGATES:
    raise ValueError(f"surrogate={surrogate!r}: it must be one of {', '.join(SURROGATES)} (config.loss.surrogate).")
  if ratio not in ("token", "sequence"):
    raise ValueError(f"ratio={ratio!r}: it must be 'token' or 'sequence' (config.loss.ratio).")
  if clip_low < 0 or clip_high < 0:
    raise ValueError(
      f"clip_low={clip_low}, clip_high={clip_high}: the bounds are 1 - clip_low and 1 + clip_high, so neither may be "
      "negative (config.loss)."
    )
  if dual_clip is not None and not dual_clip > 1:
    raise ValueError(f"dual_clip={dual_clip}: it must be above 1, or None for none (config.loss.dual_clip).")
