"""The key-value cache and attention over it. Its memory layout is private to this file.

Attention runs over the cache in fixed blocks with a running softmax. A block without a token of the row adds exact
zeros, so a row's results depend on that row alone, however long the other rows are. The layer scan only reads the
cache; it carries new keys and values beside it. They are written once, after the last layer, so that XLA updates the
cache in place.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Cache(NamedTuple):
  """Keys k and values v, each [L, R, KV, T, h]. Row r holds the first tokens of one conversation, in order."""

  k: jax.Array
  v: jax.Array


class Fresh(NamedTuple):
  """Keys and values of this call's tokens, each [L, n, KV, t, h], before they are written to the cache."""

  k: jax.Array
  v: jax.Array


def allocate(config, rows: int, length: int, dtype, sharding: jax.sharding.Sharding | None = None) -> Cache:
  """An empty cache for a `DecoderConfig`, with `rows` rows of `length` tokens."""
  shape = (config.num_layers, rows, config.num_kv_heads, length, config.head_dim)
  return Cache(*(jnp.zeros(shape, dtype, device=sharding) for _ in range(2)))


def fresh(cache: Cache, rows: int, tokens: int) -> Fresh:
  """Zeros for the new keys and values of a call with tokens [rows, tokens]."""
  layers, _, heads, _, size = cache.k.shape
  return Fresh(*(jnp.zeros((layers, rows, heads, tokens, size), cache.k.dtype) for _ in range(2)))


def attention(rows: jax.Array, lengths: jax.Array, block: int) -> Callable:
  """The `attend` of `Decoder.run` for tokens that follow the cached ones; its carry is (Cache, Fresh).

  Args:
    rows: int32 [n], the cache row of each sequence.
    lengths: int32 [n], number of cached tokens of each row; the call's tokens come after them.
    block: cached tokens per step of the running softmax; must divide the cache's length.
  """

  def attend(layer, q, k, v, carry):
    cache, new = carry
    n, t, heads, size = q.shape
    kv = k.shape[2]
    k, v = (x.transpose(0, 2, 1, 3).astype(cache.k.dtype) for x in (k, v))  # [n, KV, t, h]
    new = Fresh(*(jax.lax.dynamic_update_slice(buffer, x[None], (layer, 0, 0, 0, 0)) for buffer, x in zip(new, (k, v))))
    q = q.reshape(n, t, kv, heads // kv, size).transpose(0, 2, 3, 1, 4)  # [n, KV, G, t, h]
    index = jnp.arange(t)
    causal = jnp.broadcast_to((index[:, None] >= index[None, :])[None], (n, t, t))
    start = _softmax(q, k, v, causal, None)

    def more(j, state):
      k, v = (_block(x, layer, rows, j, block) for x in cache)
      seen = (j * block + jnp.arange(block))[None] < lengths[:, None]
      return _softmax(q, k, v, jnp.broadcast_to(seen[:, None], (n, t, block)), state)

    _, total, out = jax.lax.fori_loop(0, (lengths.max() + block - 1) // block, more, start)
    out = (out / total[..., None]).transpose(0, 3, 1, 2, 4)
    return out.reshape(n, t, heads, size).astype(q.dtype), (cache, new)

  return attend


def _block(x, layer, rows, j, block):
  """Tokens [j · block, (j + 1) · block) of the rows in one layer: [n, KV, block, h]."""
  # The block is indexed by its number. A dynamic slice that may start at any token would make TPUs copy the whole cache
  # into another layout.
  L, R, KV, T, h = x.shape
  return x.reshape(L, R, KV, T // block, block, h).at[layer, rows, :, j].get(mode="clip")


def _softmax(q, k, v, mask, state):
  """Adds keys and values [n, KV, s, h] to the running softmax of queries [n, KV, G, t, h]; mask is [n, t, s].

  The state is (running maximum, sum of weights, weighted values), in float32. It is None at first; in that call every
  query must attend to some key.
  """
  scores = jnp.einsum("nkgth,nksh->nkgts", q, k, preferred_element_type=jnp.float32) * (q.shape[-1] ** -0.5)
  scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
  peak = scores.max(-1) if state is None else jnp.maximum(state[0], scores.max(-1))
  weights = jnp.exp(scores - peak[..., None])
  total = weights.sum(-1)
  out = jnp.einsum("nkgts,nksh->nkgth", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
  if state is None:
    return peak, total, out
  old, old_total, old_out = state
  fade = jnp.exp(old - peak)
  return peak, old_total * fade + total, old_out * fade[..., None] + out


def write(cache: Cache, new: Fresh, rows: jax.Array, positions: jax.Array) -> Cache:
  """Writes a call's keys and values into the cache.

  Args:
    cache: the cache to write to.
    new: [L, n, KV, t, h].
    rows: int32 [n]; sequences whose row does not exist (`num_rows` and above) are dropped.
    positions: int32 [n, t], ascending by one; tokens at positions beyond the cache's length are dropped.
  """
  # On TPUs a scatter copies the whole cache into another layout; slices are written in place.
  return jax.lax.platform_dependent(cache, new, rows, positions, tpu=_one_by_one, default=_scatter)


def _scatter(cache, new, rows, positions):
  put = lambda x, y: x.at[:, rows[:, None], :, positions].set(y.transpose(1, 3, 0, 2, 4), mode="drop")
  return Cache(*(put(x, y) for x, y in zip(cache, new)))


def _one_by_one(cache, new, rows, positions):
  step = lambda i, cache: _write_row(cache, new, rows, positions, i)
  return jax.lax.fori_loop(0, rows.shape[0], step, cache)


def _write_row(cache, new, rows, positions, i):
  """`write` for sequence i: reads one slice of the cache, replaces the entries of its tokens, and writes it back."""
  t, length = positions.shape[1], cache.k.shape[3]
  at = jax.lax.dynamic_slice_in_dim(positions, i, 1)[0]
  first = jnp.clip(at[0], 0, length - t)
  place = first + jnp.arange(t, dtype=jnp.int32)
  source = place - at[0]  # index of the new token for each position
  inside = jnp.clip(source, 0, t - 1)
  wanted = (source >= 0) & (at[inside] == place) & (rows[i] < num_rows(cache))
  row = jnp.minimum(rows[i], num_rows(cache) - 1)

  def put(x, y):
    where = (0, row, 0, first, 0)
    old = jax.lax.dynamic_slice(x, where, (x.shape[0], 1, x.shape[2], t, x.shape[4]))
    y = jnp.take(jax.lax.dynamic_slice_in_dim(y, i, 1, axis=1), inside, axis=3)
    return jax.lax.dynamic_update_slice(x, jnp.where(wanted[:, None], y, old), where)

  return Cache(*(put(x, y) for x, y in zip(cache, new)))


def copy(cache: Cache, source: jax.Array, target: jax.Array, blocks: jax.Array, block: int) -> Cache:
  """For each i in order, copies the first `blocks[i]` blocks of row `source[i]` to row `target[i]`."""

  def one(i, cache):
    def part(j, cache):
      def move(x):
        size = (x.shape[0], 1, x.shape[2], block, x.shape[4])
        piece = jax.lax.dynamic_slice(x, (0, source[i], 0, j * block, 0), size)
        return jax.lax.dynamic_update_slice(x, piece, (0, target[i], 0, j * block, 0))

      return Cache(*(move(x) for x in cache))

    return jax.lax.fori_loop(0, blocks[i], part, cache)

  return jax.lax.fori_loop(0, source.shape[0], one, cache)


def take_row(cache: Cache, row: jax.Array) -> Cache:
  """One row, [L, 1, KV, T, h]. The host keeps it while another conversation uses the row."""
  return Cache(*(jax.lax.dynamic_slice_in_dim(x, row, 1, axis=1) for x in cache))


def put_row(cache: Cache, saved: Cache, row: jax.Array) -> Cache:
  """Writes the result of `take_row` back, bit for bit."""
  return Cache(*(jax.lax.dynamic_update_slice_in_dim(x, y, row, axis=1) for x, y in zip(cache, saved)))


def num_rows(cache: Cache) -> int:
  """Number of rows R of the cache."""
  return cache.k.shape[1]


def to_host(saved: Cache) -> Cache:
  """Copies the arrays to the host, as NumPy arrays."""
  return Cache(*(np.asarray(x) for x in saved))


def sharding_like(params, config) -> jax.sharding.Sharding:
  """The sharding of a cache for these weights: on their devices, key-value heads split over "tensor" if divisible."""
  like = jax.tree.leaves(params)[0].sharding
  if not isinstance(like, jax.sharding.NamedSharding):
    return like
  split = "tensor" if "tensor" in like.mesh.shape and config.num_kv_heads % like.mesh.shape["tensor"] == 0 else None
  return jax.sharding.NamedSharding(like.mesh, jax.sharding.PartitionSpec(None, None, split, None, None))
