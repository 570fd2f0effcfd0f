"""Settings → one Optax chain: clip the accumulated gradient, then AdamW, or Muon for the hidden matrices."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from ragrl_jax.learner.settings import OptimizerSettings
from ragrl_jax.models.decoder import STACKS


def learning_rate(settings: OptimizerSettings) -> optax.Schedule:
  """Optimiser step (from 0) → learning rate. The first step of a warm-up of n is already learning_rate / n."""
  s = settings
  remaining = max(s.total_steps - s.warmup_steps, 1)
  top = max(s.warmup_steps, 1)
  after = dict(
    constant=optax.constant_schedule(s.learning_rate),
    cosine=optax.cosine_decay_schedule(s.learning_rate, remaining, alpha=s.final_share),
    linear=optax.linear_schedule(s.learning_rate, s.learning_rate * s.final_share, remaining),
    inverse_sqrt=lambda step: s.learning_rate * (top / (top + jnp.maximum(step, 0))) ** 0.5,  # not used below 0
  )[s.schedule]
  if not s.warmup_steps:
    return after
  # Warm-up over 4 steps: 1/4, 2/4, 3/4, 4/4 of the peak. A step at rate 0 would be wasted.
  warm = optax.linear_schedule(s.learning_rate / s.warmup_steps, s.learning_rate, max(s.warmup_steps - 1, 1))
  return optax.join_schedules([warm, after], [s.warmup_steps])


def make(settings: OptimizerSettings, head: OptimizerSettings | None = None) -> optax.GradientTransformation:
  """The optimiser. It takes gradients of the whole step and returns updates.

  The tree tells the kind of each parameter. A decoder stacks its layers, so below `layers` and `delta` matrices have
  three axes [L, in, out], those of experts four [L, E, in, out], and norms and biases two. Outside, embedding and head
  have two axes and the final norm one.

  Args:
    head: settings for a value head in the same tree. Its gradient is clipped separately.
  """
  transform = _chain(settings)
  # A value head starts far from its target. A common clip with its large gradients would shrink those of the trunk.
  if head is not None:
    parts: dict[Hashable, optax.GradientTransformation] = {"model": transform, "value_head": _chain(head)}
    which = lambda name, _: "value_head" if "value_" in name else "model"
    transform = optax.partition(parts, lambda params: _labels(params, which))
  return _promoting(transform)


def _chain(s: OptimizerSettings) -> optax.GradientTransformation:
  rate = learning_rate(s)
  inner = optax.adamw(rate, b1=s.b1, b2=s.b2, weight_decay=s.weight_decay, mask=decayed)
  if s.kind == "muon":
    # [L, in, out] and [L, E, in, out]: each matrix is orthogonalised separately.
    dimensions = lambda x: contrib.MuonDimensionNumbers(reduction_axis=x.ndim - 2, output_axis=x.ndim - 1)
    muon = optax.chain(
      contrib.scale_by_muon(weight_dimension_numbers=lambda tree: jax.tree.map(dimensions, tree)),
      optax.stateless_with_tree_map(lambda update, _: update * _width_scale(update)),
      optax.add_decayed_weights(s.weight_decay),
      optax.scale_by_learning_rate(lambda step: s.muon_scale * rate(step)),
    )
    parts: dict[Hashable, optax.GradientTransformation] = {"muon": muon, "adamw": inner}
    inner = optax.partition(parts, kinds)
  return optax.chain(optax.clip_by_global_norm(s.clip_norm), inner) if s.clip_norm else inner


def _promoting(inner: optax.GradientTransformation) -> optax.GradientTransformation:
  """Allows promotion: Optax's schedules and Muon combine floats with an int32 count, which strict promotion refuses."""

  def update(updates, state, params=None):
    with jax.numpy_dtype_promotion("standard"):
      return inner.update(updates, state, params)

  return optax.GradientTransformation(inner.init, update)


def kinds(params: Any) -> Any:
  """ "muon" for the layers' matrices, "adamw" for all other parameters, as adapters and delta layers."""
  # LoRA's factors are in the layers too, but Muon is for whole matrices, so AdamW updates the factors.
  hidden = lambda name, x: "layers" in name and x.ndim in (3, 4) and "_lora_" not in name
  return _labels(params, lambda name, x: "muon" if hidden(name, x) else "adamw")


def decayed(params: Any) -> Any:
  """Whether weight decay applies: to matrices, embeddings and heads, but not to norms and biases."""
  return _labels(params, lambda name, x: x.ndim > 1 + any(stack in name for stack in STACKS))


def _labels(params: Any, label: Callable[[str, Any], Any]) -> Any:
  """label(path, leaf) of every leaf, as a tree."""
  return jax.tree_util.tree_map_with_path(lambda path, x: label(jax.tree_util.keystr(path), x), params)


def _width_scale(x: Any) -> float:
  """Muon's factor for a matrix [.., in, out] with out > in: sqrt(out / in), at least 1 (Jordan et al. 2024)."""
  return max(1.0, x.shape[-1] / x.shape[-2]) ** 0.5
