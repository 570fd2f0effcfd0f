"""LoRA adapters: a frozen matrix W with two trained low-rank matrices A and B, x W + alpha / rank · (x A) B.

A pattern selects the matrices with adapters. It is a list of words; each is a regular expression that must match the
whole name of a matrix in `MATRICES`: "q v" selects two, "[qkvo]" attention's, "gate|up|down" the MLP's, ".*" all.
Adapters are stacked over the layers as their matrices are: A [L, in, rank] in `layers/NAME_lora_a`, B [L, rank, out] in
`layers/NAME_lora_b`. `models/peft.py` reads and writes them.

Source: Hu et al. (arXiv 2106.09685) sec. 4.1. A is initialised as in PEFT; B is 0 at first, so adapters start without
effect.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import rules

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")  # of a `layers.Layer`; a layer with experts has the first four
A, B = "{}_lora_a", "{}_lora_b"


class Adapter(nnx.Param):
  """A parameter of an adapter. Training changes these only; every other `nnx.Param` of the model is frozen."""


def matrices(config: DecoderConfig) -> tuple[str, ...]:
  """Those of MATRICES that a model of this shape has."""
  return MATRICES[:4] if config.num_experts else MATRICES


def chosen(pattern: str, matrices: tuple[str, ...] = MATRICES) -> tuple[str, ...]:
  """Those of `matrices` that a pattern selects, in their order.

  Raises:
    ValueError: a word is not a regular expression or matches no matrix, or the pattern is empty.
  """
  found = set()
  for word in pattern.split():
    try:
      names = [name for name in matrices if re.fullmatch(word, name)]
    except re.error as error:
      raise ValueError(
        f"LoRA layers {pattern!r}: {word!r} is not a regular expression ({error}) (config.model.lora.layers)."
      ) from error
    if not names:
      raise ValueError(
        f"LoRA layers {pattern!r}: {word!r} matches none of {', '.join(matrices)} (config.model.lora.layers)."
      )
    found.update(names)
  if not found:
    raise ValueError(
      f"LoRA layers {pattern!r} names no matrix: use some of {', '.join(matrices)} (config.model.lora.layers)."
    )
  return tuple(name for name in matrices if name in found)


def shapes(model: Decoder, names: tuple[str, ...], rank: int) -> dict[str, Any]:
  """{"layers": {parameter: float32 ShapeDtypeStruct}} of adapters on these matrices; a tree for `parallel/rules.py`."""
  found = {}
  for name in names:
    layers, rows, columns = getattr(model.layers, name).shape
    found[A.format(name)] = jax.ShapeDtypeStruct((layers, rows, rank), jnp.float32)
    found[B.format(name)] = jax.ShapeDtypeStruct((layers, rank, columns), jnp.float32)
  return {"layers": found}


def attach(model: Decoder, adapters: Mapping[str, jax.Array], alpha: float) -> None:
  """Adds these adapters, {parameter: array}, to the model, in place.

  Raises:
    ValueError: the model has adapters already.
  """
  if has(model):
    raise ValueError("the model has LoRA adapters already: merge them first (lora.merged).")
  for name, array in adapters.items():
    setattr(model.layers, name, Adapter(array))
  model.layers.lora_alpha = float(alpha)


def add(model: Decoder, *, rank: int, alpha: float, layers: str, seed: int) -> None:
  """Adds new float32 adapters to the model, in place; its outputs do not change.

  Args:
    model: the decoder; the adapters are sharded over its mesh, if it has one.
    rank: columns of A.
    alpha: the adapters' output is multiplied by alpha / rank.
    layers: the pattern of matrices (see the module's docstring).
    seed: seed of A. The draw for one matrix does not depend on which other matrices have adapters.

  Raises:
    ValueError: a rank below 1, a pattern that selects no matrix, or a model with adapters.
  """
  if rank < 1:
    raise ValueError(f"LoRA rank {rank}: it must be at least 1 (config.model.lora.rank).")
  names, key = chosen(layers, matrices(model.config)), jax.random.key(seed)
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
  """Whether the model has adapters."""
  return bool(jax.tree.leaves(nnx.state(model, Adapter)))


def size(model: nnx.Module) -> int:
  """Number of parameters of the model's adapters; 0 without adapters."""
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, Adapter)))


def trainable(model: nnx.Module) -> type[nnx.Param]:
  """The filter for the trained parameters: the adapters, or all parameters of a model without adapters."""
  return Adapter if has(model) else nnx.Param


def split(model: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
  """(graphdef, trained, frozen): `nnx.merge(graphdef, trained, frozen)` is the model."""
  return nnx.split(model, trainable(model), ...)


def without(adapters: Any) -> Any:
  """Adapters without effect: with the same frozen weights they give the reference policy.

  They are zeros in memory of their own: an update donates the memory of the adapters.
  """
  return jax.tree.map(jnp.zeros_like, adapters)


def merged(model: Decoder, dtype: Any = None) -> Decoder:
  """An equivalent model without adapters: W + alpha / rank · A B, computed in float32.

  Args:
    model: is not changed.
    dtype: dtype of the sums; by default W's. What adapters have learnt is often less than a step of 16 bits.
  """
  model = nnx.merge(*nnx.split(model))  # new modules with the same variables; below, variables are only replaced
  if not has(model):
    return model
  layers = model.layers
  for name in MATRICES:
    if hasattr(layers, A.format(name)):
      a, b = getattr(layers, A.format(name)), getattr(layers, B.format(name))
      matrix = getattr(layers, name)[...]
      both = _sum(matrix, a[...], b[...], layers.lora_alpha / a.shape[-1], jnp.dtype(dtype or matrix.dtype))
      setattr(layers, name, nnx.Param(both))
      delattr(layers, A.format(name))
      delattr(layers, B.format(name))
  del layers.lora_alpha
  return model


@functools.partial(jax.jit, static_argnums=4)
def _sum(matrix, a, b, scale, dtype):
  both = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST) * scale
  return (matrix.astype(jnp.float32) + both).astype(dtype)
