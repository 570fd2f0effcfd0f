"""The engine's compiled programs. Every shape is fixed by the engine's settings: nothing compiles after warm-up."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.core import sampling
from ragrl_jax.engine import stops as stops_lib
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.parallel import hosts, rules

# What `decode` is told of each lane: the columns of its int32 table [W, COLUMNS]. The floats travel as their bits.
TOKEN = 0  # the newest token, not yet in the cache
LENGTH = 1  # tokens in the cache: the newest token's place
ROW = 2  # cache row; one that does not exist where the lane is empty
LIVE = 3
BUDGET = 4  # tokens it may still draw
STATE = 5  # of the stop automaton
ACCEPT = 6  # stop strings asked for, as bits
TOP_K = 7
KEY = 8  # two columns: the conversation's key
TEMPERATURE = 10
TOP_P = 11
COLUMNS = 12

RUNNING, FULL = -1, -2  # in `decode`'s last row: not ended; budget spent. Otherwise the number of the stop.


class Programs:
  """prefill, decode, copy, and the way of a row to the host and back; each jitted once.

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
    cache = cache_lib.Cache(sharding, sharding)
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
    """
    model = nnx.merge(self.graphdef, params)
    rows, lengths, counts = table[:, 0], table[:, 1], table[:, 2]
    n, width = tokens.shape
    index = jnp.arange(width, dtype=jnp.int32)[None]
    positions = lengths[:, None] + index
    carry = (cache, cache_lib.fresh(cache, n, width))
    attend = cache_lib.attention(rows, lengths, self.block)
    _, (cache, new) = model.run(model.embed(tokens), positions, attend, carry)
    places = jnp.where(index < counts[:, None], positions, jnp.iinfo(jnp.int32).max)
    return cache_lib.write(cache, new, rows, places)

  def _decode(
    self, params: Any, cache: cache_lib.Cache, table: jax.Array, limits: jax.Array
  ) -> tuple[cache_lib.Cache, jax.Array]:
    """Draws tokens until `steps` are drawn or fewer than `min_live` lanes live.

    Args:
      params: the decoder's.
      cache: donated.
      table: int32 [W, COLUMNS].
      limits: int32 [2]: steps (at most `chunk`), min_live (at least 1).

    Returns:
      (cache, int32 [2 · chunk + 3, W]): tokens, the bits of their log-probabilities, how many of them count, the stop
      automaton's state, and RUNNING, FULL or the stop's number. One array: one transfer.
    """
    model = nnx.merge(self.graphdef, params)
    lanes, absent = table.shape[0], cache_lib.num_rows(cache)
    temperature, top_p = (jax.lax.bitcast_convert_type(table[:, c], jnp.float32) for c in (TEMPERATURE, TOP_P))
    keys = jax.lax.bitcast_convert_type(table[:, KEY : KEY + 2], jnp.uint32)
    # A live lane draws a token every step, so all of a chunk's numbers are known at its start.
    places = (table[:, LENGTH] + 1)[None] + jnp.arange(self.chunk, dtype=jnp.int32)[:, None]
    numbers = jax.vmap(lambda position: sampling.uniforms(keys, position))(places)
    unembedding = model.unembedding()

    def step(state):
      t, cache, token, length, automaton, ended, tokens, logprobs = state
      live = ended == RUNNING
      attend = cache_lib.attention(table[:, ROW], length, self.block)
      hidden, (cache, new) = model.run(
        model.embed(token[:, None]), length[:, None], attend, (cache, cache_lib.fresh(cache, lanes, 1))
      )
      cache = cache_lib.write(cache, new, jnp.where(live, table[:, ROW], absent), length[:, None])
      # Features lie as the unembedding's do, so that logits are summed over devices and the matrix stays in its pieces.
      last = rules.constrain(hidden[:, 0], model.mesh, (None, "embed"))
      logits = jax.lax.dot_general(
        last, unembedding.astype(last.dtype), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
      )
      drawn, logprob = sampling.draw(logits, numbers[t], temperature, table[:, TOP_K], top_p)
      after, stop = stops_lib.advance(self.stops, automaton, drawn, table[:, ACCEPT])
      spent = jnp.where(t + 1 >= table[:, BUDGET], FULL, RUNNING)
      return (
        t + 1,
        cache,
        jnp.where(live, drawn, token),
        length + live.astype(jnp.int32),
        jnp.where(live, after, automaton),
        jnp.where(live, jnp.where(stop >= 0, stop, spent), ended),
        tokens.at[t].set(drawn),
        logprobs.at[t].set(logprob),
      )

    def more(state):
      alive = (state[5] == RUNNING).sum(dtype=jnp.int32)
      return (state[0] < limits[0]) & (alive >= limits[1])

    # FULL marks an empty lane, too: it draws nothing, and nobody reads it.
    ended = jnp.where(table[:, LIVE] > 0, RUNNING, FULL).astype(jnp.int32)
    drawn = jnp.zeros((self.chunk, lanes), jnp.int32)
    state = (
      jnp.int32(0),
      cache,
      table[:, TOKEN],
      table[:, LENGTH],
      table[:, STATE],
      ended,
      drawn,
      drawn.astype(jnp.float32),
    )
    _, cache, _, length, automaton, ended, tokens, logprobs = jax.lax.while_loop(more, step, state)
    count = length - table[:, LENGTH]
    out = (tokens, jax.lax.bitcast_convert_type(logprobs, jnp.int32), jnp.stack([count, automaton, ended]))
    return cache, jnp.concatenate(out)

  def _copy(self, cache: cache_lib.Cache, table: jax.Array) -> cache_lib.Cache:
    """Copies rows: table is int32 [K, 3] of (from, to, blocks); 0 blocks is nothing."""
    return cache_lib.copy(cache, table[:, 0], table[:, 1], table[:, 2], self.block)


def bits(x: float) -> int:
  """A float32's bits as an int, for the lane table."""
  return int(np.float32(x).view(np.int32))


def floats(x: np.ndarray) -> np.ndarray:
  """int32 bits back to float32."""
  return np.ascontiguousarray(x).view(np.float32)


def caster(dtype: jnp.dtype, params: Any, mesh: jax.sharding.Mesh | None, *, own: bool = False):
  """What turns the learner's weights into the engine's: the matmuls' dtype, and the engine's places, in one program.

  Norms and biases stay as they are: the decoder computes them in float32. With `own` no memory is shared between the
  two, so that an update may overwrite what it was given.
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
  if not own and dtypes(params) == dtypes(jax.eval_shape(convert, params)):
    return lambda params: params
  return jax.jit(convert)
