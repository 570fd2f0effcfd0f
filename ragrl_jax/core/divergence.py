"""The generalised Jensen-Shannon divergence of a policy p from its teacher q, in nats, and its gradient.

| beta    | divergence D                                        | pulls the policy to                       |
|---------|-----------------------------------------------------|-------------------------------------------|
| 0       | forward KL: KL(q || p)                              | give probability to all that q may say    |
| 0 … 1   | beta KL(q || m) + (1 - beta) KL(p || m),            | something between                         |
|         | m = beta q + (1 - beta) p                           |                                           |
| 1       | reverse KL: KL(p || q)                              | say only what q may say                   |

The ends are named after the formula's limits, which are D / beta and D / (1 - beta): at the ends the formula is 0.

Source: Agarwal et al. (arXiv 2306.13649) eq. 1, with the ends of TRL's `generalized_jsd_loss`.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def terms(
  log_p: Float[Array, "*s V"], log_q: Float[Array, "*s V"], beta: float
) -> tuple[Float[Array, "*s V"], Float[Array, "*s V"]]:
  """(terms whose sum over the vocabulary is D, pulls).

  With the policy's logits z and the sum S of the pulls over the vocabulary, dD/dz_v = pull_v - p_v S. A pull is
  p dD/dp.

  Args:
    log_p, log_q: finite log-probabilities of policy and teacher.
    beta: from 0 to 1, see the module's table.
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
