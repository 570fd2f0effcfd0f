"""Attention within segments, and to their prefixes, on NVIDIA GPUs, by cuDNN's kernels through `jax.nn`.

The mask [B, T, T] is made once for all layers and heads, so that every row that the other kernels take is taken.
Blocks of other segments are computed and masked: cuDNN skips only what causality hides. Its own form of packed rows
has no prefixes, needs a bound on the segments of a row, and stores the softmax's sums as often as that bound.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import kernels
from ragrl_jax.models.kernels import Tokens, Windows

OLDEST = (0, 11, 2)  # of JAX: before, a mask of several rows has no backward pass
WIDEST = 256  # head size, on Hopper and later
LONGEST = 8192  # tokens a row: the mask of a row is then 64 MiB, and twice that as cuDNN reads it
MULTIPLE = 64  # rows are padded to it: cuDNN takes even lengths, and is fastest for whole blocks


def takes(q: jax.Array) -> bool:
  """Whether cuDNN computes attention for queries like q [B, T, H, h] here."""
  T, h = q.shape[1], q.shape[3]
  fits = q.dtype.itemsize == 2 and h % 8 == 0 and h <= WIDEST and T <= LONGEST
  return jax.__version_info__ >= OLDEST and fits and (jax.default_backend() != "gpu" or agrees(h, q.dtype.name))


@functools.cache
def agrees(h: int, dtype: str) -> bool:
  """Whether this machine's cuDNN computes attention and its gradient as the formula does, for heads of this size.

  Small packed rows are computed in both ways, once a process. If it does not, a warning says why.
  """
  draw = np.random.default_rng(0)
  ids = np.repeat([1, 2, 3, 0], [90, 100, 50, 16])[None].repeat(2, 0)
  prefixes = np.where(ids == 3, 2, ids)

  def both(implementation):
    run = lambda *x: attend(*x, jnp.asarray(ids), jnp.asarray(prefixes), implementation=implementation)
    out, back = jax.vjp(run, *inputs)
    return jax.tree.map(lambda x: np.asarray(x, np.float32), (out, back(out)))

  with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
    inputs = [jnp.asarray(draw.normal(size=(2, 256, heads, h)), dtype) for heads in (4, 2, 2)]
    try:
      pairs = zip(*map(jax.tree.leaves, (both("cudnn"), both("xla"))))
      apart = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)
      wrong = "" if apart < 0.02 else f"is {apart:.3f} off"  # 16 bits round to 2^-8
    except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError) as error:
      wrong = f"fails: {error}"
  if wrong:
    warnings.warn(f"cuDNN's attention for heads of {h} in {dtype} {wrong}. Other kernels are used.", stacklevel=2)
  return not wrong


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
  seen: jax.Array | None = None,
  implementation: str = "cudnn",
) -> jax.Array:
  """`attention.attend`, see there and `kernels.per_device`.

  `implementation` is that of `jax.nn.dot_product_attention`; "xla" runs on any device, for tests.
  """

  def local(q, k, v, queries: Tokens, keys: Tokens):
    # Padding attends to padding. With values of 0 its output and gradients are 0.
    v = jnp.where((keys.segment_ids != 0)[:, :, None, None], v, jnp.zeros_like(v))
    mask = kernels.mask(queries, keys, causal)[:, None]
    whole = q.shape[1] == k.shape[1]  # a part of a row's queries has other diagonals
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal and whole, implementation=implementation)

  more = dict(multiple=MULTIPLE, mesh=mesh, windows=windows, seen=seen)
  return kernels.per_device(local, q, k, v, segment_ids, prefix_ids, **more)
