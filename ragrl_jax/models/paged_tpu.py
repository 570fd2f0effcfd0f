"""Attention over pages of keys and values on TPUs, by JAX's ragged paged attention, and writing to pages.

A page holds keys and values of its tokens side by side, [page, 2 · KV, h]: key head 0, value head 0, key head 1, …
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import ragged_paged_attention

from ragrl_jax.models import kernels

TOKENS = 512  # keys per step of the running softmax
QUERIES = 32  # tokens per block of queries; each block reads all keys. When decoding, a block is one token.
LANES = 128  # the width of a head must be a multiple of this


def supports(heads: int, size: int, dtype) -> bool:
  """Whether the kernel takes `heads` key-value heads per device, of width `size`, in this dtype."""
  words = 2 * heads * jnp.dtype(dtype).itemsize // 4  # heads of a token are packed into words of 32 bits
  packed = words in (1, 2, 4, 8) or words % 8 == 0
  wide = size == LANES or (words == 1 and size % LANES == 0)  # Mosaic takes every second word of 128 lanes only
  return dtype in (jnp.bfloat16, jnp.float32) and wide and packed


def takes(q: jax.Array, pages: jax.Array, mesh: jax.sharding.Mesh | None = None) -> bool:
  """Whether the kernel supports these arrays; shapes as in `attend`."""
  heads, rest = divmod(pages.shape[2], 2 * (1 if mesh is None else mesh.shape["tensor"]))
  return not rest and q.dtype == pages.dtype and supports(heads, q.shape[3], q.dtype)


def attend(
  q: jax.Array,
  pages: jax.Array,
  table: jax.Array,
  lengths: jax.Array,
  *,
  window: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> jax.Array:
  """`paged_gpu.attend`, see there, with pages [P, page, 2 · KV, h] of one layer that have q's dtype.

  Raises:
    ValueError: the kernel does not support these arrays, see `takes`.
  """
  if not takes(q, pages, mesh):
    raise ValueError(
      f"q {q.dtype} {q.shape} and pages {pages.dtype} {pages.shape}: the kernel needs one dtype, bfloat16 or float32, "
      f"heads of a multiple of {LANES}, and 1, 2, 4 or a multiple of 8 words of heads per device. See paged_tpu.takes."
    )
  return kernels.over_heads(functools.partial(_local, window=window), mesh)((q, pages), (table, lengths))


def _local(q, pages, table, lengths, *, window):
  """`attend` on one device."""
  n, t, H, h = q.shape
  out = ragged_paged_attention.ragged_paged_attention(
    q.reshape(n * t, H, h),
    pages,
    lengths + t,
    table,
    jnp.arange(n + 1, dtype=jnp.int32) * t,
    jnp.full(1, n, jnp.int32),
    sm_scale=h**-0.5,
    sliding_window=window,
    num_kv_pages_per_block=min(table.shape[1], max(1, TOKENS // pages.shape[1])),
    num_queries_per_block=1 if t == 1 else min(n * t, QUERIES),
  )
  return out.reshape(q.shape)


def write(pages: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, positions: jax.Array) -> jax.Array:
  """The pages with keys and values k and v [n, t, KV, h] of tokens at `positions`; XLA updates donated pages in place.

  Pages and table [n, N] are those of `attend`. No two tokens of a call may have the same place. A token whose position,
  int32 [n, t], is N · page or more is dropped.
  """
  P, page, heads, h = pages.shape
  inside = jnp.minimum(positions // page, table.shape[1] - 1)
  number = jnp.where(positions < table.shape[1] * page, jnp.take_along_axis(table, inside, axis=1), P)
  new = jnp.stack((k, v), axis=3).reshape(*positions.shape, heads, h).astype(pages.dtype)
  return pages.at[number, positions % page].set(new, mode="drop")  # P and above are dropped
