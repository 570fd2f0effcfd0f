"""The engine's compiled programs. Every shape is fixed by the engine's settings: nothing compiles after warm-up."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.core import sampling
from ragrl_jax.engine import stops as stops_lib
from ragrl_jax.engine.lanes import FULL, RUNNING, Chunk, LaneTable
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.parallel import hosts, rules


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
  """Prefill (`extend`), decode, copy, and a row's way to the host and back; each jitted once.

  Args:
    graphdef: of the decoder (`nnx.split`).
    stops: the stop automaton's device table.
    chunk: most tokens one `decode` draws for a lane.
    block: cache tokens attended to at a time.
    sharding: of the cache, before and after every program.
  """

  def __init__(
    self, graphdef: nnx.GraphDef, stops: stops_lib.Table, *, chunk: int, block: int, sharding: jax.sharding.Sharding
  ):
    self.graphdef, self.stops, self.chunk, self.block = graphdef, stops, chunk, block
    # The cache goes in and out in one layout: another one would be another compilation.
    cache = cache_lib.Cache._make((sharding, sharding))
    self.extend = jax.jit(self._extend, donate_argnums=1, out_shardings=cache)
    self.decode = jax.jit(self._decode, donate_argnums=1, out_shardings=(cache, None))
    self.copy = jax.jit(self._copy, donate_argnums=0, out_shardings=cache)
    self.take_row = jax.jit(cache_lib.take_row)
    self.put_row = jax.jit(cache_lib.put_row, donate_argnums=0, out_shardings=cache)

  def _extend(self, params: Any, cache: cache_lib.Cache, tokens: jax.Array, table: jax.Array) -> cache_lib.Cache:
    """Takes tokens into the cache.

    Args:
      params: the decoder's.
      cache: donated.
      tokens: int32 [n, P].
      table: int32 [n, 3]: row, tokens already in it, how many of the new ones count. Unused: an absent row, 0, 0.

    Returns:
      The cache. No logits: the newest token of a conversation stays outside, and `decode` takes it in.
    """
    model = nnx.merge(self.graphdef, params)
    rows, lengths, counts = table[:, 0], table[:, 1], table[:, 2]
    n, width = tokens.shape
    index = jnp.arange(width, dtype=jnp.int32)[None]
    positions = lengths[:, None] + index
    carry = (cache, cache_lib.fresh(cache, n, width))
    attend = cache_lib.attention(rows, lengths, self.block)
    _, (cache, new) = model.run(model.embed(tokens), positions, attend, carry)
    # A row at length 5 with 2 of P = 4 tokens: places 5 6 ∞ ∞. Past the cache's length nothing is written.
    places = jnp.where(index < counts[:, None], positions, jnp.iinfo(jnp.int32).max)
    return cache_lib.write(cache, new, rows, places)

  def _decode(
    self, params: Any, cache: cache_lib.Cache, packed: jax.Array, limits: jax.Array
  ) -> tuple[cache_lib.Cache, jax.Array]:
    """Draws tokens until `steps` are drawn or fewer than `min_live` lanes live.

    Args:
      params: the decoder's.
      cache: donated.
      packed: int32 [W, COLUMNS], a LaneTable.
      limits: int32 [2]: steps (at most `chunk`), min_live (at least 1). An argument and not a shape: nothing compiles.

    Returns:
      (cache, int32 [2 · chunk + 3, W], a Chunk).
    """
    model = nnx.merge(self.graphdef, params)
    lanes = LaneTable.of(packed)
    keys = jax.lax.bitcast_convert_type(lanes.key, jnp.uint32)
    # A live lane draws a token every step, so the random numbers of all positions of a chunk are known at its start.
    positions = (lanes.length + 1)[None] + jnp.arange(self.chunk, dtype=jnp.int32)[:, None]
    numbers = jax.vmap(lambda position: sampling.uniforms(keys, position))(positions)
    draw = functools.partial(self._draw, model, model.unembedding(), lanes, numbers)

    def more(state: _Decoding) -> jax.Array:
      alive = (state.stop == RUNNING).sum(dtype=jnp.int32)
      return (state.step < limits[0]) & (alive >= limits[1])

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

  def _draw(self, model, unembedding: jax.Array, lanes: LaneTable, numbers: jax.Array, state: _Decoding) -> _Decoding:
    """One step: a token for every live lane. `numbers` are the chunk's random numbers, float32 [T, W]."""
    absent = cache_lib.num_rows(state.cache)
    live = state.stop == RUNNING
    attend = cache_lib.attention(lanes.row, state.length, self.block)
    carry = (state.cache, cache_lib.fresh(state.cache, len(lanes.token), 1))
    hidden, (cache, new) = model.run(model.embed(state.token[:, None]), state.length[:, None], attend, carry)
    # A lane that has ended goes on computing, and writes nowhere: a row that does not exist is dropped.
    cache = cache_lib.write(cache, new, jnp.where(live, lanes.row, absent), state.length[:, None])
    # Features lie as the unembedding's do, so that logits are summed over devices and the matrix stays in its pieces.
    last = rules.constrain(hidden[:, 0], model.mesh, (None, "embed"))
    logits = jax.lax.dot_general(
      last, unembedding.astype(last.dtype), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
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

  def _copy(self, cache: cache_lib.Cache, table: jax.Array) -> cache_lib.Cache:
    """Copies rows: table is int32 [K, 3] of (from, to, blocks); 0 blocks is nothing."""
    return cache_lib.copy(cache, table[:, 0], table[:, 1], table[:, 2], self.block)


def caster(dtype: jnp.dtype, params: Any, mesh: jax.sharding.Mesh | None, *, own: bool = False):
  """A function from the learner's weights to the engine's: cast to the matmuls' dtype and resharded, in one program.

  Args:
    dtype: of the matmuls. Norms and biases stay as they are: the decoder computes them in float32.
    params: weights, or their shapes.
    mesh: the engine's; None leaves the weights on their devices.
    own: share no memory with the learner's weights, so that an update may overwrite those.
  """

  def cast(path, x):
    narrow = any(word in rules.names_of(path)[-1] for word in ("norm", "bias"))
    keeps = narrow or not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == dtype
    return (jnp.copy(x) if own else x) if keeps else x.astype(dtype)

  convert = lambda params: jax.tree_util.tree_map_with_path(cast, params)
  if mesh is not None and mesh.is_multi_process:  # each host's engine has all weights, over that host's devices
    spread = jax.jit(convert, out_shardings=rules.shardings(hosts.per_host(mesh), params))
    return lambda params: hosts.own(spread(params), mesh)
  if mesh is not None:
    return jax.jit(convert, out_shardings=rules.shardings(mesh, params))
  dtypes = lambda tree: jax.tree.map(lambda x: x.dtype, tree)
  # Nothing to cast, move or copy: the engine draws with the learner's own arrays.
  if not own and dtypes(params) == dtypes(jax.eval_shape(convert, params)):
    return lambda params: params
  return jax.jit(convert)
