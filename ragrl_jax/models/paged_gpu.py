"""Attention over pages of keys and values on NVIDIA GPUs, for decoding and for longer calls: one Triton kernel.

A program takes one sequence, one key-value head and some of its queries. It reads the tokens of the sequence's pages
once, in tiles, with a running softmax; the loop over tiles is inside the kernel. Where that makes too few programs for
the GPU, several programs share a sequence's tokens, and their results are merged. The merge is exact: each program also
returns the sum of its weights.

Source: Flash-Decoding (Dao et al., 2023).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from ragrl_jax.models import kernels

TILE = 64  # most tokens per step of the running softmax; a page has a multiple of a step's, or as many
NEW = 16  # most tokens per sequence that the kernel itself writes; a matmul takes at least as many
KEYS, VALUES = np.int32(0), np.int32(1)  # their indices in a page
ROWS = (16, 32, 64)  # queries per program; a matmul of tensor cores takes at least 16
MASKED = -1e30  # finite: a tile may hold no token that a row attends to
NEAR = 2**31  # bytes: Triton's offsets have 64 bits only for arrays above 4 GiB, and 32 signed ones below
EXACT_ROWS = ROWS[:1]  # for float32, which tensor cores would round: more rows do not fit into the registers
SHARED = 96 * 2**10  # bytes for a program's matrices; of shared memory, GPUs without HBM have 99 KB a block


def attend(
  q: jax.Array,
  pages: jax.Array,
  table: jax.Array,
  lengths: jax.Array,
  *,
  scales: jax.Array | None = None,
  new: tuple[jax.Array, jax.Array, jax.Array] | None = None,
  window: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
  interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Causal attention of each sequence's newest tokens to all its tokens, whose keys and values are in pages.

  Query j of sequence i is at position lengths[i] + j. It attends to positions up to its own: the call's keys and values
  are in the pages already, or `new`. A page, or a part of one, that no query attends to is not read.

  Args:
    q: [n, t, H, h], rotated; the kernel scales scores by h^-0.5.
    pages: [P, 2, KV, page, h] of one layer: at 0 keys, at 1 values. H is a multiple of KV; `page` and h are powers of
      two, at least 16.
    table: int32 [n, N], the pages of each sequence in the order of their tokens. Entries beyond its tokens are ignored.
    lengths: int32 [n], tokens of each sequence before the call's.
    scales: float32 [P, 2, KV, page] from `cache.quantize`, if the pages are int8.
    new: keys and values [n, t, KV, h] of the call's tokens, at most NEW, and their positions int32 [n, t]. The kernel
      writes them to the pages, in place if these are donated, and quantizes them for int8 pages as `cache.quantize`
      does. A token whose position is N · page or more is not written.
    window: number of tokens that a query attends to, itself included; None for all.
    mesh: each device computes its heads, which the axis "tensor" splits; None means one device.
    interpret: run the kernel as plain JAX, on any device; for tests.

  Returns:
    (out [n, t, H, h] in q's dtype, the pages, the scales). Scores, softmax and sums are float32.

  Raises:
    ValueError: the shapes do not fit each other, or the kernel.
  """
  _check(q, pages, table, lengths, scales)
  if new is not None and q.shape[1] > NEW:
    raise ValueError(
      f"{q.shape[1]} new tokens a sequence: the kernel writes at most {NEW}; write them before the call."
    )
  k, v, positions = (None,) * 3 if new is None else new
  local = kernels.over_heads(functools.partial(_local, window=window, interpret=interpret), mesh)
  return local((q, pages, scales, k, v), (table, lengths, positions))


def supports(page: int, size: int) -> bool:
  """Whether the kernel takes pages of `page` tokens and heads of width `size`."""
  return min(page, size) >= 16 and not page & (page - 1) and not size & (size - 1)


def _check(q, pages, table, lengths, scales) -> None:
  """Raises ValueError if `attend` does not take arrays of these shapes and dtypes."""
  (n, _, H, h), (_, two, KV, page, size) = q.shape, pages.shape
  if two != 2 or size != h or H % KV:
    raise ValueError(f"pages {pages.shape} must be [P, 2, KV, page, {h}] with KV a divisor of the {H} heads of q.")
  if table.shape[0] != n or lengths.shape != (n,):
    raise ValueError(f"table {table.shape} and lengths {lengths.shape} must have q's {n} sequences.")
  if not supports(page, h):
    raise ValueError(f"pages of {page} tokens and heads of {h}: both must be powers of two, at least 16.")
  if (pages.dtype == jnp.int8) != (scales is not None) or (scales is not None and scales.shape != pages.shape[:-1]):
    raise ValueError(f"int8 pages, and no others, have scales of shape {pages.shape[:-1]}: see cache.quantize.")


def _local(q, pages, scales, k, v, table, lengths, positions, *, window, interpret):
  """`attend` on one device."""
  from jax.experimental.pallas import triton  # here, because JAX is going to drop it, and CPUs and TPUs do not need it

  n, t, H, _ = q.shape
  KV = pages.shape[2]
  queries = t * (H // KV)
  choices = EXACT_ROWS if q.dtype == jnp.float32 else ROWS
  rows = next((rows for rows in choices if rows >= queries), choices[-1])
  if scales is not None and NEAR < pages.size <= 2 * NEAR:
    raise ValueError(
      f"int8 pages {pages.shape} have {pages.size / 2**30:.1f} GiB per device, and 2 to 4 GiB cannot be addressed: use "
      "fewer pages."
    )
  blocks = pl.cdiv(queries, rows)
  parts = splits(n * KV * blocks, table.shape[1] * pages.shape[3])
  results = [
    jax.ShapeDtypeStruct((parts, *q.shape), q.dtype if parts == 1 else jnp.float32),
    jax.ShapeDtypeStruct((parts, n, t, H), jnp.float32),
  ]
  kept, writes, dtype = [pages] if scales is None else [pages, scales], k is not None, q.dtype
  inputs, aliases = [q, *kept, table, lengths], {}
  if writes:  # one array: XLA then rotates q and k and joins them in one kernel
    inputs = [jnp.concatenate((q, k, v), axis=2), *inputs[1:], positions]
    results += [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in kept]
    aliases = {1 + number: 2 + number for number in range(len(kept))}
  out, mass, *written = pl.pallas_call(
    functools.partial(_kernel, rows=rows, heads=H, quantized=scales is not None, writes=writes, window=window),
    grid=(n, KV, blocks, parts),
    out_shape=results,
    input_output_aliases=aliases,
    compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    interpret=interpret,
    name="paged_attention",
  )(*inputs)
  pages, scales = (*(written or kept), None)[:2]
  return out[0] if parts == 1 else _merged(out, mass).astype(dtype), pages, scales


def splits(programs: int, tokens: int) -> int:
  """The number of programs that share a sequence of at most `tokens` tokens, if unshared ones are `programs`."""
  return max(1, min(pl.cdiv(2 * kernels.MULTIPROCESSORS, programs), tokens // (2 * TILE)))


def tile_of(rows: int, page: int, size: int, itemsize: int) -> int:
  """Tokens per step: at most TILE and a page, and so few that queries, keys, values and weights fit into SHARED.

  Args:
    rows: queries per program.
    size: width of a head.
    itemsize: bytes per number in the matmuls' dtype.
  """
  tile = min(page, TILE)
  while tile > NEW and ((rows + 2 * tile) * size + rows * tile) * itemsize > SHARED:
    tile //= 2
  return tile


def _merged(out, mass):
  """The mean [n, t, H, h] of the parts' results [parts, n, t, H, h], weighted by 2 ** mass [parts, n, t, H]."""
  weights = jnp.exp2(mass - mass.max(axis=0, keepdims=True))
  return (out * weights[..., None]).sum(axis=0) / weights.sum(axis=0)[..., None]


def _quantized(x):
  """`cache.quantize` in a kernel, of x [NEW, h] in float32."""
  scale = jnp.abs(x).max(axis=1) / 127
  x = x / jnp.where(scale == 0, 1.0, scale)[:, None]
  up = jnp.floor(x + 0.5)  # Triton has no rounding to the nearest number, of two the even one
  odd = up - 2 * jnp.floor(up / 2) == 1
  return jnp.where((up - x > 0.5) | ((up - x == 0.5) & odd), up - 1, up).astype(jnp.int8), scale


def _kernel(q_ref, pages_ref, *refs, rows, heads, quantized, writes, window):
  from jax.experimental.pallas import triton

  (*scales_ref, table_ref, lengths_ref), refs = refs[: 2 + quantized], refs[2 + quantized :]
  (*positions_ref, out_ref, mass_ref), written = refs[: 2 + writes], refs[2 + writes :]
  _, t, _, h = q_ref.shape
  _, _, KV, page, _ = pages_ref.shape
  group, tile = heads // KV, tile_of(rows, page, h, q_ref.dtype.itemsize)
  i, kv, block, part = (pl.program_id(axis) for axis in range(4))
  # Row r is head r % group of token r // group: with 7 heads per group, row 8 is head 1 of token 1. Rows beyond the
  # last one repeat it: they write the same numbers to the same place.
  row = jnp.minimum(block * rows + jnp.arange(rows, dtype=jnp.int32), t * group - 1)
  token, head = row // group, kv * group + jax.lax.rem(row, jnp.int32(group))
  columns = jnp.arange(h, dtype=jnp.int32)[None, :]
  place = (i, token[:, None], head[:, None], columns)
  q = q_ref[place]
  exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None  # no TF32
  position = lengths_ref[i] + token
  last = jnp.minimum((block + 1) * rows, t * group) - 1
  # Tokens in the pages that some row attends to.
  end = lengths_ref[i] if writes else jnp.minimum(lengths_ref[i] + last // group + 1, table_ref.shape[1] * page)

  def add(state, at, seen, k, v, scales=None):
    """Adds tokens at positions `at` to the running softmax; a row sees those up to its own that are `seen`."""
    scores = triton.dot(q, k.astype(q.dtype), trans_b=True, precision=exact)
    scores = scores * (h**-0.5 * math.log2(math.e))  # for powers of 2
    if scales is not None:
      scores = scores * scales[0]
    seen &= at[None, :] <= position[:, None]
    if window is not None:
      seen &= at[None, :] > position[:, None] - window
    scores = jnp.where(seen, scores, MASKED)
    old, total, out = state
    peak = jnp.maximum(old, scores.max(axis=1))
    weights, fade = jnp.exp2(scores - peak[:, None]), jnp.exp2(old - peak)
    total = total * fade + weights.sum(axis=1)
    if scales is not None:
      weights = weights * scales[1]
    more = triton.dot(weights.astype(q.dtype), v.astype(q.dtype), precision=exact)
    return peak, total, out * fade[:, None] + more

  def step(j, state):
    first = j * tile
    where, inside = table_ref[i, first // page], pl.ds(jax.lax.rem(first, jnp.int32(page)), tile)
    at = first + jnp.arange(tile, dtype=jnp.int32)
    # Memory beyond the sequence's tokens may hold anything, so zeros are loaded instead.
    real = jnp.broadcast_to((at < end)[:, None], (tile, h))
    load = lambda which: triton.load(pages_ref.at[where, which, kv, inside, :], mask=real, other=0)
    scale = lambda which: triton.load(scales_ref[0].at[where, which, kv, inside], mask=at < end, other=0)[None]
    scales = (scale(KEYS), scale(VALUES)) if quantized else None
    return add(state, at, (at < end)[None, :], load(KEYS), load(VALUES), scales)

  # While a row has seen only masked tokens, its weights are 1. `fade` resets them to 0 at its first real one.
  state = jnp.full(rows, MASKED, jnp.float32), jnp.zeros(rows, jnp.float32), jnp.zeros((rows, h), jnp.float32)
  if writes:  # the first part adds the call's own tokens, and with the first block of rows it writes them
    number = jnp.arange(NEW, dtype=jnp.int32)
    own = jnp.minimum(number, t - 1)  # tokens beyond the last one repeat it
    to = positions_ref[0][i, own]
    real = (to < table_ref.shape[1] * page) & (block == 0) & (part == 0)
    where, inside = table_ref[i, jnp.where(real, to // page, 0)], jax.lax.rem(to, jnp.int32(page))
    vectors, scales = [], []
    for which in (KEYS, VALUES):
      x = q_ref[i, own[:, None], heads + which * KV + kv, columns]
      if quantized:
        x, scale = _quantized(x.astype(jnp.float32))
        triton.store(written[1].at[where, which, kv, inside], scale, mask=real)
        scales.append(scale[None])
      vectors.append(x.astype(pages_ref.dtype))
      target = written[0].at[where[:, None], which, kv, inside[:, None], columns]
      triton.store(target, vectors[-1], mask=jnp.broadcast_to(real[:, None], x.shape))
    seen = ((number < t) & (part == 0))[None, :]
    state = add(state, lengths_ref[i] + number, seen, *vectors, scales or None)
  first = 0 if window is None else jnp.maximum(lengths_ref[i] + block * rows // group - window + 1, 0) // tile
  tiles = pl.cdiv(end, tile)
  share = pl.cdiv(tiles - first, out_ref.shape[0])  # tiles per part; the last parts may have none
  first += part * share
  peak, total, out = jax.lax.fori_loop(first, jnp.minimum(first + share, tiles), step, state)
  total = jnp.maximum(total, 1.0)  # it is less only without a tile
  out_ref[part, *place] = (out / total[:, None]).astype(out_ref.dtype)
  mass_ref[part, i, token, head] = peak + jnp.log2(total)
