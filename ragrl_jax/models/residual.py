"""The residual stream of decoding on NVIDIA GPUs: one Triton kernel adds what a matmul gives, and norms the sum.

A matmul of few rows is faster if several programs share its inner dimension, each with a part of every sum. The kernel
adds up these parts, too.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ragrl_jax.models import kernels

TILE = 64  # rows and columns of a product per program
LEAST, MOST = 384, 2560  # numbers of the inner dimension per part; XLA would divide more, and add up in one more kernel


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Stream:
  """The residual stream [B, T, D] in place of an array, for the blocks of a decoder. `layers.rms_norm` norms it.

  Attributes:
    x: the stream, without `parts`.
    parts: [S, B, T, D], whose sum is added by the next norm; None: nothing.
    interpret: run the kernel as plain JAX, on any device; for tests.
  """

  x: jax.Array
  parts: jax.Array | None = None

  interpret = False

  @property
  def shape(self) -> tuple[int, ...]:
    """(B, T, D)."""
    return self.x.shape

  def __add__(self, out: jax.Array) -> "Stream":
    """The stream plus out [B, T, D], or plus the sum of out [S, B, T, D]."""
    assert self.parts is None, "a norm comes between two additions"
    return Stream(self.x, out if out.ndim > self.x.ndim else out[None])

  def norm(self, gain: jax.Array, eps: float) -> jax.Array:
    """RMSNorm of the stream, see `layers.rms_norm`; `parts` become a part of x."""
    from jax.experimental.pallas import triton  # here, because nothing else of a model needs it

    (B, T, D), parts = self.x.shape, self.parts
    assert parts is not None
    like = jax.ShapeDtypeStruct((B * T, D), self.x.dtype)
    x, out = pl.pallas_call(
      functools.partial(_kernel, eps=eps),
      grid=(B * T,),
      out_shape=(like, like),
      compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
      interpret=self.interpret,
      name="add_and_norm",
    )(self.x.reshape(-1, D), parts.reshape(-1, B * T, D), gain)
    self.x, self.parts = x.reshape(B, T, D), None
    return out.reshape(B, T, D)


def parts(x: jax.Array, weight: jax.Array) -> jax.Array:
  """Float32 [S, B, T, out], whose sum is x [B, T, in] @ weight [in, out], in x's dtype with float32 sums."""
  B, T, size = x.shape
  programs, shares = pl.cdiv(B * T, TILE) * pl.cdiv(weight.shape[1], TILE), 1
  few = lambda: programs * shares < kernels.MULTIPROCESSORS or size > shares * MOST
  while few() and size % (2 * shares) == 0 and size >= 2 * shares * LEAST:
    shares *= 2
  x, weight = x.reshape(B * T, shares, -1), weight.astype(x.dtype).reshape(shares, size // shares, -1)
  out = jax.lax.dot_general(x, weight, (((2,), (1,)), ((1,), (0,))), preferred_element_type=jnp.float32)
  return out.reshape(shares, B, T, -1)


def _kernel(x_ref, parts_ref, gain_ref, sum_ref, out_ref, *, eps):
  from jax.experimental.pallas import triton

  (shares, _, size), row = parts_ref.shape, pl.program_id(0)
  columns = jnp.arange(pl.next_power_of_2(size), dtype=jnp.int32)
  real = columns < size
  load = lambda ref, *at: triton.load(ref.at[(*at, columns)], mask=real, other=0).astype(jnp.float32)
  more = functools.reduce(jnp.add, (load(parts_ref, share, row) for share in range(shares)))
  x = (load(x_ref, row) + more.astype(x_ref.dtype).astype(jnp.float32)).astype(x_ref.dtype)
  triton.store(sum_ref.at[row, columns], x, mask=real)
  x = x.astype(jnp.float32)
  scale = jax.lax.rsqrt(jnp.sum(x * x) / size + eps)
  triton.store(out_ref.at[row, columns], (x * scale * load(gain_ref)).astype(out_ref.dtype), mask=real)
