"""The engine's devices: loads weights onto them, allocates the cache and compiles the programs."""

from typing import Any

import jax
from flax import nnx

from ragrl_jax.engine import caster
from ragrl_jax.engine import sizes as sizes_lib
from ragrl_jax.engine.kv_cache import KVCache
from ragrl_jax.engine.programs import Programs
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.engine.team import Team
from ragrl_jax.models import cache as cache_lib

NO_WEIGHTS = "the engine has no weights: call engine.load(params, version) first."


class Loader:
  """Holds an engine's weights and its cache. The first `load` creates both, because it gives the weights' shapes.

  Args:
    graphdef, stops, sizes, mesh: as for `Engine`.
    every: the meshes of all engines, if there are several hosts. All engines load together.
    team: the hosts of this engine, if there are several.
    frozen: the decoder's weights that are the same in every version. `load` gets the others.
    own_weights: keep a copy of the weights, so an update may overwrite the learner's while the engine samples.

  Attributes:
    weights: the weights that were loaded last, without the frozen ones. `load` accepts them.
  """

  def __init__(
    self,
    graphdef: nnx.GraphDef,
    stops: Stops,
    sizes: Sizes,
    mesh: jax.sharding.Mesh | None,
    *,
    every: jax.sharding.Mesh | None = None,
    team: Team | None = None,
    frozen: nnx.State | None = None,
    own_weights: bool = False,
  ):
    self._graphdef, self._stops, self._sizes, self._mesh = graphdef, stops, sizes, mesh
    self._every, self._team, self._own_weights = every, team, own_weights
    self._unfrozen = nnx.State({}) if frozen is None else frozen
    self.weights: caster.Weights | None = None
    self._cast: Any = None
    self._frozen: Any = None
    self._cache: KVCache | None = None

  @property
  def cache(self) -> KVCache:
    """The cache and its programs. Raises ValueError before the first `load`."""
    if self._cache is None:
      raise ValueError(NO_WEIGHTS)
    return self._cache

  def load(self, params: Any) -> None:
    """Loads weights in the learner's form, or an earlier value of `weights`."""
    # The old weights are freed before the new ones arrive, because there may be no room for both.
    self.weights = None
    if self._cache is None:
      self._build(params)  # the first weights define the shapes
      return
    self._cache.weights = None
    new = params if isinstance(params, caster.Weights) else self._cast(params)
    self.weights, self._cache.weights = new, caster.merge(self._frozen, new)

  def _build(self, params: nnx.State) -> None:
    """Casts the first weights, allocates the cache and runs every program once, so that nothing compiles later."""
    model, mesh, sizes = nnx.merge(self._graphdef, params, self._unfrozen), self._mesh, self._sizes
    config, dtype, tensor = model.config, model.dtype, 1 if mesh is None else mesh.shape["tensor"]
    sizes_lib.check_model(config.num_kv_heads, config.vocab_size, tensor, experts=config.num_experts)
    self._cast = caster.Caster(dtype, config.num_layers, mesh, every=self._every, own=self._own_weights)
    self._frozen, self._unfrozen = self._cast(self._unfrozen), None  # cast once, for all versions
    new = self._cast(params)
    self.weights, every = new, caster.merge(self._frozen, new)
    at = Programs.cache_sharding(mesh) or jax.tree.leaves(every)[0].sharding
    platform = next(iter(at.device_set)).platform
    layout = cache_lib.layout(config, sizes.page, dtype, platform, tensor, kv_dtype=sizes.kv_dtype)
    table, chunk, speculate = self._stops.table, sizes.chunk, sizes.speculate
    how = dict(chunk=chunk, speculate=speculate, routes=config.num_layers * config.experts_per_token)
    programs = Programs(self._graphdef, table, layout, **how, mesh=mesh)
    allocate = lambda: layout.allocate(sizes.cache_pages * sizes.replicas, at)
    self._cache = KVCache(programs, allocate, every, sizes, self._team)
    for _ in range(2):  # the second time with the cache that the first one returned, whose layout may differ
      self._cache.warm_up()
    self._cache.block_until_ready()

  def release(self) -> None:
    """Frees the memory of weights and cache, until the next `load`."""
    self.weights = self.cache.weights = None
    self.cache.release()

  def restore(self) -> None:
    """Makes the cache usable again after an interrupted program or a release."""
    if self._cache is not None:
      self._cache.restore()

  def check(self, version: int) -> None:
    """Raises ValueError if there are no weights, or if they were donated after loading."""
    if self.weights is None:
      raise ValueError(NO_WEIGHTS)
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(self.cache.weights)):
      raise ValueError(f"the weights of version {version} were donated to an update: load the new ones first.")
