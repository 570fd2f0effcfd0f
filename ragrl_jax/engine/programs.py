"""The engine's compiled programs. The engine's settings fix every shape, so nothing compiles after warm-up.

On several replicas each program runs under `shard_map`: every replica computes with its own lanes, tables and pages,
and none waits for another. The compiler shards the computation over "tensor" within a replica.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int32

from ragrl_jax.core import logprobs as logprobs_lib, sampling
from ragrl_jax.engine import stops as stops_lib
from ragrl_jax.engine.lanes import FULL, NOTHING, RUNNING, Chunk, LaneTable
from ragrl_jax.engine.loader import Weights
from ragrl_jax.models import cache as cache_lib, residual
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import hosts, mesh as mesh_lib

REPLICAS = "data"  # the axis of the engine's mesh for replicas
SPLIT, WHOLE = PartitionSpec(REPLICAS), PartitionSpec()
# Of drafts: how many of the newest tokens are compared (more would rarely change the choice), and how many must match.
# A draft's places are computed anyway, so a weak match costs nothing.
LONGEST, SHORTEST = 4, 1


class _Decoding(NamedTuple):
  """The state of `decode`'s loop: W lanes, at most T steps, drafts of k tokens."""

  step: Any  # int32, steps done
  cache: cache_lib.Cache
  token: Any  # int32 [W], the newest one, not yet in the cache
  length: Any  # int32 [W], tokens in the cache
  automaton: Any  # int32 [W], state of the stop automaton
  stop: Any  # int32 [W], RUNNING until the lane's turn has ended
  tokens: Any  # int32 [T, k + 1, W], NOTHING where a step kept no token
  logprobs: Any  # float32 [T, k + 1, W]
  drafts: Any  # int32 [2, W], drafted tokens, and those that sampling also chose
  ids: Any  # int32 [W, C], as in LaneTable
  routes: Any  # int16 [T, k + 1, W, n], experts of all layers; None for a model without experts


class Programs:
  """Prefill (`extend`), decode, and programs that copy pages or move them to the host and back. Each is jitted once.

  For a hybrid there are also programs that copy and move the memories of its delta layers.

  The first axis is split over the replicas: that of the cache's layers, and of every argument except the weights.

  Args:
    stops: the stop automaton's device table.
    chunk: the largest number of steps of one `decode`.
    speculate: k, the tokens of a draft; 0: no drafts. A step always computes k + 1 places per lane.
    routes: n, experts of a token in all layers together, which `decode` reports; 0 for a model without experts.
    mesh: the engine's; None for one device.
  """

  def __init__(
    self,
    graphdef: nnx.GraphDef,
    stops: stops_lib.Table,
    layout: cache_lib.Layout,
    *,
    chunk: int,
    speculate: int = 0,
    routes: int = 0,
    mesh: jax.sharding.Mesh | None,
  ):
    self.graphdef, self.stops, self.layout, self.mesh = graphdef, stops, layout, mesh
    self.chunk, self.speculate, self.routes = chunk, speculate, routes
    # The cache has the same layout as input and output. A second layout would need a second compilation.
    self.split = None if mesh is None else NamedSharding(mesh, SPLIT)  # of what the host passes
    at, replicas = self.cache_sharding(mesh), PartitionSpec(None, REPLICAS)
    n, copied = layout.paged, lambda part, pairs: cache_lib.copy(part, pairs[:, 0], pairs[:, 1])
    shared = hosts.count_of(mesh) > 1
    # The first of several hosts reads the results, so every host gets the whole of them.
    read = None if mesh is None else NamedSharding(mesh, WHOLE if shared else replicas)
    self.extend = self._jit(self._extend, (WHOLE, SPLIT, SPLIT, SPLIT, SPLIT), SPLIT, at, donate=1)
    self.decode = self._jit(self._decode, (WHOLE, SPLIT, SPLIT, SPLIT, SPLIT), (SPLIT, replicas), (at, read), donate=1)
    read = read if shared else None
    in_pages = lambda change: lambda cache, *arguments: change(cache[:n], *arguments) + cache[n:]
    in_memories = lambda change: lambda cache, *arguments: cache[:n] + change(cache[n:], *arguments)
    take = lambda cache, pages: cache_lib.take(cache[:n], pages)
    self.copy = self._jit(in_pages(copied), (SPLIT, SPLIT), SPLIT, at, donate=0)
    self.put = self._jit(in_pages(cache_lib.put), (SPLIT, SPLIT, SPLIT), SPLIT, at, donate=0)
    self.take = self._jit(take, (SPLIT, SPLIT), SPLIT, read, donate=())
    if layout.deltas:
      put = lambda part, slots, *values: tuple(x.at[slots].set(y, mode="drop") for x, y in zip(part, values))
      take = lambda cache, slots: tuple(x.at[slots].get(mode="clip") for x in cache[n:])
      self.copy_memory = self._jit(in_memories(copied), (SPLIT, SPLIT), SPLIT, at, donate=0)
      self.put_memory = self._jit(in_memories(put), (SPLIT,) * (2 + 2 * layout.deltas), SPLIT, at, donate=0)
      self.take_memory = self._jit(take, (SPLIT, SPLIT), SPLIT, read, donate=())

  def _jit(self, function: Callable, ins: Any, outs: Any, shardings: Any, *, donate: Any):
    if self.mesh is not None:
      # The compiler does not shard kernels. With one device per replica it has nothing to shard.
      axes = {REPLICAS} if self.mesh.shape["tensor"] > 1 else set(self.mesh.axis_names)
      function = jax.shard_map(function, mesh=self.mesh, in_specs=ins, out_specs=outs, axis_names=axes, check_vma=False)
    return jax.jit(function, donate_argnums=donate, out_shardings=shardings)

  @staticmethod
  def cache_sharding(mesh: jax.sharding.Mesh | None) -> NamedSharding | None:
    """The sharding of each layer of the cache: pages over the replicas, key-value heads over "tensor"."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(REPLICAS, None, "tensor"))

  def _model(self, weights: Weights) -> Decoder:
    """The decoder. Its layers come from `weights.layers`; its stacks are one of them, for their structure."""
    stacks = {"delta" if "qkv" in layer else "layers": layer for layer in weights.layers}
    model = nnx.merge(self.graphdef, nnx.State({**weights.outer, **stacks}))
    model.mesh = None  # within a replica the compiler follows the weights
    return model

  def _extend(self, weights: Weights, cache: cache_lib.Cache, tokens: jax.Array, counts: jax.Array, table: jax.Array):
    """Adds tokens to the cache.

    Args:
      tokens: int32 [n, P].
      counts: int32 [n, 3]: the number of tokens in the cache, that of new tokens, and the slot of the memories. An
        unused row has zeros.
      table: int32 [n, N], pages.

    Returns:
      The cache. No logits: the newest token of a conversation stays outside, and `decode` adds it.
    """
    model, lengths = self._model(weights), counts[:, 0]
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    positions = lengths[:, None] + index
    # A conversation of length 5 with 2 of P = 4 tokens: they go to 5 6, and the others nowhere.
    places = jnp.where(index < counts[:, 1:2], positions, cache_lib.DROPPED)
    attend = self.layout.attention(table, lengths, places)
    slots, recur = counts[:, 2], self.layout.recurrence(counts[:, 1])
    inputs = model.embed(tokens), positions, attend, self.layout.taken(cache, slots), weights.layers
    returned = model.run(*inputs, recur=recur)[1]
    return self.layout.returned(cache, returned, jnp.where(counts[:, 1] > 0, slots, cache_lib.DROPPED))

  def _decode(
    self, weights: Weights, cache: cache_lib.Cache, packed: jax.Array, table: jax.Array, limits: jax.Array
  ) -> tuple[cache_lib.Cache, jax.Array]:
    """Samples tokens until `steps` steps are done or fewer than `min_live` lanes are live.

    Args:
      packed: int32 [W, COLUMNS + C], a LaneTable.
      table: int32 [W, N], the pages of each lane's conversation.
      limits: int32 [1, 2]: steps (at most `chunk`), min_live (at least 1). They change no shape, so nothing compiles.

    Returns:
      (cache, int32 [(2 + r) · chunk · (k + 1) + TAIL, W], a Chunk).
    """
    model = self._model(weights)
    lanes = LaneTable.unpack(packed)
    keys = jax.lax.bitcast_convert_type(lanes.key, jnp.uint32)
    # Every position has its own random number, so the numbers of a whole chunk are computed at its start.
    most = self.chunk * (self.speculate + 1)
    positions = (lanes.length + 1)[None] + jnp.arange(most, dtype=jnp.int32)[:, None]
    numbers = jax.vmap(lambda position: sampling.uniforms(keys, position))(positions)
    draw = functools.partial(self._draw, model, weights, lanes, table, numbers)

    def more(state: _Decoding) -> jax.Array:
      alive = (state.stop == RUNNING).sum(dtype=jnp.int32)
      return (state.step < limits[0, 0]) & (alive >= limits[0, 1])

    tokens = jnp.full((self.chunk, self.speculate + 1, len(packed)), NOTHING, jnp.int32)
    start = _Decoding(
      step=jnp.int32(0),
      cache=self.layout.taken(cache, lanes.slot),
      token=lanes.token,
      length=lanes.length,
      automaton=lanes.automaton,
      # FULL also marks an empty lane, which samples nothing and is not read.
      stop=jnp.where(lanes.live > 0, RUNNING, FULL).astype(jnp.int32),
      tokens=tokens,
      logprobs=jnp.zeros(tokens.shape, jnp.float32),
      drafts=jnp.zeros((2, len(packed)), jnp.int32),
      ids=lanes.ids,
      routes=jnp.zeros((*tokens.shape, self.routes), jnp.int16) if self.routes else None,
    )
    end = jax.lax.while_loop(more, draw, start)
    # A live lane samples at least one token per step. The first place holds it.
    steps = (end.tokens[:, 0] != NOTHING).sum(axis=0, dtype=jnp.int32)
    flat, count = (most, len(packed)), end.length - lanes.length
    tokens, logprobs = end.tokens.reshape(flat), end.logprobs.reshape(flat)
    drafted, kept = end.drafts[0], end.drafts[1]
    routes = None if end.routes is None else end.routes.reshape(*flat, -1)
    cache = self.layout.returned(cache, end.cache, jnp.where(lanes.live > 0, lanes.slot, cache_lib.DROPPED))
    return cache, Chunk(tokens, logprobs, count, steps, drafted, kept, end.automaton, end.stop, routes).pack()

  def _draw(self, model, weights, lanes: LaneTable, table, numbers: jax.Array, state: _Decoding) -> _Decoding:
    """One step: for every live lane, the tokens of its draft that sampling also chooses, then one more token.

    `numbers` are the random numbers of the chunk's positions, float32 [T · (k + 1), W].
    """
    live, done = state.stop == RUNNING, state.length - lanes.length
    places = jnp.arange(self.speculate + 1, dtype=jnp.int32)[None]
    draft, drafted = self._draft(lanes, state, live)
    tokens = jnp.concatenate((state.token[:, None], draft), axis=1)  # [W, k + 1]
    positions = state.length[:, None] + places
    # A lane that has ended still computes, but writes nothing. A draft writes nothing past the budget, because the
    # pages there may belong to another conversation.
    written = live[:, None] & (places <= drafted[:, None])
    attend = self.layout.attention(table, state.length, jnp.where(written, positions, cache_lib.DROPPED))
    states: list = []  # a memory cannot forget: those of delta layers take in the tokens that are kept, below
    recur = self.layout.recurrence(live.astype(jnp.int32), states if self.speculate else None)
    x = model.embed(tokens)
    if self.layout.kernel == cache_lib.TRITON and mesh_lib.around() is None:
      x = residual.Stream(x)
    hidden, cache, chosen = model.run(x, positions, attend, state.cache, weights.layers, recur=recur)
    logits = jax.lax.dot_general(
      hidden.reshape(-1, hidden.shape[2]),
      model.unembedding().astype(hidden.dtype),
      (((1,), (1,)), ((), ())),
      preferred_element_type=jnp.float32,
    )
    logits = logprobs_lib.without(logits, model.tokenless)
    number = jnp.take_along_axis(numbers, done[None] + places.T, axis=0, mode="clip").T
    spread = lambda x: jnp.broadcast_to(x[:, None], tokens.shape).reshape(-1)  # a lane's value, for each of its places
    sampled, logprobs = sampling.draw(
      logits, number.reshape(-1), spread(lanes.temperature), spread(lanes.top_k), spread(lanes.top_p)
    )
    sampled, logprobs = sampled.reshape(tokens.shape), logprobs.reshape(tokens.shape)
    agrees = (sampled[:, :-1] == draft) & (places[:, :-1] < drafted[:, None])
    kept, token, automaton, stop = self._accept(lanes, state, sampled, agrees)
    count, ids = kept.sum(axis=1, dtype=jnp.int32), state.ids
    cache = self.layout.advanced(cache, count, positions, states)
    if self.speculate:  # the next draft may copy the sampled tokens
      rows = jnp.arange(len(ids), dtype=jnp.int32)[:, None]
      ids = ids.at[rows, jnp.where(kept, positions + 1, ids.shape[1])].set(sampled, mode="drop")
    drafts_kept = (kept[:, :-1] & agrees).sum(axis=1, dtype=jnp.int32)
    t, routes = state.step, state.routes
    if routes is not None:  # of the state that place j is drawn from: [L, W, k + 1, experts] → [k + 1, W, n]
      routes = routes.at[t].set(chosen.transpose(2, 1, 0, 3).reshape(routes.shape[1:]).astype(jnp.int16))
    return _Decoding(
      step=t + 1,
      cache=cache,
      token=token,
      length=state.length + count,
      automaton=automaton,
      stop=stop,
      tokens=state.tokens.at[t].set(jnp.where(kept, sampled, NOTHING).T),
      logprobs=state.logprobs.at[t].set(logprobs.T),
      drafts=state.drafts + jnp.stack((drafted, drafts_kept)),
      ids=ids,
      routes=routes,
    )

  def _draft(self, lanes: LaneTable, state: _Decoding, live: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (draft [W, k], how many of its tokens may be kept [W])."""
    if not self.speculate:
      return jnp.zeros((len(live), 0), jnp.int32), jnp.zeros(len(live), jnp.int32)
    draft, is_match = look_up(state.ids, state.length, self.speculate)
    left = lanes.budget - (state.length - lanes.length) - 1  # the step samples one more token after the draft
    return draft, jnp.where(is_match & live, jnp.minimum(left, self.speculate), 0)

  def _accept(self, lanes: LaneTable, state: _Decoding, sampled: jax.Array, agrees: jax.Array):
    """Accepts the sampled tokens in order, as if each had been sampled in a step of its own.

    Place j was computed after the draft's first j tokens. Its token is kept if `agrees` [W, k] holds for all places
    before it, and if no stop string or budget has ended the turn there.

    Returns:
      (kept [W, k + 1], newest token [W], automaton [W], stop [W]).
    """
    token, automaton, stop, kept = state.token, state.automaton, state.stop, []
    for j in range(sampled.shape[1]):
      live = stop == RUNNING if j == 0 else kept[-1] & agrees[:, j - 1] & (stop == RUNNING)
      next_state, stop_found = stops_lib.advance(self.stops, automaton, sampled[:, j], lanes.accept)
      # If the budget's last token completes a stop string, the turn ends by that stop.
      at_budget = jnp.where(state.length - lanes.length + j + 1 >= lanes.budget, FULL, RUNNING)
      token = jnp.where(live, sampled[:, j], token)
      automaton = jnp.where(live, next_state, automaton)
      stop = jnp.where(live, jnp.where(stop_found >= 0, stop_found, at_budget), stop)
      kept.append(live)
    return jnp.stack(kept, axis=1), token, automaton, stop


def look_up(
  ids: Int32[Array, "W C"], newest: Int32[Array, "W"], size: int
) -> tuple[Int32[Array, "W k"], Bool[Array, "W"]]:
  """Drafts the tokens that may follow the newest token of each conversation, by prompt lookup.

  Answers copy passages, so the next tokens often follow an earlier occurrence of the newest ones. Source: speculative
  decoding (arXiv 2211.17192), without a draft model.

      positions  0 1 2 3 4 5 6        newest = 6, size = 4
      ids        a b c d x b c        b c is also at 1 2, so the draft is d x b c

  It chooses the earlier place where most of the newest tokens match (at most LONGEST), and the last of equal ones. If
  the text ends before the draft is complete, the draft repeats from that place: after "a b a b" it is a b a b.

  Args:
    ids: token ids by position. Those after `newest` are ignored.
    newest: position of each conversation's newest token.
    size: k, the number of tokens of a draft, at least 1.

  Returns:
    (draft, found): the tokens, and whether there is a matching place. Without one, the draft has no meaning.
  """
  positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
  same = (positions < newest[:, None]) & (ids == _at(ids, newest[:, None]))
  run = same.astype(jnp.int32)  # how many of the newest tokens match at a place and before it
  for back in range(1, LONGEST):
    # Shifted by `back`, so that column p holds the token at p - back. Places before the first token match nothing.
    before = jnp.pad(ids, ((0, 0), (back, 0)), constant_values=-1)[:, : ids.shape[1]]
    same &= before == _at(ids, jnp.maximum(newest - back, 0)[:, None])
    run += same.astype(jnp.int32)
  place = jnp.argmax(jnp.where(run >= SHORTEST, run * ids.shape[1] + positions, -1), axis=1).astype(jnp.int32)[:, None]
  period = jnp.maximum(newest[:, None] - place, 1)
  ahead = jnp.arange(size, dtype=jnp.int32)[None]
  return _at(ids, place + 1 + ahead % period), (run >= SHORTEST).any(axis=1)


def _at(ids, positions):
  return jnp.take_along_axis(ids, positions, axis=1, mode="clip")
