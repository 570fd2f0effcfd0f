"""Importance weights: they correct for tokens that older weights, or another program, sampled."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from ragrl_jax.core import masked
from ragrl_jax.core.masked import AnyArray, Mask, Number

MAX_LOG_RATIO = 20.0  # e^20 is far beyond any clip bound and far below float32's maximum


def importance_weights(
  old_logprobs: Shaped[AnyArray, "R T"],
  sampler_logprobs: Shaped[AnyArray, "R T"],
  mask: Mask,
  *,
  cap: Number,
  floor: Number | None = None,
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
