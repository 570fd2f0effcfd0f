"""Attention within segments, and to their prefixes, on TPUs, by JAX's Splash kernel; each device makes one call.

The kernel lets a query attend to a key if their ids are equal and a function of the query's number and the key's index
is true. So rows with prefixes pass their keys twice, first for each token's own segment and then for its prefix:

  segments  1 1 1|2 2|3 3    ids of the queries   2 2 2|3 3|3 3
  prefixes  1 1 1|1 1|1 1    ids of the keys      2 2 2|3 3|3 3   and, for the prefixes, 3 3 3|5 5|7 7

For the first keys the function is true from the start of the query's segment to the query. For the second ones it is
always true, since a prefix lies before the tokens that continue it. A pair of blocks is skipped if no query of the one
attends to a key of the other.
"""

import functools
import operator

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask_info

from ragrl_jax.models import kernels
from ragrl_jax.models.kernels import Tokens, Windows

LANES = 128  # block sizes are multiples of this number of tokens
BLOCKS = (512, 256, LANES)  # the largest that divides the row is used: larger blocks read keys and values less often
HALF = 1 << 16  # a query's number holds two indices of 16 bits
LONGEST_SHARED = HALF  # tokens of a row with prefixes


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  segment_ids: jax.Array,
  prefix_ids: jax.Array | None = None,
  *,
  causal: bool = True,
  mesh: jax.sharding.Mesh | None = None,
  windows: Windows | None = None,
  interpret: bool = False,
) -> jax.Array:
  """`attention.attend`, see there and `kernels.per_device`; `interpret` runs the kernel as plain JAX, for tests.

  Raises:
    ValueError: rows with prefixes or windows have more than LONGEST_SHARED tokens, or are not causal; or have both.
  """
  shared, slides = prefix_ids is not None, windows is not None
  if shared and slides:
    raise ValueError(
      "rows with prefix_ids in a model with a sliding window: the TPU's attention kernel does not take both. Set "
      "config.learner.share_prompts=False."
    )
  if (shared or slides) and (q.shape[1] > LONGEST_SHARED or not causal):
    raise ValueError(
      f"rows of {q.shape[1]} tokens with prefix_ids or a window, causal={causal}: on TPUs they must be causal and have "
      f"at most {LONGEST_SHARED} tokens; pass rows without prefix_ids."
    )

  def local(q, k, v, queries: Tokens, keys: Tokens):
    # The kernel does not scale scores by h^-0.5, so q is scaled. It takes one row at a time, as [H, t, h].
    q = (q.astype(jnp.float32) * q.shape[3] ** -0.5).astype(q.dtype)
    if shared:
      k, v = (jnp.concatenate([x, x], axis=1) for x in (k, v))
    ids, numbers, function = _mask(queries, keys, causal, shared=shared)
    kernel = _kernel(_needed(queries, keys, causal, shared=shared), q.shape[1], function, interpret)
    one = lambda q, k, v, ids, numbers: kernel(numbers)(*(x.transpose(1, 0, 2) for x in (q, k, v)), segment_ids=ids)
    out = jax.vmap(one)(q, k, v, ids, numbers).transpose(0, 2, 1, 3)
    real = (queries.segment_ids != 0)[:, :, None, None]
    return jnp.where(real, out, jnp.zeros_like(out))  # the kernel lets padding attend to itself

  return kernels.per_device(local, q, k, v, segment_ids, prefix_ids, multiple=LANES, mesh=mesh, windows=windows)


def _mask(queries: Tokens, keys: Tokens, causal: bool, *, shared: bool):
  """(ids of queries and keys, the queries' numbers [B, t] or None, the function of a number and a key's index)."""
  if not shared:
    ids = splash_attention.SegmentIds(queries.segment_ids, keys.segment_ids)
    if queries.windows is None:
      return ids, queries.index if causal else None, operator.ge if causal else None
    return ids, _nearest(queries) * HALF + queries.index, _from_first(keys.index.shape[1])
  # Of queries: 2 · prefix, and 1 more if the prefix is another segment.
  own = lambda x: 2 * x.prefix_ids + (x.others != 0).astype(jnp.int32)
  prefixes = jnp.where(keys.segment_ids == 0, -1, 2 * keys.segment_ids + 1)
  ids = splash_attention.SegmentIds(own(queries), jnp.concatenate([own(keys), prefixes], axis=1))
  return ids, queries.first * HALF + queries.index, _from_first(keys.index.shape[1])


def _nearest(queries: Tokens) -> jax.Array:
  """The index of the first key that each query attends to, in its segment and its window."""
  back = queries.windows.positions - queries.windows.least
  return jnp.maximum(queries.first, queries.index - back)


@functools.cache  # the kernel is compiled separately for each function
def _from_first(length: int):
  """The function of the mask for rows of `length` tokens with prefixes or windows."""

  def function(number, key):
    first, index = jax.lax.shift_right_logical(number, 16), number & (HALF - 1)
    return (key >= length) | ((key >= first) & (key <= index))

  return function


def _block(length: int) -> int:
  """Tokens per block, for this number of a device's queries per row."""
  return next(size for size in BLOCKS if length % size == 0)


def _needed(queries: Tokens, keys: Tokens, causal: bool, *, shared: bool) -> jax.Array:
  """Which pairs of blocks have work in one of the device's rows, bool [n, m].

  Every block of queries gets at least one block of keys; without any, the kernel would divide by zero.
  """
  block = _block(queries.index.shape[1])
  if (
    not shared
    and queries.windows is None
    and queries.index.shape == keys.index.shape
    and keys.index.shape[1] <= 2 * block
  ):
    # Almost nothing could be skipped. With a constant the compiler's schedule needs less memory (benchmarks/LOG.md).
    n = keys.index.shape[1] // block
    return jnp.tri(n, dtype=bool) if causal else jnp.ones((n, n), bool)
  last, start = queries.index[0, block - 1 :: block], keys.index[0, ::block]  # the same in all rows
  own = kernels.overlap(queries.segment_ids, keys.segment_ids, block, block).any(axis=0)
  own |= last[:, None] // block == start[None] // block
  if causal:
    own &= last[:, None] >= start[None]
  if queries.windows is not None:
    first = _nearest(queries).reshape(len(queries.index), -1, block).min(axis=(0, 2))
    own &= start[None] + block > first[:, None]
  if not shared:
    return own
  prefix = kernels.overlap(queries.others, keys.segment_ids, block, block).any(axis=0) & (last[:, None] >= start[None])
  return jnp.concatenate([own, prefix], axis=1)


def _kernel(needed: jax.Array, length: int, function, interpret: bool):
  """numbers of a row's queries → the kernel, for these pairs of blocks, `function` of the mask (or None)."""
  block = _block(length)
  sizes = splash_attention.BlockSizes(
    block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
  )

  small = jnp.int8 if max(needed.shape) <= 128 else jnp.int16  # the two tables are in the chip's small scalar memory

  def info(axis, numbers):
    # The block to read for each pair; for a pair that is skipped, the block that is already loaded.
    at = jax.lax.broadcasted_iota(jnp.int32, needed.shape, axis)
    read = jax.lax.cummax(jnp.where(needed, at, -1), axis=axis)
    read = jnp.where(read < 0, jnp.argmax(needed, axis=axis, keepdims=True).astype(jnp.int32), read)
    return splash_attention_mask_info.MaskInfo(
      read.astype(small)[None], None, needed.astype(jnp.int8)[None], None, numbers
    )

  return lambda numbers: splash_attention_kernel.SplashAttentionKernel(
    info(1, numbers),
    info(1, numbers),
    info(0, numbers),
    block_sizes=sizes,
    is_mqa=False,
    save_residuals=False,
    mask_value=splash_attention_kernel.DEFAULT_MASK_VALUE,
    attn_logits_soft_cap=None,
    residual_checkpoint_name=None,
    mask_function=function,
    interpret=interpret,
  )
