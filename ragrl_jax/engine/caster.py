"""The engine's weights: the learner's, cast to the matmuls' dtype, with separate arrays for each layer.

The learner's layers are stacked and scanned. A decode step that scanned them would first copy every matrix out of its
stack. So the engine's programs go through separate layers.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.parallel import hosts, rules

STACKED = "layers"


class Weights(NamedTuple):
  """A decoder's weights, or a part of them.

  Attributes:
    outer: those outside the layers.
    layers: those of each layer; () if the part has none.
  """

  outer: nnx.State
  layers: tuple[nnx.State, ...]


def merge(a: Weights, b: Weights) -> Weights:
  """The weights of both parts."""
  both = tuple(nnx.merge_state(x, y) for x, y in zip(a.layers, b.layers))
  return Weights(nnx.merge_state(a.outer, b.outer), both or a.layers or b.layers)


class Caster:
  """Takes weights from the learner to the engine, leaf by leaf: all at once would hold the model a second time.

  Args:
    dtype: of the matmuls. Norms and biases keep theirs: the decoder computes them in float32.
    layers: number of layers.
    mesh: the engine's; None leaves the weights on their device.
    learner: the learner's mesh if it spans several hosts: each host then first gets its own copy.
    own: share no memory with the learner's weights, so that an update may overwrite those.
  """

  def __init__(
    self,
    dtype: jnp.dtype,
    layers: int,
    mesh: jax.sharding.Mesh | None = None,
    *,
    learner: jax.sharding.Mesh | None = None,
    own: bool = False,
  ):
    self._dtype, self._layers, self._mesh, self._learner, self._own = jnp.dtype(dtype), layers, mesh, learner, own

  def __call__(self, params: nnx.State) -> Weights:
    """The engine's form of these weights."""
    return self._of(params, self._cast)

  def abstract(self, params: nnx.State) -> Weights:
    """The shapes, dtypes and shardings of what `self(params)` returns; `params` may be ShapeDtypeStructs."""

    def shapes(x, names, layered, dtype, at):
      shape = x.shape[1:] if layered else x.shape
      one = jax.ShapeDtypeStruct(shape, dtype, sharding=at)
      return (one,) * self._layers if layered else one

    return self._of(params, shapes)

  def _of(self, params, leaf: Callable) -> Weights:
    outer = nnx.State({name: params[name] for name in params if name != STACKED})
    outer = jax.tree_util.tree_map_with_path(lambda path, x: self._one(leaf, path, x, False), outer)
    if STACKED not in params:
      return Weights(outer, ())
    leaves, tree = jax.tree_util.tree_flatten_with_path(params[STACKED])
    split = [self._one(leaf, path, x, True) for path, x in leaves]  # split[i] has leaf i of every layer
    return Weights(outer, tuple(jax.tree.unflatten(tree, layer) for layer in zip(*split)))

  def _one(self, leaf, path, x, layered: bool):
    names = ((STACKED,) if layered else ()) + rules.names_of(path)
    keeps = any(word in names[-1] for word in ("norm", "bias")) or not jnp.issubdtype(x.dtype, jnp.floating)
    dtype = x.dtype if keeps else self._dtype
    at = None if self._mesh is None else _sharding(self._mesh, names, x.shape, layered)
    return leaf(x, names, layered, dtype, at)

  def _cast(self, x, names, layered, dtype, at):
    if self._learner is not None:
      where = _sharding(hosts.per_host(self._learner), names, x.shape, False)
      x = hosts.own(_program(dtype, 0, where)(x), self._learner)
    elif at is None and not layered and not self._own and x.dtype == dtype:
      return x  # nothing to cast, move or copy
    return _program(dtype, self._layers * layered, at)(x)


def _sharding(mesh, names, shape, layered: bool) -> jax.sharding.NamedSharding:
  """Of the parameter of this name and shape; of one of its layers if it is layered."""
  parts = rules.spec(mesh, rules.parameter_axes(names), shape, f"the engine's parameter {'/'.join(names)}")
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts[1:]) if layered else parts)


@functools.lru_cache(maxsize=256)
def _program(dtype: jnp.dtype, layers: int, at: jax.sharding.Sharding | None):
  """Casts an array, and cuts it into so many layers (0: not at all)."""

  def convert(x):
    # Without `copy`, a cast that changes nothing would return the learner's own array.
    cast = x.astype(dtype) if x.dtype != dtype else jnp.copy(x)
    return tuple(cast[layer] for layer in range(layers)) if layers else cast

  return jax.jit(convert, out_shardings=at)
