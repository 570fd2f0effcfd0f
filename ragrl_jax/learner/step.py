"""The optimiser step in two pure functions: `accumulate`, called once per block of rows, then `apply`.

Every sum is divided by the whole step's totals. So the loss does not depend on how the rows are divided into blocks, or
among devices and hosts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ragrl_jax.core import guards, kl as kl_lib, losses, masked
from ragrl_jax.core.value import value_loss
from ragrl_jax.learner import forward
from ragrl_jax.learner.settings import Settings
from ragrl_jax.learner.state import TrainState
from ragrl_jax.structs import Batch

# The sums of the policy's `accumulate`: the loss, and means over the step's trained tokens.
SUMS = (
  "loss", "policy_loss", "kl", "kl_k2", "kl_k3", "entropy", "clip_fraction", "dual_clip_fraction", "ratio", "old_kl",
  "mismatch", "importance", "importance_capped", "importance_dropped", "left_out_sequences", "left_out_tokens", "llds",
  "llds_tokens", "fallen_tokens", "teacher_kl", "taught", "value_loss",
)  # fmt: skip


def computed(settings: Settings) -> set[str]:
  """The names of SUMS that mean something with these settings. The others stay 0, and are not reported."""
  s = settings
  given = {"loss entropy": True, "teacher_kl taught": s.teacher.in_loss, "value_loss": s.critic.kind == "shared"}
  if s.objective == "policy":
    given |= {
      "policy_loss clip_fraction ratio old_kl mismatch": True,
      "dual_clip_fraction": s.dual_clip is not None,
      "importance": s.importance_cap is not None,
      "importance_capped": s.importance_cap is not None and s.importance_floor is None,
      "importance_dropped": s.importance_floor is not None,
      "left_out_sequences": s.masks_sequences,
      "left_out_tokens": s.masks_tokens,
      "llds llds_tokens": s.llds_coef,
      "fallen_tokens": s.steps > 1,
      "kl kl_k2 kl_k3": s.kl != "none",
    }
  return {name for names, on in given.items() if on for name in names.split()}


Sums = dict[str, jax.Array]
# (model, batch, totals [2], kl_coef, teacher or None) → (this block's share of the loss, its metrics)
Objective = Callable[..., tuple[jax.Array, Sums]]


def policy_objective(
  model: Any,
  batch: Batch,
  totals: jax.Array,
  kl_coef: jax.Array,
  teacher: tuple[jax.Array, jax.Array] | None = None,
  *,
  settings: Settings,
) -> tuple[jax.Array, Sums]:
  """This block's share of the step's loss, and of its metrics (SUMS).

  Args:
    model: the policy; with a shared critic, that critic, whose trunk the policy is.
    totals: float32 [2], trained tokens (for SFT: the sum of their weights) and sequences of the whole step.
    kl_coef: float32, the penalty's weight in the loss.
    teacher: the states of a teacher for this block, and its unembedding.
  """
  s = settings
  policy = model.trunk if s.critic.kind == "shared" else model
  # One forward pass gives all of them: log-probabilities, entropies, divergences, and a shared critic's values.
  hidden = forward.states(policy, batch)
  teacher_terms: dict[str, Any] = dict(teacher=teacher, beta=s.teacher.mixture)
  logprobs, entropies, *apart = forward.scores(
    policy, batch, temperature=s.temperature, chunk=s.logprob_chunk, hidden=hidden, **teacher_terms
  )
  mask, of_step = batch.loss_mask, (totals[0], totals[1])
  # Always all names, because the blocks' metrics are added leaf by leaf in one compiled program.
  metrics = {name: jnp.float32(0.0) for name in SUMS}
  if s.objective == "sft":
    # SFT is a weighted mean over tokens. The aggregation settings are for the policy's loss.
    weights = batch.advantages
    value = -masked.total(logprobs * weights, mask) / jnp.maximum(of_step[0], 1e-6)
  else:
    weights = jnp.ones(mask.shape, jnp.float32)
    value, extra = _policy(logprobs, entropies, batch, of_step, kl_coef, s)
    metrics |= extra
  if apart:
    term, extra = _teacher_term(apart[0], weights, batch, of_step, s)
    value, metrics = term if s.teacher.alone else value + term, metrics | extra
  if s.critic.kind == "shared":
    metrics["value_loss"] = _value(forward.values(model, batch, hidden), batch, of_step, s)
    value = value + s.critic.coef * metrics["value_loss"]
  return value, metrics | dict(loss=value, entropy=_share(mask, of_step)(entropies * weights))


def _share(mask, totals):
  """x → this block's share of its mean over the whole step's tokens. Metrics have no gradient."""
  return lambda x: masked.total(jax.lax.stop_gradient(x), mask) / jnp.maximum(totals[0], 1e-6)


def _policy(logprobs, entropies, batch, totals, kl_coef, s):
  """The clipped surrogate with its penalties, and their metrics."""
  mask = batch.loss_mask
  # Every aggregation needs the sequences (by segments) and the whole step's totals.
  add_up = dict(segment_ids=batch.segment_ids, totals=totals, norm=s.norm)
  share = _share(mask, totals)
  # With one step per batch the current policy is the old one: the ratio is 1, and its gradient the policy gradient.
  old = masked.keep(batch.old_logprobs, mask) if s.scores_old else jax.lax.stop_gradient(logprobs)
  # Sampler and learner compute the same log-probabilities with different programs; this measures the difference. The
  # old policy's, because the present one may have taken steps on this batch.
  metrics = dict(mismatch=share(jnp.abs(old - masked.keep(batch.sampler_logprobs, mask))))
  weights, extra_metrics = _weights(logprobs, old, batch, share, s)
  metrics |= extra_metrics
  value, extra = losses.policy_loss(
    logprobs,
    old,
    batch.advantages,
    mask,
    clip_low=s.clip_low,
    clip_high=s.clip_high,
    dual_clip=s.dual_clip,
    aggregation=s.aggregation,
    ratio=s.ratio,
    surrogate=s.surrogate,
    weights=weights,
    **add_up,
  )
  metrics |= extra | dict(policy_loss=value)
  if s.kl != "none":
    # If the penalty is part of the reward, it is only measured here.
    reference = masked.keep(batch.ref_logprobs, mask)
    penalty = kl_lib.kl_penalty(logprobs, reference, s.kl, tangent=s.kl_tangent)
    if s.kl_corrected:
      penalty = penalty * guards.importance_weights(logprobs, old, mask, cap=float("inf"))
    metrics["kl"] = share(penalty)
    metrics |= {
      f"kl_{name}": share(kl_lib.kl_penalty(logprobs, reference, name, tangent=s.kl_tangent)) for name in ("k2", "k3")
    }  # the same measures in every run, whichever estimator is the penalty
    if s.kl_in == "loss":
      value = value + kl_coef * masked.aggregate(penalty, mask, s.aggregation, **add_up)
  if s.steps > 1:  # before the first of them nothing has moved
    inputs = (logprobs, old, batch.advantages, mask)
    metrics["fallen_tokens"] = share(guards.fallen_actions(*inputs, segment_ids=batch.segment_ids))
  if s.llds_coef:
    falls, fell = guards.fallen_likelihood(logprobs, old, batch.advantages, mask, segment_ids=batch.segment_ids)
    metrics |= dict(llds=share(falls), llds_tokens=share(fell))
    value = value + s.llds_coef * masked.aggregate(falls, mask, s.aggregation, **add_up)
  if s.entropy_coef:
    value = value - s.entropy_coef * masked.aggregate(entropies, mask, s.aggregation, **add_up)
  return value, metrics


def _teacher_term(apart, weights, batch, totals, s):
  """The teacher's term of the loss, and its metrics, in which tokens count by SFT's weights."""
  mask, on = batch.loss_mask, jnp.where(batch.teaching > 0.0, weights, 0.0)
  mode = "token_mean" if s.objective == "sft" else s.aggregation
  term = masked.aggregate(apart * batch.teaching, mask, mode, segment_ids=batch.segment_ids, totals=totals, norm=s.norm)
  share = _share(mask, totals)
  return term, dict(teacher_kl=share(apart * on), taught=share(on))


def _weights(logprobs, old, batch, share, s):
  """(constant factors of the tokens' losses, or None; their metrics)."""
  mask, sampler = batch.loss_mask, batch.sampler_logprobs
  factors, metrics = [], {}
  if s.importance_cap is not None:
    weights = guards.importance_weights(old, sampler, mask, cap=s.importance_cap, floor=s.importance_floor)
    factors.append(weights)
    metrics |= dict(importance=share(weights), importance_capped=share(weights >= s.importance_cap))
    metrics |= dict(importance_dropped=share(weights == 0.0))
  if s.masks_sequences:
    bounds = dict(low=s.sequence_low, high=s.sequence_high)
    factors.append(keep := guards.kept_sequences(logprobs, sampler, mask, **bounds, segment_ids=batch.segment_ids))
    metrics["left_out_sequences"] = share(1.0 - keep)
  if s.masks_tokens:
    bounds = dict(max_fall=s.max_fall, max_rise=s.max_rise)
    factors.append(keep := guards.kept_tokens(logprobs, sampler, batch.advantages, mask, **bounds))
    metrics["left_out_tokens"] = share(1.0 - keep)
  return (functools.reduce(jnp.multiply, factors) if factors else None), metrics


def value_objective(
  critic: Any, batch: Batch, totals: jax.Array, _: jax.Array, *, settings: Settings
) -> tuple[jax.Array, Sums]:
  """The loss of a critic with its own trunk, and its metrics ("loss")."""
  batch = dataclasses.replace(batch, routes=None)  # the policy's, not this trunk's
  value = _value(forward.values(critic, batch), batch, (totals[0], totals[1]), settings)
  return value, dict(loss=value)


def _value(values, batch, totals, s):
  # A mean over tokens for every aggregation of the policy's loss, because each value belongs to a token.
  return value_loss(
    values,
    batch.values,
    batch.returns,
    batch.loss_mask,
    clip=s.critic.clip,
    aggregation="token_mean",
    segment_ids=batch.segment_ids,
    totals=totals,
  )


def accumulate(grads: Any, sums: Sums, loss: Objective, params: Any, *inputs: Any) -> tuple[Any, Sums]:
  """Adds the gradient and metrics of loss(params, *given), for one block, to those of earlier blocks (donated)."""
  (_, metrics), new = jax.value_and_grad(loss, has_aux=True)(params, *inputs)
  # Sums and not means, because the loss is already divided by the whole step's totals.
  return jax.tree.map(jnp.add, grads, new), jax.tree.map(jnp.add, sums, metrics)


def accumulate_in_place(grads: Any, sums: Sums, loss: Objective, params: Any, *inputs: Any) -> tuple[Any, Sums]:
  """`accumulate` without a block's own gradient: each layer's is added as soon as it is known."""
  found: Any = jax.vjp(lambda params: loss(params, *inputs), params, has_aux=True)
  value, vjp, metrics = found
  held = jax.tree.map(jax.new_ref, grads)
  vjp.with_refs(held)(jnp.ones_like(value))
  return jax.tree.map(jax.freeze, held), jax.tree.map(jnp.add, sums, metrics)


def zeros(params: Any, names: tuple[str, ...]) -> tuple[Any, Sums]:
  """The initial sums of `accumulate`."""
  return jax.tree.map(jnp.zeros_like, params), {name: jnp.float32(0.0) for name in names}


def apply(
  state: TrainState, grads: Any, sums: Sums, optimizer: optax.GradientTransformation, rate: jax.Array | None = None
) -> tuple[TrainState, Sums]:
  """One optimiser step with the accumulated gradient.

  If loss, gradient or update is not finite, the step is skipped and the state unchanged. `rate` multiplies the learning
  rate.

  Returns:
    (state, metrics): `sums` with grad_norm (before clipping), update_norm, skipped (0 or 1), nonfinite_in_a_row
    and bad_gradients (bool, one per parameter, in the order of jax.tree.leaves).
  """
  # Decided on the device. The host reads the result with the step's other metrics, so it does not wait earlier.
  bad = jnp.stack([~jnp.isfinite(g).all() for g in jax.tree.leaves(grads)])
  # The loss is checked too, because clipping can leave a finite gradient of an infinite loss.
  finite = jnp.isfinite(sums["loss"]) & ~bad.any()
  # Zeros replace values that are not finite, so the optimiser's arithmetic has no NaN; its result is not used.
  safe = jax.tree.map(lambda g: jnp.where(finite, g, jnp.zeros_like(g)), grads)
  updates, opt_state = optimizer.update(safe, state.opt_state, state.params)
  if rate is not None:  # the learning rate is a factor of the whole update, the weight decay's part included
    updates = jax.tree.map(lambda update: update * rate, updates)
  update_norm = optax.tree.norm(updates)
  finite &= jnp.isfinite(update_norm)
  pick = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
  skipped = (~finite).astype(jnp.int32)
  new = dataclasses.replace(
    state,
    params=pick(optax.apply_updates(state.params, updates), state.params),
    opt_state=pick(opt_state, state.opt_state),
    step=state.step + 1 - skipped,  # a skipped step does not advance schedules
    nonfinite=jnp.where(finite, 0, state.nonfinite + 1),
    skipped=state.skipped + skipped,
  )
  metrics = sums | dict(
    grad_norm=optax.tree.norm(grads),
    update_norm=jnp.where(finite, update_norm, 0.0),
    skipped=skipped,
    nonfinite_in_a_row=new.nonfinite,
    bad_gradients=bad,
  )
  return new, metrics
