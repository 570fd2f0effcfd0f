"""The engine's compiled programs. Every shape is fixed by the engine's settings: nothing compiles after warm-up.

On several replicas each program runs under `shard_map`: every replica computes with its own lanes, tables and pages,
and none waits for another. What is split over "tensor" within a replica is left to the compiler.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from ragrl_jax.core import sampling
from ragrl_jax.engine import stops as stops_lib
from ragrl_jax.engine.caster import STACKED, Weights
from ragrl_jax.engine.lanes import FULL, RUNNING, Chunk, LaneTable
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.models.decoder import Decoder

REPLICAS = "data"  # the axis of the engine's mesh that replicas lie on
SPLIT, WHOLE = PartitionSpec(REPLICAS), PartitionSpec()


class _Decoding(NamedTuple):
  """The state of `decode`'s loop. W lanes, at most T steps."""

  step: Any  # int32, steps done
  cache: cache_lib.Cache
  token: Any  # int32 [W], the newest one, not yet in the cache
  length: Any  # int32 [W], tokens in the cache
  automaton: Any  # int32 [W], state of the stop automaton
  stop: Any  # int32 [W], RUNNING until the lane's turn has ended
  tokens: Any  # int32 [T, W]
  logprobs: Any  # float32 [T, W]


class Programs:
  """Prefill (`extend`), decode, copy of pages, and their way to the host and back; each jitted once.

  The first axis of every argument but the weights, and of the cache's layers, is split over the replicas.

  Args:
    graphdef: of the decoder (`nnx.split`).
    stops: the stop automaton's device table.
    layout: of the cache's pages.
    chunk: most tokens one `decode` draws for a lane.
    mesh: the engine's; None for one device.
  """

  def __init__(
    self,
    graphdef: nnx.GraphDef,
    stops: stops_lib.Table,
    layout: cache_lib.Layout,
    *,
    chunk: int,
    mesh: jax.sharding.Mesh | None,
  ):
    self.graphdef, self.stops, self.layout, self.chunk, self.mesh = graphdef, stops, layout, chunk, mesh
    # The cache goes in and out in one layout: another one would be another compilation.
    at, drawn = self.cache_sharding(mesh), PartitionSpec(None, REPLICAS)
    copy = lambda cache, pairs: cache_lib.copy(cache, pairs[:, 0], pairs[:, 1])
    both = at, None if mesh is None else NamedSharding(mesh, drawn)
    self.extend = self._jit(self._extend, (WHOLE, SPLIT, SPLIT, SPLIT, SPLIT), SPLIT, at, donate=1)
    self.decode = self._jit(self._decode, (WHOLE, SPLIT, SPLIT, SPLIT, SPLIT), (SPLIT, drawn), both, donate=1)
    self.copy = self._jit(copy, (SPLIT, SPLIT), SPLIT, at, donate=0)
    self.put = self._jit(cache_lib.put, (SPLIT, SPLIT, SPLIT), SPLIT, at, donate=0)
    self.take = self._jit(cache_lib.take, (SPLIT, SPLIT), SPLIT, None, donate=())

  def _jit(self, function: Callable, ins: Any, outs: Any, shardings: Any, *, donate: Any):
    if self.mesh is not None:
      # Kernels are not split by the compiler: with a device a replica, nothing is left to it.
      axes = {REPLICAS} if self.mesh.shape["tensor"] > 1 else set(self.mesh.axis_names)
      function = jax.shard_map(function, mesh=self.mesh, in_specs=ins, out_specs=outs, axis_names=axes, check_vma=False)
    return jax.jit(function, donate_argnums=donate, out_shardings=shardings)

  @staticmethod
  def cache_sharding(mesh: jax.sharding.Mesh | None) -> NamedSharding | None:
    """Of each layer of the cache: pages over the replicas, key-value heads over "tensor"."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(REPLICAS, None, "tensor"))

  def _model(self, weights: Weights) -> Decoder:
    """The decoder. Its layers come from `weights.layers`; `layers` is the first one, for its structure."""
    model = nnx.merge(self.graphdef, nnx.State({**weights.outer, STACKED: weights.layers[0]}))
    model.mesh = None  # within a replica the compiler follows the weights
    return model

  def _extend(self, weights: Weights, cache: cache_lib.Cache, tokens: jax.Array, counts: jax.Array, table: jax.Array):
    """Takes tokens into the cache.

    Args:
      weights: the decoder's.
      cache: donated.
      tokens: int32 [n, P].
      counts: int32 [n, 2]: tokens already in the cache, how many of the new ones count. Unused: 0, 0.
      table: int32 [n, N], pages.

    Returns:
      The cache. No logits: the newest token of a conversation stays outside, and `decode` takes it in.
    """
    model, lengths = self._model(weights), counts[:, 0]
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    positions = lengths[:, None] + index
    # A conversation of length 5 with 2 of P = 4 tokens: they go to 5 6, and the others nowhere.
    places = jnp.where(index < counts[:, 1:], positions, cache_lib.DROPPED)
    attend = self.layout.attention(table, lengths, places)
    return model.run(model.embed(tokens), positions, attend, cache, weights.layers)[1]

  def _decode(
    self, weights: Weights, cache: cache_lib.Cache, packed: jax.Array, table: jax.Array, limits: jax.Array
  ) -> tuple[cache_lib.Cache, jax.Array]:
    """Draws tokens until `steps` are drawn or fewer than `min_live` lanes live.

    Args:
      weights: the decoder's.
      cache: donated.
      packed: int32 [W, COLUMNS], a LaneTable.
      table: int32 [W, N], the pages of each lane's conversation.
      limits: int32 [1, 2]: steps (at most `chunk`), min_live (at least 1). Arguments and no shapes: nothing compiles.

    Returns:
      (cache, int32 [2 · chunk + 3, W], a Chunk).
    """
    model = self._model(weights)
    lanes = LaneTable.of(packed)
    keys = jax.lax.bitcast_convert_type(lanes.key, jnp.uint32)
    # A live lane draws a token every step, so the random numbers of all positions of a chunk are known at its start.
    positions = (lanes.length + 1)[None] + jnp.arange(self.chunk, dtype=jnp.int32)[:, None]
    numbers = jax.vmap(lambda position: sampling.uniforms(keys, position))(positions)
    draw = functools.partial(self._draw, model, weights, lanes, table, numbers)

    def more(state: _Decoding) -> jax.Array:
      alive = (state.stop == RUNNING).sum(dtype=jnp.int32)
      return (state.step < limits[0, 0]) & (alive >= limits[0, 1])

    tokens = jnp.zeros((self.chunk, packed.shape[0]), jnp.int32)
    start = _Decoding(
      step=jnp.int32(0),
      cache=cache,
      token=lanes.token,
      length=lanes.length,
      automaton=lanes.automaton,
      # FULL marks an empty lane, too: it draws nothing, and nobody reads it.
      stop=jnp.where(lanes.live > 0, RUNNING, FULL).astype(jnp.int32),
      tokens=tokens,
      logprobs=tokens.astype(jnp.float32),
    )
    end = jax.lax.while_loop(more, draw, start)
    # tokens [T, W] of a lane that ended after 2 of T = 4 steps: a b x x. Its count is 2, and x is never read.
    chunk = Chunk(end.tokens, end.logprobs, end.length - lanes.length, end.automaton, end.stop)
    return end.cache, chunk.pack()

  def _draw(self, model, weights, lanes: LaneTable, table, numbers: jax.Array, state: _Decoding) -> _Decoding:
    """One step: a token for every live lane. `numbers` are the chunk's random numbers, float32 [T, W]."""
    live, here = state.stop == RUNNING, state.length[:, None]
    # A lane that has ended goes on computing, and writes nowhere.
    attend = self.layout.attention(table, state.length, jnp.where(live[:, None], here, cache_lib.DROPPED))
    hidden, cache = model.run(model.embed(state.token[:, None]), here, attend, state.cache, weights.layers)
    unembedding = model.unembedding()
    logits = jax.lax.dot_general(
      hidden[:, 0], unembedding.astype(hidden.dtype), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    t = state.step
    token, logprob = sampling.draw(logits, numbers[t], lanes.temperature, lanes.top_k, lanes.top_p)
    after, stop = stops_lib.advance(self.stops, state.automaton, token, lanes.accept)
    # A stop that the budget's last token completes is a stop.
    spent = jnp.where(t + 1 >= lanes.budget, FULL, RUNNING)
    return _Decoding(
      step=t + 1,
      cache=cache,
      token=jnp.where(live, token, state.token),
      length=state.length + live.astype(jnp.int32),
      automaton=jnp.where(live, after, state.automaton),
      stop=jnp.where(live, jnp.where(stop >= 0, stop, spent), state.stop),
      tokens=state.tokens.at[t].set(token),
      logprobs=state.logprobs.at[t].set(logprob),
    )
