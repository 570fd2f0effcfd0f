"""Attention within segments, and to their prefixes, on GPUs: one Pallas kernel forward and two backward.

A program holds one block of queries (backward also: of keys) and streams the blocks that it needs; the mask of a pair
of blocks is computed from the tokens' ids. Blocks of other segments are not read. Source: FlashAttention-2
(arXiv 2307.08691), algorithms 1 and 2. The exponent's base is 2, which GPUs compute directly.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ragrl_jax.models import kernels
from ragrl_jax.models.kernels import Tokens, Windows

MASKED = -1e30  # finite, so that a query without any key gives zeros and not NaN
# Tokens of the block that a program holds, and of each block that it streams, for 16-bit dtypes and head sizes up to
# 128. Other cases use fewer, for the same shared memory. The sizes are those of Triton's own tutorial, and fit into the
# 99 KB of a smaller GPU.
FORWARD, BACKWARD = (128, 64), (128, 32)
WARPS, STAGES = 8, 2  # compiled for Hopper: no register is spilled at head sizes of 64 and 128 in 16 bits
NARROWEST = 16  # smallest size that the matrix units take; head sizes are padded to it or to a power of 2


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
  """`attention.attend`, see there and `kernels.per_device`; `interpret` runs the kernels as plain JAX, for tests."""
  h = q.shape[3]
  if rest := max(NARROWEST, pl.next_power_of_2(h)) - h:
    q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, rest))) for x in (q, k, v))

  def local(q, k, v, queries: Tokens, keys: Tokens):
    return _attend(q, k, v, queries, keys, h**-0.5, causal, interpret)

  multiple = _blocks(FORWARD, q)[0]
  more = dict(multiple=multiple, mesh=mesh, windows=windows)
  return kernels.per_device(local, q, k, v, segment_ids, prefix_ids, **more)[..., :h]


def _blocks(sizes: tuple[int, int], q: jax.Array) -> tuple[int, int]:
  """FORWARD or BACKWARD for q's type and head size."""
  held, streamed = sizes
  times = q.dtype.itemsize // 2 * max(q.shape[3] // 128, 1)
  less = max(NARROWEST * times // streamed, 1)  # what is streamed cannot be narrower, so less is held
  return max(held // (times * less), NARROWEST), max(streamed // times, NARROWEST)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(q, k, v, queries, keys, scale, causal, interpret):
  """q [B, t, H, h], k and v [B, T, KV, h] → out like q."""
  return _attend_forward(q, k, v, queries, keys, scale, causal, interpret)[0]


def _attend_forward(q, k, v, queries, keys, scale, causal, interpret):
  kernel = functools.partial(_forward_kernel, scale=scale, causal=causal)
  out_like = [q, jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)]
  out, sums = _over_queries(kernel, q, k, v, queries, keys, [], out_like, causal, interpret, FORWARD)
  out, sums = (checkpoint_name(x, "attention") for x in (out, sums))
  return out, (q, k, v, queries, keys, out, sums)


def _attend_backward(scale, causal, interpret, saved, gradient):
  q, k, v, queries, keys, out, sums = saved
  # Per query: the part of every score's gradient that comes from the softmax's normalisation, [B, H, t].
  shared = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), axis=-1).transpose(0, 2, 1)
  kernel = functools.partial(_queries_kernel, scale=scale, causal=causal)
  (dq,) = _over_queries(kernel, q, k, v, queries, keys, [gradient, sums, shared], [q], causal, interpret, BACKWARD)
  kernel = functools.partial(_keys_kernel, scale=scale, causal=causal)
  dk, dv = _over_keys(kernel, q, k, v, queries, keys, [gradient, sums, shared], causal, interpret)
  return dq, dk, dv, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _over_queries(kernel, q, k, v, queries, keys, more, out_like, causal, interpret, sizes):
  """One program per block of queries, head and row; arrays of `more` and `out_like` are [B, t, H, h] or [B, H, t]."""
  (B, t, H, h), (_, T, KV, _) = q.shape, k.shape
  held, streamed = _blocks(sizes, q)
  last = t // held - 1  # the last block comes first, because it attends to most keys and takes longest
  of_query = pl.BlockSpec((None, held, None, h), lambda i, head, b: (b, last - i, head, 0))
  of_score = pl.BlockSpec((None, None, held), lambda i, head, b: (b, head, last - i))
  of_keys = pl.BlockSpec((None, T, None, h), lambda i, head, b: (b, 0, head // (H // KV), 0))
  ids = pl.BlockSpec((None, held), lambda i, head, b: (b, last - i))
  whole_ids = pl.BlockSpec((None, T), lambda i, head, b: (b, 0))
  steps = pl.BlockSpec((None, None, 4), lambda i, head, b: (b, last - i, 0))
  windows = [] if queries.windows is None else [(ids, queries.windows.least), (whole_ids, keys.windows.positions)]
  spec = lambda x: of_query if len(x.shape) == 4 else of_score
  return pl.pallas_call(
    functools.partial(kernel, streamed=streamed, windowed=bool(windows)),
    grid=(t // held, H, B),
    in_specs=[of_query, of_keys, of_keys, *[ids] * 3, whole_ids, steps, *(one for one, _ in windows), *map(spec, more)],
    out_specs=[spec(x) for x in out_like],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_like],
    compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
    interpret=interpret,
    name=kernel.func.__name__.strip("_"),
  )(
    q, k, v, *queries[:3], keys.segment_ids, _steps(*_needed(queries, keys, causal, held, streamed)),
    *(x for _, x in windows), *more,
  )  # fmt: skip


def _over_keys(kernel, q, k, v, queries, keys, more, causal, interpret):
  """One program per block of keys, key-value head and row, for all query heads that share the keys: (dk, dv)."""
  (B, t, H, h), (_, T, KV, _) = q.shape, k.shape
  held, streamed = _blocks(BACKWARD, q)
  of_keys = pl.BlockSpec((None, held, None, h), lambda i, head, b: (b, i, head, 0))
  of_query = pl.BlockSpec((None, t, H // KV, h), lambda i, head, b: (b, 0, head, 0))
  of_score = pl.BlockSpec((None, H // KV, t), lambda i, head, b: (b, head, 0))
  ids = pl.BlockSpec((None, held), lambda i, head, b: (b, i))
  whole_ids = pl.BlockSpec((None, t), lambda i, head, b: (b, 0))
  steps = pl.BlockSpec((None, None, 4), lambda i, head, b: (b, i, 0))
  windows = [] if queries.windows is None else [(whole_ids, queries.windows.least), (ids, keys.windows.positions)]
  of_scores = [of_query, of_score, of_score]
  needed = (x.swapaxes(1, 2) for x in _needed(queries, keys, causal, streamed, held))
  return pl.pallas_call(
    functools.partial(kernel, streamed=streamed, windowed=bool(windows)),
    grid=(T // held, KV, B),
    in_specs=[of_query, of_keys, of_keys, *[whole_ids] * 3, ids, steps, *(one for one, _ in windows), *of_scores],
    out_specs=[of_keys, of_keys],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
    compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
    interpret=interpret,
    name=kernel.func.__name__.strip("_"),
  )(q, k, v, *queries[:3], keys.segment_ids, _steps(*needed), *(x for _, x in windows), *more)


def _needed(queries: Tokens, keys: Tokens, causal: bool, block_q: int, block_k: int):
  """Which pairs of blocks hold a token and a key of its own segment, and of its prefix: bool [B, n, m] each."""
  seen = True
  if causal:
    last = queries.index.reshape(queries.index.shape[0], -1, block_q)[:, :, -1]
    seen = last[:, :, None] >= jnp.arange(0, keys.index.shape[1], block_k)[None, None]
  if queries.windows is not None:
    seen &= Windows(keys.windows.positions, queries.windows.least).reach(block_q, block_k)
  ids = (queries.segment_ids, queries.others)
  return tuple(kernels.overlap(x, keys.segment_ids, block_q, block_k) & seen for x in ids)


def _steps(own, prefix):
  """Which blocks a program streams: the run of `own`, the run of `prefix`, each block once; int32 [B, held blocks, 4].

  The four numbers are: the first block; how many follow before the gap; the gap's size; how many in all.

      own     0 0 0 0 0 1 1      blocks 1, 2, then 5, 6: first 1, before 2, gap 2, all 4
      prefix  0 1 1 0 0 0 0
  """
  n = own.shape[2]

  def run(touch):  # (first, one behind the last); (n, n) if there is none
    some = touch.any(axis=2)
    ends = jnp.argmax(touch, axis=2), n - jnp.argmax(touch[:, :, ::-1], axis=2)
    return [jnp.where(some, x, n) for x in ends]

  (a, a_end), (b, b_end) = run(own), run(prefix)
  swap = b < a
  first, stop = jnp.where(swap, b, a), jnp.where(swap, b_end, a_end)
  start, end = jnp.maximum(jnp.where(swap, a, b), stop), jnp.where(swap, a_end, b_end)
  before = stop - first
  return jnp.stack([first, before, start - stop, before + jnp.maximum(end - start, 0)], axis=2).astype(jnp.int32)


def _streaming(steps_ref):
  """(number of blocks, step → block), from a program's row of `_steps`."""
  first, before, gap, count = (steps_ref[i] for i in range(4))
  return count, lambda step: first + step + jnp.where(step >= before, gap, 0)


def _dot(a, b, *, trans_b: bool = False):
  """Matmul, accumulated in float32; float32 inputs are not rounded to TF32."""
  precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return triton.dot(a, b, trans_b=trans_b, precision=precision)


def _mask(own, prefix, index, key_ids, key_index, causal: bool, least=None, positions=None):
  """Bool mask: whether each query attends to each key. Queries are a column and keys a row, or the reverse."""
  mask = ((own == key_ids) | (prefix == key_ids)) & (own != 0)
  if least is not None:
    mask &= positions >= least
  return mask & (index >= key_index) if causal else mask


def _forward_kernel(
  q_ref, k_ref, v_ref, own_ref, prefix_ref, index_ref, key_ids_ref, steps_ref, *refs, scale, causal, streamed,
  windowed,
):  # fmt: skip
  *window_refs, out_ref, sums_ref = refs
  q, own, prefix, index = q_ref[...], own_ref[...], prefix_ref[...], index_ref[...]
  least = window_refs[0][...][:, None] if windowed else None
  count, block = _streaming(steps_ref)

  def pair(step, state):
    top, total, out = state
    start = block(step) * streamed
    at = pl.ds(start, streamed)
    scores = _dot(q, k_ref[at, :], trans_b=True) * (scale * math.log2(math.e))
    key_index = start + jnp.arange(streamed)
    far = (least, window_refs[1][at][None]) if windowed else ()
    mask = _mask(own[:, None], prefix[:, None], index[:, None], key_ids_ref[at][None], key_index[None], causal, *far)
    scores = jnp.where(mask, scores, MASKED)
    new = jnp.maximum(top, scores.max(axis=1))
    # While a query has seen only masked keys, its weights are 1. `shrink` resets them to 0 at its first real key.
    weights, shrink = jnp.exp2(scores - new[:, None]), jnp.exp2(top - new)
    out = out * shrink[:, None] + _dot(weights.astype(v_ref.dtype), v_ref[at, :])
    return new, total * shrink + weights.sum(axis=1), out

  zeros = jnp.zeros(q.shape[:1], jnp.float32)
  top, total, out = jax.lax.fori_loop(0, count, pair, (zeros + MASKED, zeros, jnp.zeros(q.shape, jnp.float32)))
  real, total = own != 0, jnp.maximum(total, 1e-30)
  out_ref[...] = jnp.where(real[:, None], out / total[:, None], 0.0).astype(out_ref.dtype)
  # Padding attends to nothing. In the backward pass its weights are exp2(MASKED - (-MASKED)) = 0.
  sums_ref[...] = jnp.where(real, top + jnp.log2(total), -MASKED)


def _queries_kernel(
  q_ref, k_ref, v_ref, own_ref, prefix_ref, index_ref, key_ids_ref, steps_ref, *refs, scale, causal, streamed,
  windowed,
):  # fmt: skip
  *window_refs, gradient_ref, sums_ref, shared_ref, dq_ref = refs
  q, own, prefix, index = q_ref[...], own_ref[...], prefix_ref[...], index_ref[...]
  least = window_refs[0][...][:, None] if windowed else None
  gradient, sums, shared = gradient_ref[...], sums_ref[...], shared_ref[...]
  count, block = _streaming(steps_ref)

  def pair(step, dq):
    start = block(step) * streamed
    at = pl.ds(start, streamed)
    keys = k_ref[at, :]
    scores = _dot(q, keys, trans_b=True) * (scale * math.log2(math.e))
    key_index = start + jnp.arange(streamed)
    far = (least, window_refs[1][at][None]) if windowed else ()
    mask = _mask(own[:, None], prefix[:, None], index[:, None], key_ids_ref[at][None], key_index[None], causal, *far)
    weights = jnp.exp2(jnp.where(mask, scores, MASKED) - sums[:, None])
    ds = weights * (_dot(gradient, v_ref[at, :], trans_b=True) - shared[:, None])
    return dq + _dot(ds.astype(keys.dtype), keys)

  dq = jax.lax.fori_loop(0, count, pair, jnp.zeros(q.shape, jnp.float32))
  dq_ref[...] = (dq * scale).astype(dq_ref.dtype)


def _keys_kernel(
  q_ref, k_ref, v_ref, own_ref, prefix_ref, index_ref, key_ids_ref, steps_ref, *refs, scale, causal, streamed,
  windowed,
):  # fmt: skip
  *window_refs, gradient_ref, sums_ref, shared_ref, dk_ref, dv_ref = refs
  k, v, key_ids = k_ref[...], v_ref[...], key_ids_ref[...]
  positions = window_refs[1][...][:, None] if windowed else None
  key_index = pl.program_id(0) * k.shape[0] + jnp.arange(k.shape[0])
  (count, block), heads = _streaming(steps_ref), q_ref.shape[1]

  def pair(step, state):  # scores are [keys, queries], so that no matmul needs a transposition
    dk, dv = state
    head, at = jax.lax.rem(step, heads), pl.ds(block(jax.lax.div(step, heads)) * streamed, streamed)
    q, gradient = q_ref[at, head, :], gradient_ref[at, head, :]
    scores = _dot(k, q, trans_b=True) * (scale * math.log2(math.e))
    own, prefix, index = own_ref[at], prefix_ref[at], index_ref[at]
    far = (window_refs[0][at][None], positions) if windowed else ()
    mask = _mask(own[None], prefix[None], index[None], key_ids[:, None], key_index[:, None], causal, *far)
    weights = jnp.exp2(jnp.where(mask, scores, MASKED) - sums_ref[head, at][None])
    ds = weights * (_dot(v, gradient, trans_b=True) - shared_ref[head, at][None])
    return dk + _dot(ds.astype(q.dtype), q), dv + _dot(weights.astype(q.dtype), gradient)

  zeros = jnp.zeros(k.shape, jnp.float32)
  dk, dv = jax.lax.fori_loop(0, count * heads, pair, (zeros, zeros))
  dk_ref[...] = (dk * scale).astype(dk_ref.dtype)
  dv_ref[...] = dv.astype(dv_ref.dtype)
