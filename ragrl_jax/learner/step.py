"""The optimiser step in two pure functions: `accumulate`, called once a block of rows, then `apply`.

Every sum is divided by the whole step's totals, so that blocks, devices and hosts add up to the same loss however the
rows are cut.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ragrl_jax.core import kl as kl_lib
from ragrl_jax.core import losses, masked
from ragrl_jax.learner import scoring
from ragrl_jax.learner.settings import Settings
from ragrl_jax.learner.state import TrainState
from ragrl_jax.structs import Batch

# What `accumulate` adds up: the loss, and means over the step's trained tokens.
SUMS = ("loss", "policy_loss", "kl", "entropy", "clip_fraction", "dual_clip_fraction", "ratio", "old_kl", "mismatch")


def loss(
    params: Any, batch: Batch, totals: jax.Array, graphdef: nnx.GraphDef, settings: Settings,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """This block's share of the step's loss, and of its metrics (SUMS).

  Args:
    params: float32 masters.
    batch: one block of packed rows.
    totals: float32 [2], trained tokens (for SFT: the sum of their weights) and sequences of the whole step.
    graphdef: the model without its parameters.
    settings: the objective.
  """
  s = settings
  model = nnx.merge(graphdef, params)
  logprobs, entropies = scoring.scores(model, batch, temperature=s.temperature, chunk=s.logprob_chunk)
  mask, totals = batch.loss_mask, (totals[0], totals[1])
  add_up = dict(segment_ids=batch.segment_ids, totals=totals, norm=s.norm)
  weights = batch.advantages if s.objective == "sft" else jnp.ones(mask.shape, jnp.float32)
  share = lambda x: masked.total(jax.lax.stop_gradient(x) * weights, mask) / jnp.maximum(totals[0], 1e-6)
  found = dict.fromkeys(SUMS, jnp.float32(0.0))
  if s.objective == "sft":
    # A weighted mean over tokens: the aggregation settings are the policy's.
    value = -masked.total(logprobs * weights, mask) / jnp.maximum(totals[0], 1e-6)
  else:
    old = jax.lax.stop_gradient(logprobs) if s.on_policy else batch.old_logprobs
    value, more = losses.policy_loss(
      logprobs, old, batch.advantages, mask, clip_low=s.clip_low, clip_high=s.clip_high, dual_clip=s.dual_clip,
      aggregation=s.aggregation, ratio=s.ratio, **add_up)
    gap = logprobs - masked.keep(batch.sampler_logprobs, mask)
    found |= more | dict(policy_loss=value, mismatch=share(jnp.abs(gap)))
    if s.kl != "none":
      ref = masked.keep(batch.ref_logprobs, mask)
      penalty = kl_lib.kl_penalty(logprobs, ref, s.kl, tangent=s.kl_tangent)
      value = value + s.kl_coef * losses.aggregate(penalty, mask, s.aggregation, **add_up)
      found["kl"] = share(penalty)
    if s.entropy_coef:
      value = value - s.entropy_coef * losses.aggregate(entropies, mask, s.aggregation, **add_up)
  return value, found | dict(loss=value, entropy=share(entropies))


def accumulate(
    grads: Any, sums: dict[str, jax.Array], params: Any, batch: Batch, totals: jax.Array, graphdef: nnx.GraphDef,
    settings: Settings,
) -> tuple[Any, dict[str, jax.Array]]:
  """Adds one block's gradient and metrics to what came before (both donated)."""
  (_, found), new = jax.value_and_grad(loss, has_aux=True)(params, batch, totals, graphdef, settings)
  return jax.tree.map(jnp.add, grads, new), jax.tree.map(jnp.add, sums, found)


def zeros(params: Any) -> tuple[Any, dict[str, jax.Array]]:
  """What `accumulate` starts from."""
  return jax.tree.map(jnp.zeros_like, params), dict.fromkeys(SUMS, jnp.float32(0.0))


def apply(
    state: TrainState, grads: Any, sums: dict[str, jax.Array], optimizer: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One optimiser step on the accumulated gradient; if it is not finite, none: the state stays as it was.

  Returns:
    (state, metrics): `sums` with grad_norm (before clipping), update_norm, skipped (0 or 1), nonfinite_in_a_row
    and bad_gradients (bool, one a parameter, in the order of jax.tree.leaves).
  """
  bad = jnp.stack([~jnp.isfinite(g).all() for g in jax.tree.leaves(grads)])
  finite = jnp.isfinite(sums["loss"]) & ~bad.any()
  # Zeros instead of what is not finite: the optimiser's arithmetic stays quiet, and its result is not used.
  safe = jax.tree.map(lambda g: jnp.where(finite, g, jnp.zeros_like(g)), grads)
  updates, opt_state = optimizer.update(safe, state.opt_state, state.params)
  pick = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
  skipped = (~finite).astype(jnp.int32)
  new = dataclasses.replace(
    state, params=pick(optax.apply_updates(state.params, updates), state.params),
    opt_state=pick(opt_state, state.opt_state), step=state.step + 1 - skipped,
    nonfinite=jnp.where(finite, 0, state.nonfinite + 1), skipped=state.skipped + skipped)
  metrics = sums | dict(
    grad_norm=optax.tree.norm(grads), update_norm=jnp.where(finite, optax.tree.norm(updates), 0.0),
    skipped=skipped, nonfinite_in_a_row=new.nonfinite, bad_gradients=bad)
  return new, metrics
