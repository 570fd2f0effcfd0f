"""The engine's weights: the learner's, cast to the matmuls' dtype, with separate arrays for each layer.

The learner's layers are stacked and scanned. A decode step that scanned them would first copy every matrix out of its
stack. So the engine's programs loop over separate layers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.engine import sizes
from ragrl_jax.models.decoder import STACKS
from ragrl_jax.parallel import hosts, rules

NO_WEIGHTS = "the engine has no weights: call engine.load(params, version) first."


class Weights(NamedTuple):
  """A decoder's weights, or a part of them.

  Attributes:
    outer: the weights outside the layers.
    layers: the weights of each layer, in the model's order; () if the part has none.
  """

  outer: nnx.State
  layers: tuple[nnx.State, ...]


def merge(a: Weights, b: Weights) -> Weights:
  """The weights of both parts."""
  layers = tuple(nnx.merge_state(x, y) for x, y in zip(a.layers, b.layers))
  return Weights(nnx.merge_state(a.outer, b.outer), layers or a.layers or b.layers)


class Program(NamedTuple):
  """A jitted function, and the shape of its argument."""

  function: Any
  argument: jax.ShapeDtypeStruct


class Caster:
  """Moves weights from the learner to the engine, one leaf at a time. All at once would need memory for a second model.

  Args:
    dtype: of the matmuls. Norms, biases, decays and convolutions keep theirs: the decoder computes them in float32.
    config: the decoder's.
    mesh: the engine's; None leaves the weights on their device.
    engines: the meshes of all engines (`mesh.engines`), if there are several hosts. One program moves a leaf to
      all of them.
    own: share no memory with the learner's weights, so an update may overwrite the learner's.
  """

  def __init__(
    self, dtype: jnp.dtype, config: Any, mesh: Mesh | None = None, *, engines: Mesh | None = None, own: bool = False
  ):
    self._dtype, self._places = jnp.dtype(dtype), config.places
    self._mesh, self._engines, self._own = mesh, engines, own

  def __call__(self, params: nnx.State) -> Weights:
    """Returns these weights in the engine's form."""
    return self._of(params, self._cast)

  def abstract(self, params: nnx.State) -> Weights:
    """The shapes, dtypes and shardings of what `self(params)` returns; `params` may be ShapeDtypeStructs."""

    def shapes(x, names, layered, dtype, at):
      shape = x.shape[1:] if layered else x.shape
      struct = jax.ShapeDtypeStruct(shape, dtype, sharding=at)
      return (struct,) * x.shape[0] if layered else struct

    return self._of(params, shapes)

  def programs(self, params: nnx.State) -> list[tuple[str, Program]]:
    """Returns (name, program that moves the leaf to the engine) for each leaf, in the order in which `self` moves them.

    Args:
      params: ShapeDtypeStructs with shardings.
    """
    result = []

    def step(x, names, layered, dtype, at):
      result.append(("/".join(names), Program(self._program(x.shape[0] * layered, dtype, at), x)))
      return (x,) * x.shape[0] if layered else x

    self._of(params, step)
    return result

  def _of(self, params, leaf: Callable) -> Weights:
    outer = nnx.State({name: params[name] for name in params if name not in STACKS})
    outer = jax.tree_util.tree_map_with_path(lambda path, x: self._one(leaf, path, x), outer)
    stacks = {}
    for name in STACKS:
      if name in params:
        leaves, tree = jax.tree_util.tree_flatten_with_path(params[name])
        split = [self._one(leaf, path, x, name) for path, x in leaves]  # split[i] is leaf i of every layer
        stacks[name] = [jax.tree.unflatten(tree, layer) for layer in zip(*split)]
    if not stacks:
      return Weights(outer, ())
    return Weights(outer, tuple(stacks[name][at] if name in stacks else nnx.State({}) for name, at in self._places))

  def _one(self, leaf, path, x, stack: str = ""):
    layered, names = bool(stack), ((stack,) if stack else ()) + rules.names_of(path)
    wide = any(word in names[-1] for word in ("norm", "bias", "decay", "conv"))
    keeps = wide or not jnp.issubdtype(x.dtype, jnp.floating)
    dtype = x.dtype if keeps else self._dtype
    at = None
    if self._mesh is not None:
      what = f"the engine's parameter {'/'.join(names)}"
      parts = rules.spec(self._mesh, rules.parameter_axes(names), x.shape, what)
      at = NamedSharding(self._mesh, PartitionSpec(*parts[1:]) if layered else parts)
    return leaf(x, names, layered, dtype, at)

  def _cast(self, x, names, layered, dtype, at):
    if at is None and not layered and not self._own and x.dtype == dtype:
      return x  # nothing to cast, move or copy
    cast = self._program(x.shape[0] * layered, dtype, at)(x)
    # All hosts run this program together. Each keeps the part that its engine's devices hold.
    return cast if self._mesh is None or self._engines is None else hosts.own(cast, self._mesh)

  def _program(self, layers: int, dtype, at):
    """The program that moves a leaf to the engine. With several hosts, it moves the leaf to all engines at once."""
    to = at if self._engines is None or at is None else NamedSharding(self._engines, at.spec)
    return _program(dtype, layers, to)


@functools.lru_cache(maxsize=256)
def _program(dtype: jnp.dtype, layers: int, at: jax.sharding.Sharding | None):
  """A program that casts an array and splits it into this number of layers (0: no split)."""

  def convert(x):
    # Without `copy`, a cast that changes nothing would return the learner's own array.
    cast = x.astype(dtype) if x.dtype != dtype else jnp.copy(x)
    return tuple(cast[layer] for layer in range(layers)) if layers else cast

  return jax.jit(convert, out_shardings=at)


class Loader:
  """Loads the learner's weights, version by version.

  Args:
    graphdef: the decoder's, from `nnx.split`.
    mesh: the engine's; None leaves the weights where they are.
    engines: the meshes of all engines, if there are several hosts. All engines load together.
    frozen: the decoder's weights that are the same in every version. `load` gets the others.
    own_weights: keep a copy of the weights, so an update may overwrite the learner's while the engine samples.

  Attributes:
    weights: the weights that were loaded last, without the frozen ones; None if there are none. `load` accepts them.
    whole: these and the frozen ones, as the engine's programs take them.
    config, dtype: of the decoder, from the first `load` on.
  """

  def __init__(
    self,
    graphdef: nnx.GraphDef,
    mesh: Mesh | None,
    *,
    engines: Mesh | None = None,
    frozen: nnx.State | None = None,
    own_weights: bool = False,
  ):
    self._graphdef, self._mesh, self._engines, self._own_weights = graphdef, mesh, engines, own_weights
    self._unfrozen = nnx.State({}) if frozen is None else frozen
    self._cast: Any = None
    self._frozen: Any = None
    self.weights: Weights | None = None
    self.whole: Weights | None = None
    self.config: Any = None
    self.dtype: Any = None

  def load(self, params: Any) -> None:
    """Loads weights in the learner's form, or an earlier value of `weights`."""
    self.release()  # before the new ones arrive, because there may be no room for both
    if self._cast is None:
      model = nnx.merge(self._graphdef, params, self._unfrozen)
      self.config, self.dtype = c, dtype = model.config, model.dtype
      tensor = 1 if self._mesh is None else self._mesh.shape["tensor"]
      sizes.check_model(c.num_kv_heads, c.vocab_size, tensor, **c.parts)
      self._cast = Caster(dtype, c, self._mesh, engines=self._engines, own=self._own_weights)
      self._frozen, self._unfrozen = self._cast(self._unfrozen), None  # cast once, for all versions
    new = params if isinstance(params, Weights) else self._cast(params)
    self.weights, self.whole = new, merge(self._frozen, new)

  def release(self) -> None:
    """Frees the memory of the weights, until the next `load`."""
    self.weights = self.whole = None

  def check(self, version: int) -> None:
    """Raises ValueError if there are no weights, or if they were donated after loading."""
    if self.whole is None:
      raise ValueError(NO_WEIGHTS)
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(self.whole)):
      raise ValueError(f"the weights of version {version} were donated to an update: load the new ones first.")
