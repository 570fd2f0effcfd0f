"""The paged key-value cache, and attention over it. Only this file and the kernels know the layout of a page.

A conversation's page table lists the pages that hold its tokens, in order. A page in several tables is shared and never
written to. A call first writes the keys and values of its own tokens. Each of them then attends to the cached tokens of
its conversation up to itself.

GPUs and TPUs have kernels for this attention (`paged_gpu`, `paged_tpu`). Plain JAX reads one page after the other, with
a running softmax. A page without tokens of a row adds exact zeros. So the result of a row does not depend on the length
of the other rows.

A hybrid's delta layers have a memory of fixed size per conversation (`models/delta.py`). In the cache these memories
follow the pages. A conversation has one slot of each layer's, which it shares with nobody. `decode` takes those of its
lanes out for a chunk of tokens, so that a step changes them in place.

Keys and values may be int8, with one scale per token and head. Attention then uses the quantized values of all tokens,
the call's own included. So the result does not depend on how a text is divided into calls.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import delta, kernels, paged_gpu, paged_tpu
from ragrl_jax.models.config import EVERYTHING
from ragrl_jax.parallel import mesh as mesh_lib

# The pages of each layer; for int8, followed by the scales of each layer; in a hybrid, followed by the channels of each
# delta layer and by the state of each. See `Layout`.
Cache = tuple[jax.Array, ...]

DROPPED = np.iinfo(np.int32).max  # position of a token that is not written
PLAIN, TRITON, RAGGED = "plain JAX", "Triton", "ragged paged attention"
MODEL = "model"  # a kv_dtype: keys and values have the dtype of the matmuls
SCALE = jnp.dtype(jnp.float32)  # dtype of the scales of int8 keys and values


@dataclasses.dataclass(frozen=True)
class Layout:
  """The layout of a layer's pages in memory, and the kernel that attends to them.

  Attributes:
    kernel: PLAIN or TRITON, with pages [P, 2, KV, page, h]; or RAGGED, for TPUs, with pages [P, page, 2 · KV, h].
    heads, size: number of key-value heads, and width of a head.
    page: tokens per page.
    dtype: dtype of keys and values. int8 pages have scales beside them, float32 [P, 2, KV, page]. PLAIN stores an int8
      key and its value as a pair instead: uint16 [P, page, KV, h] with scales [P, 1, KV, 2 · page]. XLA for TPUs writes
      pairs in place, but copies the whole cache to write int8.
    windows: sliding window of each layer, in tokens, the newest included; None: the layer has none. (): no layer has
      one. The cache keeps all tokens in any case.
    deltas: number of delta layers.
    memory: shapes and dtypes of one slot of a delta layer; None without such layers.
  """

  kernel: str
  layers: int
  heads: int
  size: int
  page: int
  dtype: Any
  windows: tuple[int | None, ...] = ()
  deltas: int = 0
  memory: delta.Memory | None = None

  @property
  def paged(self) -> int:
    """Number of arrays of the cache that hold pages. Those after them hold memories."""
    return self.layers * (2 if self.quantized else 1)

  @property
  def memory_bytes(self) -> int:
    """Bytes of a conversation's memories in all delta layers."""
    return self.deltas * sum(math.prod(x.shape) * x.dtype.itemsize for x in self.memory or ())

  @property
  def quantized(self) -> bool:
    """Whether keys and values are int8."""
    return self.dtype == jnp.int8

  @property
  def token_bytes(self) -> int:
    """Bytes of a token's keys and values in all layers, all heads together."""
    vector = self.size * self.dtype.itemsize + SCALE.itemsize * self.quantized
    return 2 * self.layers * self.heads * vector

  @property
  def passes(self) -> int:
    """Number of times that attention moves each byte of a page that it reads."""
    if self.kernel != PLAIN:
      return 1
    # Plain JAX reads a page, writes a copy of it, and reads the copy: 3. With pairs, as compiled for v5e, it reads the
    # copy twice. It also writes and reads keys and values in bfloat16, each as large as the pairs: 2 + 2 + 2 + 2.
    return 8 if self.quantized else 3

  def most(self, tensor: int = 1) -> int | None:
    """Most pages per replica on `tensor` devices that the kernel addresses with 32 bits; None if it has no such limit.

    It cannot address more pages than that, up to twice as many. For still more it uses 64 bits.
    """
    if self.kernel != TRITON or not self.quantized:
      return None
    return paged_gpu.NEAR // (2 * self.heads // tensor * self.page * self.size)

  def check(self, pages: int, tensor: int = 1) -> None:
    """Raises a ValueError if the kernel cannot address `pages` pages per replica on `tensor` devices."""
    most = self.most(tensor)
    if most is not None and most < pages <= 2 * most:
      raise ValueError(
        f"config.rollout.kv_dtype='int8' with {pages:,} pages of {self.page} tokens per replica: a layer of them has 2 "
        "to 4 GiB on a GPU, which the kernel cannot address. Set config.rollout.pages so that a replica has at most "
        f"{most:,}, raise config.rollout.mesh.tensor, or use 'model'."
      )

  def allocate(self, pages: int, sharding: jax.sharding.Sharding | None = None, slots: int = 0) -> Cache:
    """An empty cache of `pages` pages and `slots` memories, on the devices of `sharding`; None: the default device."""
    if self.kernel == RAGGED:
      shape = (pages, self.page, 2 * self.heads, self.size)
    else:
      shape = (pages, 2, self.heads, self.page, self.size)
    arrays: list[Any] = [(shape, self.dtype)] + [(shape[:-1], SCALE)] * self.quantized
    if self.kernel == PLAIN and self.quantized:
      pairs, scales = (pages, self.page, self.heads, self.size), (pages, 1, self.heads, 2 * self.page)
      arrays = [(pairs, jnp.uint16), (scales, SCALE)]
    zeros = jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=sharding)  # eagerly, the zero comes from the host
    found = [zeros(*one) for one in arrays for _ in range(self.layers)]
    found += [zeros((slots, *x.shape[1:]), x.dtype) for x in self.memory or () for _ in range(self.deltas)]
    return tuple(found)

  def attention(self, table: jax.Array, lengths: jax.Array, positions: jax.Array) -> Callable:
    """The `attend` of `Decoder.run` for tokens that follow the cached ones; its carry is the Cache.

    Args:
      table: int32 [n, N], the pages of each sequence, in order; entries after the last one may be any page.
      lengths: int32 [n], cached tokens of each sequence; the call's tokens come after them.
      positions: int32 [n, t], ascending by one from `lengths`; DROPPED for a token that is not written.
    """
    writes = [paged_tpu.write if self.kernel == RAGGED else _write] * 2
    if self.kernel == PLAIN and self.quantized:
      writes = [_write_pairs, _write_scales]

    def attend(layer: int, q, k, v, cache: Cache):
      # The layer's pages, and its scales if it has some.
      changed, mine = list(cache), slice(layer, self.paged, self.layers)
      window = self.windows[layer] if self.windows else None
      if self.kernel == TRITON and q.shape[1] <= paged_gpu.NEW:
        pages, scales = (*changed[mine], None)[:2]
        how = dict(scales=scales, new=(k, v, positions), window=window, mesh=mesh_lib.around())
        out, *written = paged_gpu.attend(q, pages, table, lengths, **how)
        changed[mine] = written[: len(changed[mine])]
        return out, tuple(changed)
      if self.quantized:
        new: list[Any] = list(zip(quantize(k), quantize(v)))  # the numbers, and their scales
      else:
        new = [(k.astype(self.dtype), v.astype(self.dtype))]
      changed[mine] = [write(x, *both, table, positions) for write, x, both in zip(writes, changed[mine], new)]
      pages, scales = (*changed[mine], None)[:2]
      if self.kernel == TRITON:
        out, *_ = paged_gpu.attend(q, pages, table, lengths, scales=scales, window=window, mesh=mesh_lib.around())
      elif self.kernel == RAGGED:
        out = paged_tpu.attend(q, pages, table, lengths, window=window, mesh=mesh_lib.around())
      else:
        out = _attend(q, *new[0], pages, table, lengths, None if scales is None else (*new[1], scales), window)
      return out, tuple(changed)

    return attend

  def taken(self, cache: Cache, slots: jax.Array) -> Cache:
    """The pages, and in place of all memories those in the slots int32 [n], in this order."""
    return *cache[: self.paged], *(x.at[slots].get(mode="clip") for x in cache[self.paged :])

  def returned(self, cache: Cache, changed: Cache, slots: jax.Array) -> Cache:
    """The pages of `changed`, and the cache's memories with those of `changed` in these slots; DROPPED: in none."""
    memories = zip(cache[self.paged :], changed[self.paged :])
    return *changed[: self.paged], *(x.at[slots].set(y, mode="drop") for x, y in memories)

  def recurrence(self, counts: jax.Array, held: list[delta.Held] | None = None) -> Callable:
    """The `recur` of `Decoder.run` for tokens that follow those in the memories; its carry is a Cache from `taken`.

    Args:
      counts: int32 [n], how many of the call's tokens the memory takes in; 0: it stays as it is.
      held: the memories stay as they are, and this list gets what each layer's would take in, for `advanced`.
    """

    def recur(layer: int, mix, cache: Cache):
      memory = delta.Memory(*cache[self.paged + layer :: self.deltas])
      if held is None:
        out, new = mix(memory, counts)
        return out, self._remembered(cache, layer, new)
      out, later = mix(memory, hold=True)
      held.append(later)
      return out, cache

    return recur

  def advanced(self, cache: Cache, counts: jax.Array, positions: jax.Array, held: list[delta.Held]) -> Cache:
    """The cache whose memories have taken in the first `counts` of the held tokens, which are at `positions` [n, t]."""
    for layer, later in enumerate(held):
      memory = delta.Memory(*cache[self.paged + layer :: self.deltas])
      cache = self._remembered(cache, layer, later.after(memory, positions, counts))
    return cache

  def _remembered(self, cache: Cache, layer: int, new: delta.Memory) -> Cache:
    changed = list(cache)
    changed[self.paged + layer :: self.deltas] = new
    return tuple(changed)


def layout(config, page: int, dtype, platform: str, tensor: int = 1, *, kv_dtype: str = MODEL) -> Layout:
  """The layout for a `DecoderConfig` on "cpu", "gpu" or "tpu".

  The kernel is PLAIN where that of the platform does not support the sizes, or where this JAX does not have it. JAX's
  kernel for TPUs takes one scale for all tokens, so int8 pages are PLAIN on TPUs.

  Args:
    tensor: number of devices over which the heads of a replica are split.
    kv_dtype: dtype of keys and values: MODEL, which means `dtype`, or a dtype's name.
  """
  dtype, kernel, h = jnp.dtype(dtype), PLAIN, config.head_dim
  stored = dtype if kv_dtype == MODEL else jnp.dtype(kv_dtype)
  if platform == "gpu" and paged_gpu.supports(page, h) and kernels.has_triton():
    kernel = TRITON
  if platform == "tpu" and stored == dtype and paged_tpu.supports(config.num_kv_heads // tensor, h, dtype):
    kernel = RAGGED
  windows = ()
  if config.window is not None:
    windows = tuple(None if window >= EVERYTHING else window for window in config.windows)
  deltas = config.num_layers - config.attending
  memory = delta.Memory.shapes(config, 1, dtype) if deltas else None
  return Layout(kernel, config.attending, config.num_kv_heads, h, page, stored, windows, deltas, memory)


def _write(pages, k, v, table, positions):
  """Puts keys and values [n, t, KV, h], or their scales [n, t, KV], at the positions of their sequences."""
  page, slot = _places(table, positions, pages.shape[3], pages.shape[0])
  return pages.at[page, :, :, slot].set(jnp.stack((k, v), axis=2), mode="drop")


def _write_pairs(pages, k, v, table, positions):
  """As `_write`, for int8 keys and values in pages of pairs."""
  return pages.at[_places(table, positions, *pages.shape[1::-1])].set(pair(k, v), mode="drop")


def _write_scales(scales, k, v, table, positions):
  """Puts scales [n, t, KV] beside pages of pairs: first those of a page's keys, then those of its values."""
  pages, _, heads, both = scales.shape
  page, slot = (x[..., None] for x in _places(table, positions, both // 2, pages))
  head = jnp.arange(heads)[None, None]
  return scales.at[page, 0, head, slot].set(k, mode="drop").at[page, 0, head, slot + both // 2].set(v, mode="drop")


def _places(table, positions, size, pages):
  """(page, slot) int32 [n, t] of these positions in pages of `size` tokens."""
  inside = positions < table.shape[1] * size
  page = jnp.take_along_axis(table, jnp.where(inside, positions // size, 0), axis=1)
  return jnp.where(inside, page, pages), positions % size  # page number `pages` does not exist: the write is dropped


def _attend(q, k, v, pages, table, lengths, scales=None, window=None):
  """Attention of queries [n, t, H, h] to their own keys and values [n, t, KV, h] and to the `lengths` tokens before.

  With a window, a query attends to the last `window` tokens, itself included. Pages before all windows are not read.
  With int8, `scales` are those of k and of v, [n, t, KV] each, and those of the pages, which hold pairs.
  """
  n, t, heads, size = q.shape
  kv, block = k.shape[2], pages.shape[3 if scales is None else 1]
  k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))  # [n, KV, t, h]
  own = None if scales is None else [x.transpose(0, 2, 1) for x in scales[:2]]  # [n, KV, t]
  grouped = q.reshape(n, t, kv, heads // kv, size).transpose(0, 2, 3, 1, 4)  # [n, KV, G, t, h]
  index = jnp.arange(t)
  back = index[:, None] - index[None, :]
  causal = (back >= 0) if window is None else (back >= 0) & (back < window)
  start = _softmax(grouped, k, v, jnp.broadcast_to(causal[None], (n, t, t)), None, own)
  first = 0
  if window is not None:  # start at the first page in a window of some row; rows without tokens need no page
    filled = jnp.where(lengths > 0, lengths, lengths.max())
    first = jnp.maximum(filled.min() - window + 1, 0) // block

  def more(j, state):
    of_page = None
    if scales is None:
      # Keys and values are gathered separately: splitting one gather of both would take two more copies.
      keys, values = (pages.at[table[:, j], part].get(mode="clip") for part in (0, 1))  # [n, KV, page, h]
    else:
      keys, values = unpair(pages.at[table[:, j]].get(mode="clip").transpose(0, 2, 1, 3))
      of_page = jnp.split(scales[2].at[table[:, j]].get(mode="clip")[:, 0], 2, axis=-1)  # [n, KV, page]
    at = j * block + jnp.arange(block)
    mask = jnp.broadcast_to((at[None] < lengths[:, None])[:, None], (n, t, block))
    if window is not None:
      mask &= at[None, None] > (lengths[:, None] + index[None])[..., None] - window
    return _softmax(grouped, keys, values, mask, state, of_page)

  _, total, out = jax.lax.fori_loop(first, (lengths.max() + block - 1) // block, more, start)
  out = (out / total[..., None]).transpose(0, 3, 1, 2, 4)
  return out.reshape(n, t, heads, size).astype(q.dtype)


def _softmax(q, k, v, mask, state, scales):
  """Adds keys and values [n, KV, s, h] to the running softmax of queries [n, KV, G, t, h]; mask is [n, t, s].

  The state is (running maximum, sum of weights, weighted values), in float32. It is None at first; in that call every
  query must attend to some key. `scales` are those of int8 keys and of values, [n, KV, s] each.
  """
  k, v = (x.astype(q.dtype) for x in (k, v))  # exact: int8 has 7 bits and a sign, bfloat16 has 8 and a sign
  scores = jnp.einsum("nkgth,nksh->nkgts", q, k, preferred_element_type=jnp.float32) * (q.shape[-1] ** -0.5)
  if scales is not None:
    scores = scores * scales[0][:, :, None, None]
  scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
  peak = scores.max(-1) if state is None else jnp.maximum(state[0], scores.max(-1))
  weights = jnp.exp(scores - peak[..., None])
  total = weights.sum(-1)
  if scales is not None:
    weights = weights * scales[1][:, :, None, None]
  out = jnp.einsum("nkgts,nksh->nkgth", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
  if state is None:
    return peak, total, out
  old, old_total, old_out = state
  fade = jnp.exp(old - peak)
  return peak, old_total * fade + total, old_out * fade[..., None] + out


def quantize(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Keys or values [..., h] as int8, with one float32 scale per token and head: x ≈ int8 · scale.

  Returns:
    (int8 [..., h], scales [...]). The largest magnitude of each vector becomes 127; zeros stay zeros.
  """
  x = jnp.asarray(x, jnp.float32)
  scale = jnp.abs(x).max(axis=-1) / 127
  return jnp.round(x / jnp.where(scale == 0, 1.0, scale)[..., None]).astype(jnp.int8), scale


def pair(k: jax.Array, v: jax.Array) -> jax.Array:
  """int8 keys and values of one shape as uint16: the key's byte is the low one."""
  k, v = (x.astype(jnp.uint8).astype(jnp.uint16) for x in (k, v))
  return k | v << 8


def unpair(pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(keys, values) of `pair`, as int32."""
  wide = pairs.astype(jnp.int32)
  return wide << 24 >> 24, wide << 16 >> 24  # signed: the highest bit of a byte fills those above it


def copy(cache: Cache, source: jax.Array, target: jax.Array) -> Cache:
  """Copies page `source[i]` to page `target[i]`, all at once; a target that does not exist is skipped."""
  return tuple(x.at[target].set(x.at[source].get(mode="clip"), mode="drop") for x in cache)


def take(cache: Cache, pages: jax.Array) -> jax.Array:
  """Reads these pages of all layers, [n, L, …]: the host keeps their contents while other tokens use the pages.

  int8 pages come as bytes, uint8 [n, L, B]: first those of the pages, then those of the scales.
  """
  found = [jnp.stack([x.at[pages].get(mode="clip") for x in part], axis=1) for part in _parts(cache)]
  if len(found) == 1:
    return found[0]
  flat = [jax.lax.bitcast_convert_type(x, jnp.uint8).reshape(*x.shape[:2], -1) for x in found]
  return jnp.concatenate(flat, axis=-1)


def put(cache: Cache, pages: jax.Array, saved: jax.Array) -> Cache:
  """Writes `saved`, from `take`, to these pages, bit for bit; a page that does not exist is skipped."""
  parts, given = _parts(cache), [saved]
  if len(parts) == 2:
    one = parts[0][0]
    cut = one.size // one.shape[0] * one.dtype.itemsize  # bytes of a page
    given = [_of_bytes(x, part[0]) for x, part in zip((saved[..., :cut], saved[..., cut:]), parts)]
  layers = [(x, part[:, layer]) for xs, part in zip(parts, given) for layer, x in enumerate(xs)]
  return tuple(x.at[pages].set(part, mode="drop") for x, part in layers)


def _of_bytes(flat, like):
  """uint8 [n, L, B] as pages of all layers; `like` is the cache of a layer."""
  width = like.dtype.itemsize
  bits = flat.reshape(*flat.shape[:2], *like.shape[1:], *((width,) if width > 1 else ()))
  return jax.lax.bitcast_convert_type(bits, like.dtype)


def _parts(cache: Cache) -> list[Cache]:
  """[the pages of each layer], and [the scales of each layer] of int8 pages."""
  layers = len(cache) // 2 if cache[0].dtype in (jnp.int8, jnp.uint16) else len(cache)
  return [cache[at : at + layers] for at in range(0, len(cache), layers)]
