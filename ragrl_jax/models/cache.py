"""The key-value cache in pages, and attention over it. The layout of a page is private to this file and the kernels'.

A conversation's tokens lie in the pages that its table names, in order. Several tables may name one page: then nobody
writes to it. A call writes its own tokens first, then attends to them and to what lay there before.

GPUs and TPUs have kernels for it (`paged_gpu`, `paged_tpu`). In plain JAX, attention takes page after page with a
running softmax. A page without a token of the row adds exact zeros, so a row's results depend on that row alone,
however long the other rows are.

Keys and values may be int8, with one scale for each token and head. Attention then takes what the cache holds of every
token, the call's own included: where a text was cut into calls changes nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import paged, paged_gpu, paged_tpu
from ragrl_jax.models.config import EVERYTHING
from ragrl_jax.parallel import mesh as mesh_lib

Cache = tuple[jax.Array, ...]  # the pages of each layer; if they are int8, then the scales of each layer. See `Layout`

DROPPED = np.iinfo(np.int32).max  # a position to which nothing is written
PLAIN, TRITON, RAGGED = "plain JAX", "Triton", "ragged paged attention"
MODEL = "model"  # a dtype of keys and values: that of the matmuls
SCALE = jnp.dtype(jnp.float32)  # of int8 keys and values


@dataclasses.dataclass(frozen=True)
class Layout:
  """How a layer's pages lie in memory, and what attends to them.

  Attributes:
    kernel: PLAIN or TRITON for pages [P, 2, KV, page, h]; RAGGED, the TPU's, for [P, page, 2 · KV, h].
    layers, heads, size: of the decoder: layers, key-value heads, width of a head.
    page: tokens of a page.
    dtype: of keys and values. int8 has scales beside the pages, float32 [P, 2, KV, page]. But PLAIN keeps int8 in pairs
      of a key and a value, uint16 [P, page, KV, h], with scales [P, 1, KV, 2 · page]: XLA for TPUs writes to pairs in
      place, and copies the whole cache to write to int8.
    windows: of each layer, the tokens that it attends to, the newest included; None for all. () for all in all layers.
      The cache keeps all.
  """

  kernel: str
  layers: int
  heads: int
  size: int
  page: int
  dtype: Any
  windows: tuple[int | None, ...] = ()

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
    """How often attention moves each byte of a page that it attends to."""
    if self.kernel != PLAIN:
      return 1
    # Plain JAX reads a page, writes a copy of it, and reads the copy: 3. As compiled for v5e, the copy of pairs is read
    # twice, and keys and values in bfloat16, each as large as the pairs, are written and read: 2 + 2 + 2 + 2.
    return 8 if self.quantized else 3

  def most(self, tensor: int = 1) -> int | None:
    """Pages of a replica on `tensor` devices from which on the kernel cannot address all; None if it always can."""
    if self.kernel != TRITON or not self.quantized:
      return None
    return paged_gpu.NEAR // (2 * self.heads // tensor * self.page * self.size)

  def check(self, pages: int, tensor: int = 1) -> None:
    """Raises ValueError if the kernel cannot address so many pages of a replica on `tensor` devices."""
    most = self.most(tensor)
    if most is not None and most < pages <= 2 * most:
      raise ValueError(
        f"config.rollout.kv_dtype='int8' with {pages:,} pages of {self.page} tokens a replica: a layer of them has 2 "
        "to 4 GiB on a GPU, which the kernel cannot address. Set config.rollout.pages so that a replica has at most "
        f"{most:,}, raise config.rollout.mesh.tensor, or use 'model'."
      )

  def allocate(self, pages: int, sharding: jax.sharding.Sharding | None = None) -> Cache:
    """An empty cache with so many pages."""
    if self.kernel == RAGGED:
      shape = (pages, self.page, 2 * self.heads, self.size)
    else:
      shape = (pages, 2, self.heads, self.page, self.size)
    arrays: list[Any] = [(shape, self.dtype)] + [(shape[:-1], SCALE)] * self.quantized
    if self.kernel == PLAIN and self.quantized:
      pairs, scales = (pages, self.page, self.heads, self.size), (pages, 1, self.heads, 2 * self.page)
      arrays = [(pairs, jnp.uint16), (scales, SCALE)]
    return tuple(jnp.zeros(*one, device=sharding) for one in arrays for _ in range(self.layers))

  def attention(self, table: jax.Array, lengths: jax.Array, positions: jax.Array) -> Callable:
    """The `attend` of `Decoder.run` for tokens that follow the cached ones; its carry is the Cache.

    Args:
      table: int32 [n, N], the pages of each sequence, in order; what follows the last one is any page.
      lengths: int32 [n], cached tokens of each sequence; the call's tokens come after them.
      positions: int32 [n, t], ascending by one from `lengths`; DROPPED for a token that is not to be written.
    """
    writes = [paged_tpu.write if self.kernel == RAGGED else _write] * 2
    if self.kernel == PLAIN and self.quantized:
      writes = [_write_pairs, _write_scales]

    def attend(layer: int, q, k, v, cache: Cache):
      if self.quantized:
        new: list[Any] = list(zip(paged.quantize(k), paged.quantize(v)))  # the numbers, and their scales
      else:
        new = [(k.astype(self.dtype), v.astype(self.dtype))]
      changed, mine = list(cache), slice(layer, None, self.layers)  # the layer's pages, and its scales if it has some
      changed[mine] = [write(x, *both, table, positions) for write, x, both in zip(writes, changed[mine], new)]
      pages, scales = (*changed[mine], None)[:2]
      window = self.windows[layer] if self.windows else None
      if self.kernel == TRITON:
        out = paged_gpu.attend(q, pages, table, lengths, scales=scales, window=window, mesh=mesh_lib.around())
      elif self.kernel == RAGGED:
        out = paged_tpu.attend(q, pages, table, lengths, window=window, mesh=mesh_lib.around())
      else:
        out = _attend(q, *new[0], pages, table, lengths, None if scales is None else (*new[1], scales), window)
      return out, tuple(changed)

    return attend


def layout(config, page: int, dtype, platform: str, tensor: int = 1, *, kv_dtype: str = MODEL) -> Layout:
  """The layout for a `DecoderConfig` on "cpu", "gpu" or "tpu".

  A kernel that does not support the sizes is not chosen. JAX's kernel for TPUs knows one scale for all tokens, so int8
  pages are plain JAX's there.

  Args:
    config: of the decoder.
    page: tokens of a page.
    dtype: of the matmuls.
    platform: of the devices.
    tensor: devices over which the heads of a replica are split.
    kv_dtype: of keys and values: MODEL, which is `dtype`, or the name of another.
  """
  dtype, kernel, h = jnp.dtype(dtype), PLAIN, config.head_dim
  stored = dtype if kv_dtype == MODEL else jnp.dtype(kv_dtype)
  if platform == "gpu" and paged_gpu.supports(page, h):
    kernel = TRITON
  if platform == "tpu" and stored == dtype and paged_tpu.supports(config.num_kv_heads // tensor, h, dtype):
    kernel = RAGGED
  windows = ()
  if config.window is not None:
    windows = tuple(None if window >= EVERYTHING else window for window in config.windows)
  return Layout(kernel, config.num_layers, config.num_kv_heads, h, page, stored, windows)


def _write(pages, k, v, table, positions):
  """Puts keys and values [n, t, KV, h], or their scales [n, t, KV], at the positions of their sequences."""
  page, slot = _places(table, positions, pages.shape[3], pages.shape[0])
  return pages.at[page, :, :, slot].set(jnp.stack((k, v), axis=2), mode="drop")


def _write_pairs(pages, k, v, table, positions):
  """As `_write`, of int8 keys and values to pages of pairs."""
  return pages.at[_places(table, positions, *pages.shape[1::-1])].set(paged.pair(k, v), mode="drop")


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
  return jnp.where(inside, page, pages), positions % size  # a page that does not exist: dropped


def _attend(q, k, v, pages, table, lengths, scales=None, window=None):
  """Attention of queries [n, t, H, h] to their own keys and values [n, t, KV, h] and to the `lengths` tokens before.

  With a window, a query attends to as many tokens, itself included, and pages before all windows are not read.
  `scales` of int8 keys and values: of k and of v [n, t, KV], and of the pages, which then hold pairs.
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
  if window is not None:  # the first page that some row's first query attends to; rows without tokens need no page
    filled = jnp.where(lengths > 0, lengths, lengths.max())
    first = jnp.maximum(filled.min() - window + 1, 0) // block

  def more(j, state):
    of_page = None
    if scales is None:
      # Keys and values are read one after the other: a gather of both would be taken apart by two more copies.
      keys, values = (pages.at[table[:, j], part].get(mode="clip") for part in (0, 1))  # [n, KV, page, h]
    else:
      keys, values = paged.unpair(pages.at[table[:, j]].get(mode="clip").transpose(0, 2, 1, 3))
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
  k, v = (x.astype(q.dtype) for x in (k, v))  # exact: int8 has 7 bits beside its sign, bfloat16 has 8
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


def copy(cache: Cache, source: jax.Array, target: jax.Array) -> Cache:
  """Copies page `source[i]` to page `target[i]`, all at once; a target that does not exist is dropped."""
  return tuple(x.at[target].set(x.at[source].get(mode="clip"), mode="drop") for x in cache)


def take(cache: Cache, pages: jax.Array) -> jax.Array:
  """These pages of all layers, [n, L, …]. The host keeps them while others use the pages.

  Of int8 they are bytes, uint8 [n, L, B]: first those of the pages, then those of the scales.
  """
  found = [jnp.stack([x.at[pages].get(mode="clip") for x in part], axis=1) for part in _parts(cache)]
  if len(found) == 1:
    return found[0]
  flat = [jax.lax.bitcast_convert_type(x, jnp.uint8).reshape(*x.shape[:2], -1) for x in found]
  return jnp.concatenate(flat, axis=-1)


def put(cache: Cache, pages: jax.Array, saved: jax.Array) -> Cache:
  """Writes what `take` gave to these pages, bit for bit; a page that does not exist is dropped."""
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
