"""Estimators of KL(policy || reference) from one sampled token, and the use of each.

With x = log pi(token), y = log pi_ref(token), gap = y - x, and tokens drawn from pi:

| name | value           | gradient in x | good for |
|------|-----------------|---------------|----------|
| k1   | x - y           | 1             | a penalty in the reward; useless as a loss, since its mean gradient is 0 |
| abs  | abs(x - y)      | sign(x - y)   | monitoring |
| k2   | (x - y)^2 / 2   | x - y         | a loss: on-policy, its expected gradient is the KL's |
| k3   | e^gap - gap - 1 | 1 - e^gap     | a value >= 0 of low variance; a steep loss where pi is far below pi_ref |
| k1+  | k1's            | k2's          | the unbiased value with the right gradient |
| k3+  | k3's            | k2's          | the same, of low variance |

Tokens that an older policy drew need the constant weight pi / pi_old, which `guards.importance_weights` gives. With
it, k3+ has value and gradient of (pi / pi_old) k3, the unbiased estimate of DeepSeek-V3.2 (arXiv 2512.02556) eq. 7.

Source: J. Schulman, "Approximating KL divergence" (2020); the straight-through forms, verl `kl_penalty`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ragrl_jax.core.masked import AnyArray, Number
from ragrl_jax.core.names import ESTIMATORS as ESTIMATORS
from ragrl_jax.core.names import UNBIASED as UNBIASED


def kl_penalty(
  logprobs: Float[AnyArray, "*s"], ref_logprobs: Float[AnyArray, "*s"], estimator: str, *, tangent: Number | None = 5.0
) -> Float[Array, "*s"]:
  """One KL estimate per token, in nats.

  Args:
    logprobs: log pi of the sampled tokens, any shape; the gradient flows here.
    ref_logprobs: log pi_ref of the same tokens; constant.
    estimator: one of ESTIMATORS, see the module's table.
    tangent: beyond |gap| = tangent, k3 is continued by its tangent line. So it is finite for any gap and keeps a
      gradient. (A clamped k3 has gradient 0 there, where the penalty is needed most.) None: k3 as published, which
      overflows float32 at a gap of 88.

  Returns:
    float32, the shape of logprobs. k2 and k3 are >= 0.

  Raises:
    ValueError: an unknown estimator.
  """
  if estimator not in ESTIMATORS:
    raise ValueError(f"KL estimator {estimator!r}: it must be one of {', '.join(ESTIMATORS)} (config.loss.kl).")
  x = jnp.asarray(logprobs).astype(jnp.float32)
  gap = jax.lax.stop_gradient(jnp.asarray(ref_logprobs).astype(jnp.float32)) - x
  k2 = 0.5 * jnp.square(gap)
  match estimator:
    case "k1":
      return -gap
    case "abs":
      return jnp.abs(gap)
    case "k2":
      return k2
    case "k3":
      return _k3(gap, tangent)
  value = -gap if estimator == "k1+" else _k3(gap, tangent)
  return k2 + jax.lax.stop_gradient(value - k2)  # straight-through: the value of k1 or k3, the gradient of k2


def _k3(gap: Float[Array, "*s"], tangent: Number | None) -> Float[Array, "*s"]:
  if tangent is None:
    return jnp.expm1(gap) - gap
  near = jnp.abs(gap) <= tangent
  safe = jnp.where(near, gap, 0.0)  # before exp: an overflow in the unused branch would make the gradient NaN
  at = jnp.sign(gap) * tangent
  # expm1 is accurate for small gaps, where e^gap - 1 - gap loses its digits by cancellation.
  return jnp.where(near, jnp.expm1(safe) - safe, jnp.expm1(at) - at + jnp.expm1(at) * (gap - at))


def adapted_coefficient(
  coefficient: Number, measured: Number, *, target: Number, num_sequences: int, horizon: int = 10_000
) -> float:
  """The next KL coefficient of the adaptive controller.

  coefficient * (1 + clip(measured / target - 1, +-0.2) * min(1, num_sequences / horizon))

  The share is at most 1, because a coefficient of 0 would stay 0, and a negative one would reward divergence.

  Args:
    coefficient: the present coefficient.
    measured: this step's mean KL per token, in nats.
    target: the desired KL per token, in nats, > 0.
    num_sequences: number of sequences in this step.
    horizon: number of sequences over which the controller corrects an error.

  Source: Ziegler et al. (arXiv 1909.08593) sec. 2.2.
  """
  error = min(max(measured / target - 1.0, -0.2), 0.2)
  return coefficient * (1.0 + error * min(1.0, num_sequences / horizon))
