"""The key-value cache in pages, and attention over it. The layout of a page is private to this file and the kernels'.

A conversation's tokens lie in the pages that its table names, in order. Several tables may name one page: then nobody
writes to it. A call writes its own tokens first, then attends to them and to what lay there before.

GPUs and TPUs have kernels for it (`paged_gpu`, `paged_tpu`). In plain JAX, attention takes page after page with a
running softmax. A page without a token of the row adds exact zeros, so a row's results depend on that row alone,
however long the other rows are.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from ragrl_jax.models import paged_gpu, paged_tpu

Cache = tuple[jax.Array, ...]  # the pages of each layer, see `Layout`

DROPPED = np.iinfo(np.int32).max  # a position to which nothing is written
PLAIN, TRITON, RAGGED = "plain JAX", "Triton", "ragged paged attention"


@dataclasses.dataclass(frozen=True)
class Layout:
  """How a layer's pages lie in memory, and what attends to them.

  Attributes:
    kernel: PLAIN or TRITON for pages [P, 2, KV, page, h]; RAGGED, the TPU's, for [P, page, 2 · KV, h].
    layers, heads, size: of the decoder: layers, key-value heads, width of a head.
    page: tokens of a page.
    dtype: of keys and values.
  """

  kernel: str
  layers: int
  heads: int
  size: int
  page: int
  dtype: Any

  def allocate(self, pages: int, sharding: jax.sharding.Sharding | None = None) -> Cache:
    """An empty cache with so many pages."""
    if self.kernel == RAGGED:
      shape = (pages, self.page, 2 * self.heads, self.size)
    else:
      shape = (pages, 2, self.heads, self.page, self.size)
    return tuple(jnp.zeros(shape, self.dtype, device=sharding) for _ in range(self.layers))

  def attention(self, table: jax.Array, lengths: jax.Array, positions: jax.Array) -> Callable:
    """The `attend` of `Decoder.run` for tokens that follow the cached ones; its carry is the Cache.

    Args:
      table: int32 [n, N], the pages of each sequence, in order; what follows the last one is any page.
      lengths: int32 [n], cached tokens of each sequence; the call's tokens come after them.
      positions: int32 [n, t], ascending by one from `lengths`; DROPPED for a token that is not to be written.
    """
    write = paged_tpu.write if self.kernel == RAGGED else _write
    kernel = {TRITON: paged_gpu.attend, RAGGED: paged_tpu.attend}.get(self.kernel)

    def attend(layer: int, q, k, v, cache: Cache):
      k, v = (x.astype(self.dtype) for x in (k, v))
      pages = write(cache[layer], k, v, table, positions)
      if kernel is None:
        out = _attend(q, k, v, pages, table, lengths)
      else:
        out = kernel(q, pages, table, lengths, mesh=_split_mesh())
      return out, (*cache[:layer], pages, *cache[layer + 1 :])

    return attend


def layout(config, page: int, dtype, platform: str, tensor: int = 1) -> Layout:
  """The layout for a `DecoderConfig` on "cpu", "gpu" or "tpu", with the heads of a replica split over `tensor` devices.

  A kernel that does not support the sizes is not chosen.
  """
  kernel, h = PLAIN, config.head_dim
  if platform == "gpu" and paged_gpu.supports(page, h):
    kernel = TRITON
  if platform == "tpu" and paged_tpu.supports(config.num_kv_heads // tensor, h, dtype):
    kernel = RAGGED
  return Layout(kernel, config.num_layers, config.num_kv_heads, h, page, jnp.dtype(dtype))


def _split_mesh() -> jax.sharding.AbstractMesh | None:
  """The mesh over whose "tensor" axis a kernel splits the heads: that of the `shard_map` around it, unless it is 1."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh if any(kind != AxisType.Manual for kind in mesh.axis_types) else None


def _write(pages, k, v, table, positions):
  """Puts keys and values [n, t, KV, h] at the positions of their sequences."""
  size = pages.shape[3]
  inside = positions < table.shape[1] * size
  page = jnp.take_along_axis(table, jnp.where(inside, positions // size, 0), axis=1)
  page = jnp.where(inside, page, pages.shape[0])  # a page that does not exist: dropped
  return pages.at[page, :, :, positions % size].set(jnp.stack((k, v), axis=2), mode="drop")


def _attend(q, k, v, pages, table, lengths):
  """Attention of queries [n, t, H, h] to their own keys and values [n, t, KV, h] and to the `lengths` tokens before."""
  n, t, heads, size = q.shape
  kv, block = k.shape[2], pages.shape[3]
  k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))  # [n, KV, t, h]
  grouped = q.reshape(n, t, kv, heads // kv, size).transpose(0, 2, 3, 1, 4)  # [n, KV, G, t, h]
  index = jnp.arange(t)
  causal = jnp.broadcast_to((index[:, None] >= index[None, :])[None], (n, t, t))
  start = _softmax(grouped, k, v, causal, None)

  def more(j, state):
    page = pages.at[table[:, j]].get(mode="clip")  # [n, 2, KV, page, h]
    seen = (j * block + jnp.arange(block))[None] < lengths[:, None]
    return _softmax(grouped, page[:, 0], page[:, 1], jnp.broadcast_to(seen[:, None], (n, t, block)), state)

  _, total, out = jax.lax.fori_loop(0, (lengths.max() + block - 1) // block, more, start)
  out = (out / total[..., None]).transpose(0, 3, 1, 2, 4)
  return out.reshape(n, t, heads, size).astype(q.dtype)


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


def copy(cache: Cache, source: jax.Array, target: jax.Array) -> Cache:
  """Copies page `source[i]` to page `target[i]`, all at once; a target that does not exist is dropped."""
  return tuple(x.at[target].set(x.at[source].get(mode="clip"), mode="drop") for x in cache)


def take(cache: Cache, pages: jax.Array) -> jax.Array:
  """These pages of all layers, [n, L, 2, KV, page, h]. The host keeps them while others use the pages."""
  return jnp.stack([x.at[pages].get(mode="clip") for x in cache], axis=1)


def put(cache: Cache, pages: jax.Array, saved: jax.Array) -> Cache:
  """Writes what `take` gave to these pages, bit for bit; a page that does not exist is dropped."""
  return tuple(x.at[pages].set(saved[:, layer], mode="drop") for layer, x in enumerate(cache))
