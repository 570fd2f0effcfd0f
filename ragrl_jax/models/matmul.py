"""The matmuls of a layer: x W + bias, and with LoRA adapters on one GPU x W + x A B as one matmul, [x, x A] [W; B].

Apart, x A B of a wide matrix is written, read and added, which moves more bytes than W does. W is frozen, so its layer
has to copy it out of the stack anyway: it is copied next to B. On several devices W and B are sharded, and on a CPU
the sum costs little, so there `layers.Layer` computes the terms apart.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

ALIGNED = 16  # a matmul's inner dimension is a multiple of this, which NVIDIA's kernels want


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """x [B, T, in] @ weight [in, out] (+ bias) in x's dtype, accumulated in float32.

  The tokens are flattened first: on CPUs, XLA's two-dimensional matmuls are a sixth faster, and the weight's gradient
  three times as fast.
  """
  return _rounded(_matmul(x.reshape(-1, x.shape[-1]), weight), bias, x)


def _rounded(y, bias, x):
  """y [N, out] plus bias, in x's dtype, with x's axes."""
  if bias is not None:
    y = y + bias.astype(jnp.float32)[None]
  return y.astype(x.dtype).reshape(*x.shape[:-1], y.shape[-1])


@jax.custom_vjp
def _matmul(x, weight):
  """x [N, in] @ weight [in, out] in x's dtype. The result is float32; its gradient is rounded to x's dtype."""
  return _dot(x, weight.astype(x.dtype), 1, 0)


def _matmul_backward(saved, gradient):
  x, weight = saved
  gradient = gradient.astype(x.dtype)
  of_x = _dot(gradient, weight.astype(x.dtype), 1, 1).astype(x.dtype)
  whole = lambda x, gradient: _dot(x, gradient, 0, 0)
  # XLA's CPU matmul is twice as fast if the smaller axis of the weight's gradient is the rows. The barrier keeps XLA
  # from removing the transposition.
  turned = lambda x, gradient: jax.lax.optimization_barrier(_dot(gradient, x, 0, 0)).T
  if weight.shape[0] > weight.shape[1]:
    of_weight = jax.lax.platform_dependent(x, gradient, cpu=turned, default=whole)
  else:
    of_weight = whole(x, gradient)
  return of_x, of_weight.astype(weight.dtype)


_matmul.defvjp(lambda x, weight: (_matmul(x, weight), (x, weight)), _matmul_backward)


class Adapted(NamedTuple):
  """A matrix with an adapter: x weight + bias + x a b.

  Attributes:
    weight: [in, out].
    a: [in, rank].
    b: [rank, out], multiplied by alpha / rank.
    bias: [out], or None.
  """

  weight: jax.Array
  a: jax.Array
  b: jax.Array
  bias: jax.Array | None


def adapted(x: jax.Array, matrices: Sequence[Adapted]) -> list[jax.Array]:
  """x [B, T, in] times each of the matrices, in x's dtype, accumulated in float32."""
  flat, one = x.reshape(-1, x.shape[-1]), matrices[0]
  if len(matrices) == 1 and one.weight.shape[0] > one.weight.shape[1]:
    more = -one.a.shape[1] % ALIGNED
    a, b = jnp.pad(one.a, ((0, 0), (0, more))), jnp.pad(one.b, ((0, more), (0, 0)))
    return [_rounded(_tall(flat, one.weight, a, b), one.bias, x)]
  ranks = [len(matrix.b) for matrix in matrices]
  more, results = -sum(ranks) % ALIGNED, []
  a = jnp.pad(jnp.concatenate([matrix.a for matrix in matrices], axis=1), ((0, 0), (0, more)))
  narrow = checkpoint_name(linear(flat, a), "attention")  # small, so remat keeps it
  for number, (weight, _, b, bias) in enumerate(matrices):
    b = jnp.pad(b, ((sum(ranks[:number]), sum(ranks[number + 1 :]) + more), (0, 0)))
    results.append(_rounded(_wide(flat, narrow, weight, b), bias, x))
  return results


def _dot(a, b, contract_a: int, contract_b: int):
  return jax.lax.dot_general(a, b, (((contract_a,), (contract_b,)), ((), ())), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _wide(x, narrow, weight, b):
  """x @ weight + narrow @ b."""
  return _dot(jnp.concatenate((x, narrow), axis=1), _below(x.dtype, weight, b), 1, 0)


def _below(dtype, weight, b):
  return jnp.concatenate((weight.astype(dtype), b.astype(dtype)), axis=0)


def _wide_backward(saved, gradient):
  x, narrow, weight, b = saved
  gradient, size = gradient.astype(x.dtype), x.shape[1]
  both = _dot(gradient, _below(x.dtype, weight, b), 1, 1).astype(x.dtype)
  of_weight, of_b = _dot(x, gradient, 0, 0), _dot(narrow, gradient, 0, 0)
  return both[:, :size], both[:, size:], of_weight.astype(weight.dtype), of_b.astype(b.dtype)


_wide.defvjp(lambda *inputs: (_wide(*inputs), inputs), _wide_backward)


@jax.custom_vjp
def _tall(x, weight, a, b):
  """x @ weight + x @ a @ b of a matrix that is taller than wide: x is too large to be copied beside x @ a."""
  return _tall_forward(x, weight, a, b)[0]


def _beside(dtype, weight, a):
  return jnp.concatenate((weight.astype(dtype), a.astype(dtype)), axis=1)


def _tall_forward(x, weight, a, b):
  out = weight.shape[1]
  both = _dot(x, _beside(x.dtype, weight, a), 1, 0).astype(x.dtype)
  narrow = checkpoint_name(both[:, out:], "attention")
  y = both[:, :out].astype(jnp.float32) + _dot(narrow, b.astype(x.dtype), 1, 0)
  return y, (x, narrow, weight, a, b)


def _tall_backward(saved, gradient):
  x, narrow, weight, a, b = saved
  gradient = gradient.astype(x.dtype)
  of_narrow = _dot(gradient, b.astype(x.dtype), 1, 1).astype(x.dtype)
  of_x = _dot(jnp.concatenate((gradient, of_narrow), axis=1), _beside(x.dtype, weight, a), 1, 1)
  of_weight, of_a, of_b = _dot(x, gradient, 0, 0), _dot(x, of_narrow, 0, 0), _dot(narrow, gradient, 0, 0)
  return of_x.astype(x.dtype), of_weight.astype(weight.dtype), of_a.astype(a.dtype), of_b.astype(b.dtype)


_tall.defvjp(_tall_forward, _tall_backward)
