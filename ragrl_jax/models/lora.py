"""LoRA: beside a frozen matrix W two narrow ones are trained, x W + alpha / rank · (x A) B.

Which matrices is said by a pattern of words, each a regular expression that must match a matrix's whole name, one of
`MATRICES`: "q v" names two, "[qkvo]" attention's, "gate|up|down" the MLP's, ".*" all. Adapters are stacked over the
layers as their matrices are: A [L, in, rank], B [L, rank, out], under `layers/NAME_lora_a` and `layers/NAME_lora_b`.
Their folder on disk is `models/peft.py`'s.

Source: Hu et al. (arXiv 2106.09685) sec. 4.1. A is drawn as PEFT draws it; B begins at zero, and with it the effect.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import rules

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")  # of a `layers.Layer`
A, B = "{}_lora_a", "{}_lora_b"


class Adapter(nnx.Param):
  """A part of an adapter: what is trained while every other `nnx.Param` of the model stays as it is."""


def chosen(pattern: str) -> tuple[str, ...]:
  """The matrices that a pattern names, in MATRICES' order.

  Raises:
    ValueError: a word is no regular expression or matches no matrix, or there is no word.
  """
  found = set()
  for word in pattern.split():
    try:
      names = [name for name in MATRICES if re.fullmatch(word, name)]
    except re.error as error:
      raise ValueError(
        f"LoRA layers {pattern!r}: {word!r} is no regular expression ({error}) (config.model.lora.layers)."
      ) from error
    if not names:
      raise ValueError(
        f"LoRA layers {pattern!r}: {word!r} matches none of {', '.join(MATRICES)} (config.model.lora.layers)."
      )
    found.update(names)
  if not found:
    raise ValueError(
      f"LoRA layers {pattern!r} names no matrix: use some of {', '.join(MATRICES)} (config.model.lora.layers)."
    )
  return tuple(name for name in MATRICES if name in found)


def shapes(model: Decoder, names: tuple[str, ...], rank: int) -> dict[str, Any]:
  """{"layers": {parameter: float32 shape}} of adapters on these matrices, a tree as `parallel/rules.py` reads it."""
  found = {}
  for name in names:
    layers, rows, columns = getattr(model.layers, name).shape
    found[A.format(name)] = jax.ShapeDtypeStruct((layers, rows, rank), jnp.float32)
    found[B.format(name)] = jax.ShapeDtypeStruct((layers, rank, columns), jnp.float32)
  return {"layers": found}


def attach(model: Decoder, adapters: Mapping[str, jax.Array], alpha: float) -> None:
  """Gives the model these adapters, {parameter: array}, in place.

  Raises:
    ValueError: it has some already.
  """
  if has(model):
    raise ValueError("the model has LoRA adapters already: merge them first (lora.merged).")
  for name, array in adapters.items():
    setattr(model.layers, name, Adapter(array))
  model.layers.lora_alpha = float(alpha)


def add(model: Decoder, *, rank: int, alpha: float, layers: str, seed: int) -> None:
  """Gives the model fresh adapters, in place; what it computes does not change.

  Args:
    model: spread over its own mesh, if it has one, and so are its adapters. They are float32, whatever it is.
    rank: columns of A.
    alpha: over rank, what the adapters' output is multiplied by.
    layers: a pattern of matrices (see above).
    seed: of A. A matrix's draw does not depend on which others have adapters.

  Raises:
    ValueError: a rank below 1, a pattern that names no matrix, or a model with adapters.
  """
  if rank < 1:
    raise ValueError(f"LoRA rank {rank}: it must be at least 1 (config.model.lora.rank).")
  names, key = chosen(layers), jax.random.key(seed)
  tree = shapes(model, names, rank)
  found = {}
  for name, leaf in tree["layers"].items():
    found[name] = jnp.zeros(leaf.shape, leaf.dtype)
    if name.endswith(A.format("")):
      # PEFT's kaiming_uniform_(a=√5) over `in` inputs: bound √(6 / (1 + 5) / in).
      number = MATRICES.index(name.removesuffix(A.format("")))
      bound = leaf.shape[1] ** -0.5
      found[name] = jax.random.uniform(jax.random.fold_in(key, number), leaf.shape, leaf.dtype, -bound, bound)
  if model.mesh is not None:
    found = jax.device_put(found, rules.shardings(model.mesh, tree)["layers"])
  attach(model, found, alpha)


def has(model: nnx.Module) -> bool:
  """Whether there are adapters anywhere in it."""
  return bool(jax.tree.leaves(nnx.state(model, Adapter)))


def size(model: nnx.Module) -> int:
  """Parameters of its adapters; 0 without any."""
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, Adapter)))


def trainable(model: nnx.Module) -> type[nnx.Param]:
  """The filter of what training changes: the adapters, or every parameter of a model that has none."""
  return Adapter if has(model) else nnx.Param


def split(model: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
  """(graphdef, what is trained, what is frozen): `nnx.merge(graphdef, trained, frozen)` is the model."""
  return nnx.split(model, trainable(model), ...)


def without(adapters: Any) -> Any:
  """Adapters that do nothing: over the same frozen weights, the model without its own. The reference policy.

  All zeros, so that nothing is shared with a state that an update donates.
  """
  return jax.tree.map(jnp.zeros_like, adapters)


def merged(model: Decoder) -> Decoder:
  """A model without adapters that computes the same: W + alpha / rank · A B, summed in float32, in W's dtype."""
  model = nnx.merge(*nnx.split(model))  # new modules, the same variables: these are replaced, not written to
  if not has(model):
    return model
  layers = model.layers
  for name in MATRICES:
    if hasattr(layers, A.format(name)):
      a, b = getattr(layers, A.format(name)), getattr(layers, B.format(name))
      both = _sum(getattr(layers, name)[...], a[...], b[...], layers.lora_alpha / a.shape[-1])
      setattr(layers, name, nnx.Param(both))
      delattr(layers, A.format(name))
      delattr(layers, B.format(name))
  del layers.lora_alpha
  return model


@jax.jit
def _sum(matrix, a, b, scale):
  both = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST) * scale
  return (matrix.astype(jnp.float32) + both).astype(matrix.dtype)
