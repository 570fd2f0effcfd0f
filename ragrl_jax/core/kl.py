"""Estimators of KL(policy || reference) from one sampled token, and the use of each; divergences of distributions.

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
import numpy as np
from jaxtyping import Array, Float

from ragrl_jax.core.masked import AnyArray, Number

ESTIMATORS = ("k1", "k2", "k3", "abs", "k1+", "k3+")
UNBIASED = ("k2", "k1+", "k3+")  # on-policy, their expected gradient is the KL's


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
    measured: this step's mean KL per token, in nats.
    target: the desired KL per token, in nats, > 0.
    num_sequences: number of sequences in this step.
    horizon: number of sequences over which the controller corrects an error.

  Source: Ziegler et al. (arXiv 1909.08593) sec. 2.2.
  """
  error = min(max(measured / target - 1.0, -0.2), 0.2)
  return coefficient * (1.0 + error * min(1.0, num_sequences / horizon))


def divergence_terms(
  log_p: Float[Array, "*s V"], log_q: Float[Array, "*s V"], beta: float
) -> tuple[Float[Array, "*s V"], Float[Array, "*s V"]]:
  """The generalised Jensen-Shannon divergence D of a policy p from its teacher q, in nats, and its gradient.

  | beta    | divergence D                                        | pulls the policy to                       |
  |---------|-----------------------------------------------------|-------------------------------------------|
  | 0       | forward KL: KL(q || p)                              | give probability to all that q may say    |
  | 0 … 1   | beta KL(q || m) + (1 - beta) KL(p || m),            | something between                         |
  |         | m = beta q + (1 - beta) p                           |                                           |
  | 1       | reverse KL: KL(p || q)                              | say only what q may say                   |

  The ends are named after the formula's limits, which are D / beta and D / (1 - beta): at the ends the formula is 0.

  Args:
    log_p, log_q: finite log-probabilities of policy and teacher.
    beta: from 0 to 1.

  Returns:
    (terms whose sum over the vocabulary is D, pulls). With the policy's logits z and the sum S of the pulls over the
    vocabulary, dD/dz_v = pull_v - p_v S. A pull is p dD/dp.

  Source: Agarwal et al. (arXiv 2306.13649) eq. 1, with the ends of TRL's `generalized_jsd_loss`.
  """
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  if beta == 0.0:
    return q * (log_q - log_p), -q
  if beta == 1.0:
    reverse = p * (log_p - log_q)
    return reverse, reverse
  log_m = jnp.logaddexp(log_p + np.float32(np.log1p(-beta)), log_q + np.float32(np.log(beta)))
  pull = (1.0 - beta) * p * (log_p - log_m)
  return beta * q * (log_q - log_m) + pull, pull
