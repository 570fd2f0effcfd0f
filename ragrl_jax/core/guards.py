"""Guards of the policy's loss: weights of tokens that other weights or another program sampled, masks of what moved too
far, and a penalty on likelihood that falls without reason.

A mask's values are constant, 0 on tokens that must not move the policy and 1 on the others. A token left out keeps its
place in the denominators, so a mask never makes the other tokens weigh more. Masks compare the policy with the sampler:
rounding, older weights and the steps already taken on this batch count together.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ragrl_jax.core import masked
from ragrl_jax.core.losses import MAX_LOG_RATIO
from ragrl_jax.core.masked import Mask, Number, PerToken, Segments

KEPT = 0.9  # of an action's likelihood; less is a fall that rounding does not make


def importance_weights(
  old_logprobs: PerToken, sampler_logprobs: PerToken, mask: Mask, *, cap: Number, floor: Number | None = None
) -> Float[Array, "R T"]:
  """min(pi_old / pi_sampler, cap) per token: corrects for tokens drawn from another distribution than the learner's.

  The sampler may have used older weights, another dtype or another program. The result is constant (no gradient), and
  0 on untrained tokens.

  Args:
    old_logprobs: log-probabilities of the sampled tokens under the learner's policy at the start of the update.
    sampler_logprobs: log-probabilities of the same tokens, recorded by the sampler.
    mask: 1 on trained tokens.
    cap: the largest weight, >= 1. The cap adds a small bias and bounds the variance.
    floor: if given, weights below it and weights above the cap become 0: such tokens are left out, not truncated.

  Raises:
    ValueError: cap below 1.

  Source: Espeholt et al. (arXiv 1802.01561) sec. 4.1; per token for language models, Yao et al., "Your efficient RL
  framework secretly brings you off-policy RL training" (2025).
  With a floor: IcePop, "Small leak can sink a great ship" (Ant Group, 2025).
  """
  if not cap >= 1:
    raise ValueError(f"importance_cap={cap}: it must be at least 1, or None for no weights (config.loss).")
  on = masked.as_bool(mask)
  gap = masked.keep(old_logprobs, on) - masked.keep(sampler_logprobs, on)
  weights = jnp.exp(jnp.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO))
  if floor is None:
    weights = jnp.minimum(weights, cap)
  else:
    weights = jnp.where((weights >= floor) & (weights <= cap), weights, 0.0)
  return jax.lax.stop_gradient(masked.keep(weights, on))


def kept_sequences(
  logprobs: PerToken,
  sampler_logprobs: PerToken,
  mask: Mask,
  *,
  low: Number | None,
  high: Number | None,
  segment_ids: Segments = None,
) -> Float[Array, "R T"]:
  """1 on the trained tokens of sequences whose geometric mean of pi / pi_sampler lies in [low, high].

  Args:
    logprobs, sampler_logprobs: log-probabilities of the sampled tokens under the policy, and recorded by the sampler.
    mask: 1 on trained tokens.
    low, high: the bounds of the ratio; None for no bound.

  Source: prime-rl 0.3's geometric mask (geo_mask_low, geo_mask_high); with one step per batch, also verl's
  seq_mean_k1 and SkyRL's geometric mask.
  """
  on = masked.as_bool(mask)
  gap = masked.keep(logprobs, on) - masked.keep(sampler_logprobs, on)
  mean = masked.segment_sums(gap, on, segment_ids) / masked.segment_lengths(on, segment_ids)
  kept = jnp.ones(on.shape, bool)
  if low is not None:
    kept &= mean >= jnp.log(low)
  if high is not None:
    kept &= mean <= jnp.log(high)
  return jax.lax.stop_gradient(masked.keep(kept, on))


def kept_tokens(
  logprobs: PerToken,
  sampler_logprobs: PerToken,
  advantages: PerToken,
  mask: Mask,
  *,
  max_fall: Number | None,
  max_rise: Number | None,
) -> Float[Array, "R T"]:
  """1 on the trained tokens that have not moved too far in the direction in which their advantage pushes them.

  Args:
    logprobs, sampler_logprobs, mask: as for `kept_sequences`.
    advantages: one per token.
    max_fall: of a token with A <= 0, the largest pi_sampler - pi, in probability; None for no bound.
    max_rise: of a token with A > 0, the largest pi - pi_sampler; None for no bound.

  Source: DPPO's binary total variation (arXiv 2602.04879), as in prime-rl's dppo_mask_low and dppo_mask_high.
  """
  on = masked.as_bool(mask)
  risen = jnp.exp(masked.keep(logprobs, on)) - jnp.exp(masked.keep(sampler_logprobs, on))
  pushed_up = masked.keep(advantages, on) > 0.0
  kept = jnp.ones(on.shape, bool)
  if max_fall is not None:
    kept &= pushed_up | (risen >= -max_fall)
  if max_rise is not None:
    kept &= ~pushed_up | (risen <= max_rise)
  return jax.lax.stop_gradient(masked.keep(kept, on))


def fallen_likelihood(
  logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, mask: Mask, *, segment_ids: Segments = None
) -> tuple[Float[Array, "R T"], Bool[Array, "R T"]]:
  """LLDS: by how much tokens became less likely, in actions that became less likely and did not earn less than others.

  An action is a stretch of neighbouring trained tokens of one sequence with A >= 0, such as a turn. If the sum of its
  old_logprobs - logprobs is positive, each of its tokens counts max(0, old_logprobs - logprobs), else none does.

  Args:
    logprobs: log-probabilities of the sampled tokens under the policy; the gradient flows here.
    old_logprobs: of the same tokens at the start of the update; constant.
    advantages: one per token.
    mask: 1 on trained tokens.

  Returns:
    (falls, fell): nats per token, >= 0, and whether its action became less likely.

  Source: LLDS (arXiv 2512.04220v2) eq. 4, whose sum its code divides by the number of all trained tokens, and the
  equation by that of tokens with A >= 0.
  """
  on = masked.as_bool(mask)
  on &= masked.keep(advantages, on) >= 0.0
  drop = jax.lax.stop_gradient(masked.keep(old_logprobs, on)) - masked.keep(logprobs, on)
  fell = on & (_of_action(drop, on, segment_ids) > 0.0)
  return masked.keep(jnp.maximum(drop, 0.0), fell), fell


def fallen_actions(
  logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, mask: Mask, *, segment_ids: Segments = None
) -> Bool[Array, "R T"]:
  """Whether a token belongs to an action with A > 0 that is less than KEPT times as likely as before the update.

  Arguments as for `fallen_likelihood`.
  """
  on = masked.as_bool(mask)
  on &= masked.keep(advantages, on) > 0.0
  drop = masked.keep(old_logprobs, on) - masked.keep(logprobs, on)
  return on & (_of_action(drop, on, segment_ids) > -math.log(KEPT))


def _of_action(x, on, segment_ids):
  """The sum of x over a token's action: a stretch of neighbouring tokens that are `on`, in one sequence."""
  joined = on[:, 1:] & on[:, :-1]
  if segment_ids is not None:
    ids = jnp.asarray(segment_ids)
    joined &= ids[:, 1:] == ids[:, :-1]
  first = on & ~jnp.pad(joined, ((0, 0), (1, 0)))
  return masked.segment_sums(jax.lax.stop_gradient(x), on, jnp.cumsum(first, axis=1, dtype=jnp.int32))
