"""From rewards to advantages: within groups of samples ([B]), or along a trajectory ([B, T])."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from ragrl_jax.core import groups, masked
from ragrl_jax.core.masked import AnyArray, Mask, Number


def group_relative(
  rewards: Shaped[AnyArray, "B"],
  group_ids: Int[AnyArray, "B"],
  *,
  std: str = "sample",
  std_floor: Number = 0.0,
  eps: Number = 1e-6,
) -> Float[Array, "B"]:
  """Centres each reward on its group of samples for the same prompt.

  A_i = (r_i - mean(r_g)) / (max(std(r_g), std_floor) + eps), or without the division if std is "none".

  Args:
    rewards: one scalar an episode, in reward units.
    group_ids: which prompt each episode answers; ids need not be neighbours or consecutive.
    std: "sample" (n - 1 in the divisor), "population" (n), or "none".
    std_floor: least deviation to divide by, in reward units (LEAR: 0.1).
    eps: added to the deviation, in reward units.

  Returns:
    Advantages, unitless unless std is "none". A constant group, and a group of one, get exact zeros.

  Raises:
    ValueError: std is none of the three names.

  Source: DeepSeekMath (arXiv 2402.03300) sec. 4.1; undivided, Dr. GRPO (arXiv 2503.20783); the floor, LEAR sec. 3.3.
  """
  if std not in ("sample", "population", "none"):
    raise ValueError(f"std={std!r}: it must be 'sample', 'population' or 'none' (config.advantage.std).")
  same = groups.same_group(group_ids)
  size = groups.sizes(group_ids)
  centred = _centred(rewards, group_ids)
  if std != "none":
    divisor = jnp.maximum(size - 1.0, 1.0) if std == "sample" else size
    variance = jnp.where(same, jnp.square(centred)[None, :], 0.0).sum(axis=1) / divisor
    divide = jnp.maximum(jnp.sqrt(variance), std_floor) + eps
    centred = centred / jnp.where(divide > 0.0, divide, 1.0)
  # A constant group teaches nothing. Without this line its rounding residue (mean != reward in float32) would be
  # divided by an almost-zero deviation.
  return jnp.where(groups.constant(rewards, group_ids), 0.0, centred)


def leave_one_out(rewards: Shaped[AnyArray, "B"], group_ids: Int[AnyArray, "B"]) -> Float[Array, "B"]:
  """Each reward minus the mean of the others in its group: n / (n - 1) * (r_i - mean(r_g)), in reward units.

  A constant group, and a group of one, get exact zeros.

  Source: RLOO, Ahmadian et al. (arXiv 2402.14740) eq. 8.
  """
  size = groups.sizes(group_ids)
  advantage = _centred(rewards, group_ids) * size / jnp.maximum(size - 1.0, 1.0)
  return jnp.where(groups.constant(rewards, group_ids), 0.0, advantage)


def by_turn(
  rewards: Shaped[AnyArray, "B K"],
  turns: Int[AnyArray, "B"],
  group_ids: Int[AnyArray, "B"],
  compare: Callable[[Array, Array], Array],
) -> Float[Array, "B K"]:
  """One advantage a turn: what is still to be earned from a turn on, compared with the group at the same turn.

  A turn is answerable for its own reward and all later ones. Its rivals are the group's returns from the same turn; a
  sample that ended earlier stands in with its last turn. So where everything is paid at the end, every turn gets what
  `compare` gives the whole episode.

  Args:
    rewards: of the turns, reward units; what stands beyond an episode's last turn is ignored.
    turns: how many each episode has, at least 1.
    group_ids: which prompt each episode answers.
    compare: ([B] rewards, [B] group ids) -> [B], such as `group_relative`.

  Returns:
    Advantages, zeros beyond the last turn.
  """
  number = jnp.arange(rewards.shape[1], dtype=jnp.int32)[None, :]
  last = jnp.asarray(turns).astype(jnp.int32)[:, None] - 1
  kept = masked.keep(rewards, number <= last)
  to_go = jnp.flip(jnp.cumsum(jnp.flip(kept, axis=1), axis=1), axis=1)
  to_go = jnp.take_along_axis(to_go, jnp.minimum(number, last), axis=1)
  found = jax.vmap(compare, in_axes=(1, None), out_axes=1)(to_go, jnp.asarray(group_ids))
  return jnp.where(number <= last, found, 0.0)


def _centred(rewards: Shaped[AnyArray, "B"], group_ids: Int[AnyArray, "B"]) -> Float[Array, "B"]:
  r = jnp.asarray(rewards).astype(jnp.float32)
  sums = jnp.where(groups.same_group(group_ids), r[None, :], 0.0).sum(axis=1)
  return r - sums / groups.sizes(group_ids)


def gae(
  rewards: Shaped[AnyArray, "B T"], values: Shaped[AnyArray, "B T"], mask: Mask, *, gamma: Number, lam: Number
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
  """Generalised advantage estimation over the trained tokens of unpacked rows; untrained tokens are stepped over.

  With t' the next trained token after t (V = A = 0 beyond the last):
    delta_t = r_t + gamma V_t' - V_t,   A_t = delta_t + gamma lam A_t',   return_t = A_t + V_t

  Time counts trained tokens: retrieved text in between neither discounts nor lends its values, and rewards laid on
  untrained tokens do not exist (lay an episode's reward on its last trained token).

  Args:
    rewards: reward units, one a token.
    values: the critic's, aligned with the token they speak of.
    mask: 1 where the policy sampled the token.
    gamma: discount a trained token.
    lam: 1 takes the whole return, 0 one step.

  Returns:
    (advantages, returns), not whitened, zeros on untrained tokens.

  Source: Schulman et al. (arXiv 1506.02438) eq. 16; stepping over masked tokens as verl does since 2025. Search-R1 lets
  values and decay run through retrieved text instead.
  """
  on = masked.as_bool(mask)
  rewards, values = masked.keep(rewards, on), masked.keep(values, on)

  def step(carry, now):
    next_value, next_advantage = carry
    r, v, m = now
    advantage = r + gamma * next_value - v + gamma * lam * next_advantage
    carry = jnp.where(m, v, next_value), jnp.where(m, advantage, next_advantage)
    return carry, jnp.where(m, advantage, 0.0)

  zeros = jnp.zeros(on.shape[0], jnp.float32)
  _, advantages = jax.lax.scan(step, (zeros, zeros), (rewards.T, values.T, on.T), reverse=True)
  return advantages.T, masked.keep(advantages.T + values, on)


def reinforce_plus_plus(
  rewards: Shaped[AnyArray, "B T"], mask: Mask, *, gamma: Number
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
  """Discounted returns to go over trained tokens, whitened over the whole batch: no critic, no groups.

  Untrained tokens are stepped over as in `gae`; in particular what comes before retrieved text still sees the reward
  that comes after it.

  Returns:
    (advantages whitened over the mask, returns), zeros on untrained tokens.

  Source: REINFORCE++ (arXiv 2501.03262) sec. 3.
  """
  returns, _ = gae(rewards, jnp.zeros(jnp.shape(rewards), jnp.float32), mask, gamma=gamma, lam=1.0)
  return masked.whiten(returns, mask), returns
