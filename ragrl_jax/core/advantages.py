"""Advantages from rewards: within groups of samples ([B]), or along a trajectory ([B, T])."""

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
    rewards: one scalar per episode, in reward units.
    group_ids: the prompt of each episode. The ids need not be sorted or consecutive.
    std: "sample" (n - 1 in the divisor), "population" (n), or "none".
    std_floor: smallest standard deviation to divide by, in reward units (LEAR: 0.1).
    eps: added to the standard deviation, in reward units.

  Returns:
    Advantages, unitless unless std is "none". A constant group, and a group of one, get exact zeros.

  Raises:
    ValueError: std is not one of the three names.

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
  # A constant group carries no signal. In float32 its mean may differ from its rewards by rounding. Without this line
  # that residue would be divided by a standard deviation near 0.
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
  """One advantage per turn: the return from that turn on, compared with the group's returns from the same turn on.

  A turn's return is the sum of its own reward and all later ones. A sample with fewer turns takes part with its last
  turn. If the whole reward is paid at the end, every turn gets the advantage that `compare` gives the episode.

  Args:
    rewards: rewards of the turns, in reward units; entries beyond an episode's last turn are ignored.
    turns: number of turns of each episode, at least 1.
    group_ids: the prompt of each episode.
    compare: ([B] rewards, [B] group ids) -> [B], such as `group_relative`.

  Returns:
    Advantages, zeros beyond the last turn.
  """
  number = jnp.arange(rewards.shape[1], dtype=jnp.int32)[None, :]
  last = jnp.asarray(turns).astype(jnp.int32)[:, None] - 1
  trained = masked.keep(rewards, number <= last)
  # The return from each turn on: a cumulative sum from the end. A sample that has ended keeps its last turn's return.
  to_go = jnp.flip(jnp.cumsum(jnp.flip(trained, axis=1), axis=1), axis=1)
  to_go = jnp.take_along_axis(to_go, jnp.minimum(number, last), axis=1)
  advantages = jax.vmap(compare, in_axes=(1, None), out_axes=1)(to_go, jnp.asarray(group_ids))
  return jnp.where(number <= last, advantages, 0.0)


def _centred(rewards: Shaped[AnyArray, "B"], group_ids: Int[AnyArray, "B"]) -> Float[Array, "B"]:
  r = jnp.asarray(rewards).astype(jnp.float32)
  sums = jnp.where(groups.same_group(group_ids), r[None, :], 0.0).sum(axis=1)
  return r - sums / groups.sizes(group_ids)


def gae(
  rewards: Shaped[AnyArray, "B T"], values: Shaped[AnyArray, "B T"], mask: Mask, *, gamma: Number, lam: Number
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
  """Generalised advantage estimation over the trained tokens of unpacked rows; untrained tokens are skipped.

  With t' the next trained token after t (V = A = 0 beyond the last):
    delta_t = r_t + gamma V_t' - V_t,   A_t = delta_t + gamma lam A_t',   return_t = A_t + V_t

  Time is counted in trained tokens: retrieved text between them adds no discount, and its values are not used. Rewards
  on untrained tokens are ignored, so put an episode's reward on its last trained token.

  Args:
    rewards: one per token, in reward units.
    values: the critic's values; entry t belongs to token t.
    mask: 1 where the policy sampled the token.
    gamma: discount per trained token.
    lam: 1 uses the whole return, 0 the one-step estimate.

  Returns:
    (advantages, returns), not whitened, zeros on untrained tokens.

  Source: Schulman et al. (arXiv 1506.02438) eq. 16. verl also skips masked tokens, since 2025; Search-R1 does not: its
  values and discounts pass through retrieved text.
  """
  on = masked.as_bool(mask)
  rewards, values = masked.keep(rewards, on), masked.keep(values, on)

  def step(carry, inputs):
    next_value, next_advantage = carry
    r, v, m = inputs
    advantage = r + gamma * next_value - v + gamma * lam * next_advantage
    # An untrained token leaves the carry as it is, so the token before it continues from the next trained one.
    carry = jnp.where(m, v, next_value), jnp.where(m, advantage, next_advantage)
    return carry, jnp.where(m, advantage, 0.0)

  zeros = jnp.zeros(on.shape[0], jnp.float32)
  _, advantages = jax.lax.scan(step, (zeros, zeros), (rewards.T, values.T, on.T), reverse=True)
  return advantages.T, masked.keep(advantages.T + values, on)
