"""Attention within segments and trees, for training, scoring and encoders. The engine has its own over its cache.

Scores are stored for one pair of blocks at a time. The backward pass recomputes them from the saved log-sum-exp, so
memory grows with T and not with T². Source: FlashAttention-2 (arXiv 2307.08691), sec. 3.1, here in plain JAX.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from ragrl_jax.models import cudnn, kernels, layers, splash
from ragrl_jax.parallel import rules

BLOCK = 64  # tokens per block; on CPUs the fastest of 32, 64, 128 and 256 for packed rows and trees of 256 to 2048
KERNELS = ("tpu", "gpu")  # platforms with kernels; in their trees only trunks have branches
MASKED = -1e30  # finite, so that a query without any key gives zeros and not NaN


def segment_positions(segment_ids: jax.Array) -> jax.Array:
  """Position of each token in its segment, int32 [B, T], from segment ids [B, T]. A segment's tokens are contiguous."""
  tokens = kernels.tokens(segment_ids, None)
  return tokens.index - tokens.first


def platform(mesh: jax.sharding.Mesh | None) -> str:
  """The platform of a mesh's devices; None means the default one."""
  return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def _kernel(mesh: jax.sharding.Mesh | None, q: jax.Array):
  """The module whose `attend` computes attention for queries like q on the mesh's devices; None: this file."""
  match platform(mesh):
    case "tpu":
      return splash
    case "gpu" if cudnn.takes(q):
      return cudnn
    case "gpu" if kernels.has_triton():  # older JAX, float32, longer rows
      from ragrl_jax.models import flash

      return flash
  return None


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  segment_ids: jax.Array,
  until: jax.Array | None = None,
  *,
  causal: bool = True,
  positions: jax.Array | None = None,
  window: int | jax.Array | None = None,
  block: int = BLOCK,
  mesh: jax.sharding.Mesh | None = None,
  seen: jax.Array | None = None,
) -> jax.Array:
  """Softmax attention within segments. Each token attends to itself and the earlier tokens, or to all tokens.

  In a row of trees each token attends to itself and to the tokens on its path to the root.

  TPUs use JAX's Splash kernel (`splash`), GPUs cuDNN (`cudnn`) or kernels of this library in Triton (`flash`), and CPUs
  the plain JAX code of this file. All support packed rows and trees, forward and backward.

  Args:
    q: [B, T, H, h].
    k, v: [B, T, KV, h]; H / KV neighbouring query heads share one key-value head.
    segment_ids: int [B, T]; 0 is padding, which attends to nothing and to which nothing attends. A segment's tokens
      are contiguous. Not read if the rows are trees.
    until: int [B, T]; the rows are trees (see `structs.Batch`), and causal. A kernel takes only trees whose trunk
      alone has branches. None: segments.
    causal: whether later tokens are masked.
    positions: int [B, T], position of each token in its text, as for the rotary embedding; required with a window.
    window: sliding window in tokens, an int or int32 scalar. A token attends to its own position and the window - 1
      positions before it, in its segment or on its path. None: no window.
    block: tokens per block of queries and of keys (the kernels have their own block sizes).
    mesh: shards rows and heads; None means one device of the default platform. CPUs then compute row by row.
    seen: what the function of this name returns for these rows, so that not every layer makes it; None: it is made.

  Returns:
    [B, T, H, h] in q's dtype; exact zeros at padding.

  Raises:
    ValueError: the platform's kernel does not support the rows.
  """
  kernel = _kernel(mesh, q)
  windows = kernels.Windows.from_size(positions, window)
  if kernel is not None:
    more = {name: x for name, x in dict(windows=windows, seen=seen).items() if x is not None}
    ids = (segment_ids, None) if until is None else kernels.segments(until)
    return kernel.attend(q, k, v, *ids, causal=causal, mesh=mesh, **more)
  seen = kernels.Seen.of(segment_ids, causal=causal) if until is None else kernels.Seen.of_tree(until)
  return _blockwise(q, k, v, (seen, windows), block=block, sharded=mesh is not None)


def plain(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """Softmax attention with all scores in memory, for encoders. Padding also attends, to what its mask lets it see.

  Args:
    q: [B, T, H, h].
    k, v: [B, S, H, h].
    mask: bool [B, T or 1, S], whether a token attends to another one.
    bias: float32 [H, T, S], added to the scores; None: 0.
  """
  scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / q.shape[-1] ** 0.5
  scores = jnp.where(mask[:, None], scores if bias is None else scores + bias[None], MASKED)
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def near(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, reach: int) -> jax.Array:
  """As `plain`, of each token to those of its text that are at most `reach` tokens away, on both sides.

  A block of `reach` queries is computed at a time, with the keys of its own and of both neighbouring blocks. So memory
  grows with T and not with T².

  Args:
    mask: bool [B, T], true on the text.
  """
  T, size = q.shape[1], max(reach, 1)
  rest = -T % size
  padded = lambda x, before: jnp.pad(x, ((0, 0), (before, before + rest), *((0, 0),) * (x.ndim - 2)))
  queries, *others = padded(q, 0), *(padded(x, size) for x in (k, v, mask))
  at = jnp.arange(3 * size)[None] - size - jnp.arange(size)[:, None]  # of each key, from each query

  def block(i):
    keys, values, text = (jax.lax.dynamic_slice_in_dim(x, i * size, 3 * size, 1) for x in others)
    return plain(_cut(queries, i, size, 1), keys, values, text[:, None] & (abs(at) <= reach)[None])

  out = jax.lax.map(block, jnp.arange((T + rest) // size))
  return jnp.moveaxis(out, 0, 1).reshape(q.shape[0], T + rest, *q.shape[2:])[:, :T]


def seen(
  q: jax.ShapeDtypeStruct, segment_ids: jax.Array, until: jax.Array | None = None, *, mesh: jax.sharding.Mesh | None
) -> jax.Array | None:
  """What causal layers with queries like q share: the mask of these rows, bool [B, T, T]; None if none is needed."""
  if _kernel(mesh, q) is not cudnn:
    return None
  rows = kernels.tokens(*((segment_ids, None) if until is None else kernels.segments(until)))
  return rules.constrain(kernels.mask(rows, rows, True), mesh, ("batch", "length", None))


def _blockwise(q, k, v, rows, *, block: int, sharded: bool):
  """`attend` in plain JAX, on any device; `rows` are (Seen, Windows or None)."""
  B, T, H, h = q.shape
  KV = k.shape[2]
  block = min(block, T)
  # One matrix per key-value head: its rows are the queries of the G heads that share these keys, [B, KV, T, G, h].
  q = q.reshape(B, T, KV, H // KV, h).transpose(0, 2, 1, 3, 4)
  k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
  if rest := -T % block:
    q = jnp.pad(q, ((0, 0), (0, 0), (0, rest), (0, 0), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, rest), (0, 0))) for x in (k, v))
    rows = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, rest))), rows)  # nothing attends to tokens until 0
  out = _attend(q, k, v, rows, block, sharded)
  return out[:, :, :T].transpose(0, 2, 1, 3, 4).reshape(B, T, H, h)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q, k, v, rows, block, sharded):
  return _attend_forward(q, k, v, rows, block, sharded)[0]


def _attend_forward(q, k, v, rows, block, sharded):
  out, sums = _by_platform(functools.partial(_forward, block=block), sharded, q, k, v, rows)
  out, sums = (checkpoint_name(x, "attention") for x in (out, sums))
  return out, (q, k, v, rows, out, sums)


def _attend_backward(block, sharded, saved, gradient):
  return *_by_platform(functools.partial(_backward, block=block), sharded, *saved, gradient), None


_attend.defvjp(_attend_forward, _attend_backward)


def _by_platform(run, sharded: bool, *arrays):
  """Calls run(*arrays, row_major=…). On CPUs it does so row by row: scores stay in cache, more blocks are skipped."""

  def rows(*arrays):
    one = lambda row: tuple(x[0] for x in run(*jax.tree.map(lambda x: x[None], row), row_major=_row_major))
    return jax.lax.map(one, arrays)

  whole = functools.partial(run, row_major=lambda x: x)
  return whole(*arrays) if sharded else jax.lax.platform_dependent(*arrays, cpu=rows, default=whole)


def _row_major(x):
  """Forces a copy in row-major order: XLA would pass a transposed view to a slower matmul."""
  return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _dot(a, b, contract_a: int, contract_b: int):
  """Matmul batched over the first two axes, in the inputs' dtype, accumulated in float32."""
  return jax.lax.dot_general(
    a, b, (((contract_a,), (contract_b,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
  )


def _scores(q, k, i, queries, keys, row_major):
  """Scores [B, KV, t, G, s] of one pair of blocks; MASKED where a query must not attend.

  q is block `i`, [B, KV, t, G, h], and k [B, KV, s, h]; `queries` and `keys` are their (Seen, Windows or None).
  """
  B, KV, t, G, h = q.shape
  scores = _dot(q.reshape(B, KV, t * G, h), k, 3, 3).reshape(B, KV, t, G, -1) * (h**-0.5)
  index = (i * t + jnp.arange(t, dtype=jnp.int32))[None, :, None]
  mask = (index >= keys[0].first[:, None, :]) & (index < keys[0].until[:, None, :])
  if queries[1] is not None:
    mask = mask & (keys[1].positions[:, None, :] >= queries[1].least[:, :, None])
  # Adding the mask is faster than `where` on CPUs: the mask is materialised once for all heads.
  return scores + row_major(jnp.where(mask, 0.0, MASKED))[:, None, :, None, :]


def _cut(x, i, block: int, axis: int):
  return jax.lax.dynamic_slice_in_dim(x, i * block, block, axis)


def _cut_rows(rows, i, block: int):
  return jax.tree.map(lambda x: _cut(x, i, block, 1), rows)


def _needed(seen: kernels.Seen, block: int, windows: kernels.Windows | None = None):
  """For each block of queries, how many blocks of keys it needs, int [n], and an order [n, n] with these blocks first.

  A pair of blocks is needed if, in some row, a query attends to a key. The result may include pairs that windows make
  superfluous, but it includes all that are needed.
  """
  B, T = seen.first.shape
  first, until = seen.first.reshape(B, 1, -1, block).min(axis=3), seen.until.reshape(B, 1, -1, block).max(axis=3)
  start = jnp.arange(0, T, block, dtype=jnp.int32)[None, :, None]
  touch = (first < start + block) & (until > start)
  if windows is not None:
    touch = touch & windows.reach(block, block)
  touch = touch.any(axis=0)
  return touch.sum(axis=1, dtype=jnp.int32), jnp.argsort(~touch, axis=1, stable=True).astype(jnp.int32)


def _forward(q, k, v, rows, *, block: int, row_major):
  """(out like q, log-sum-exp of the scores [B, KV, T, G])."""
  B, KV, T, G, h = q.shape

  def of_queries(i, count, which):
    queries, mine = _cut(q, i, block, 2), _cut_rows(rows, i, block)

    def pair(j, state):
      top, total, out = state
      scores = _scores(queries, _cut(k, j, block, 2), i, mine, _cut_rows(rows, j, block), row_major)
      new = jnp.maximum(top, scores.max(axis=-1))
      # While a query has seen only masked keys, its weights are 1. `shrink` resets them to 0 at its first real key.
      weights = jnp.exp(scores - new[..., None])
      shrink = jnp.exp(top - new)
      values = _dot(weights.astype(v.dtype).reshape(B, KV, block * G, block), _cut(v, j, block, 2), 3, 2)
      return (new, total * shrink + weights.sum(axis=-1), out * shrink[..., None] + values.reshape(B, KV, block, G, h))

    shape = (B, KV, block, G)
    state = jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, h), jnp.float32)
    if T == block:
      top, total, out = pair(0, state)
    else:
      top, total, out = jax.lax.fori_loop(0, count, lambda j, state: pair(which[j], state), state)
    # Padding attends to nothing. In the backward pass its weights are exp(MASKED - (-MASKED)) = 0.
    real = top > MASKED / 2
    total = jnp.maximum(total, 1e-30)
    out = jnp.where(real[..., None], out / total[..., None], 0.0)
    return out.astype(q.dtype), jnp.where(real, top + jnp.log(total), -MASKED)

  if T == block:
    return of_queries(0, None, None)
  out, sums = jax.lax.map(lambda x: of_queries(*x), (jnp.arange(T // block), *_needed(rows[0], block, rows[1])))
  return jnp.moveaxis(out, 0, 2).reshape(q.shape), jnp.moveaxis(sums, 0, 2).reshape(B, KV, T, G)


def _backward(q, k, v, rows, out, sums, gradient, *, block: int, row_major):
  """Gradients of q, k and v."""
  B, KV, T, G, h = q.shape
  # Per query: the part of every score's gradient that comes from the softmax's normalisation.
  shared = layers.dots(out, gradient)
  flat = lambda x: x.reshape(B, KV, block * G, -1)
  turned = lambda x: row_major(x.transpose(0, 1, 3, 2))

  def of_queries(carry, inputs):
    i, count, which = inputs
    queries, g = _cut(q, i, block, 2), flat(_cut(gradient, i, block, 2))
    mine = _cut_rows(rows, i, block)
    top, common = _cut(sums, i, block, 2)[..., None], _cut(shared, i, block, 2)[..., None]

    def pair(j, state):
      dq, dk, dv = state
      keys, values = _cut(k, j, block, 2), _cut(v, j, block, 2)
      scores = _scores(queries, keys, i, mine, _cut_rows(rows, j, block), row_major)
      weights = jnp.exp(scores - top)
      ds = weights * (_dot(g, values, 3, 3).reshape(weights.shape) - common) * (h**-0.5)
      ds, weights = flat(ds).astype(q.dtype), flat(weights).astype(q.dtype)
      add = lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, _cut(x, j, block, 2) + y, j * block, 2)
      dq = dq + _dot(ds, keys, 3, 2)
      return dq, add(dk, _dot(turned(ds), flat(queries), 3, 2)), add(dv, _dot(turned(weights), g, 3, 2))

    state = jnp.zeros((B, KV, block * G, h), jnp.float32), *carry
    if T == block:
      dq, *carry = pair(0, state)
    else:
      dq, *carry = jax.lax.fori_loop(0, count, lambda j, state: pair(which[j], state), state)
    return tuple(carry), dq.reshape(B, KV, block, G, h).astype(q.dtype)

  zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
  if T == block:
    (dk, dv), dq = of_queries(zeros, (0, None, None))
  else:
    inputs = jnp.arange(T // block), *_needed(rows[0], block, rows[1])
    (dk, dv), dq = jax.lax.scan(of_queries, zeros, inputs)
    dq = jnp.moveaxis(dq, 0, 2).reshape(q.shape)
  return dq, dk.astype(k.dtype), dv.astype(v.dtype)
