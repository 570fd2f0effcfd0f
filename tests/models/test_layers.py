"""Norm, gate and rotation: by hand, and their custom backward passes against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.models import layers, matmul


def draws(*shapes, dtype=jnp.float32):
  draw = np.random.default_rng(0)
  return [jnp.asarray(draw.normal(size=shape), dtype) for shape in shapes]


def test_rms_norm_by_hand():
  # The mean square of (3, 4) is 12.5; with eps 3.5 the root is 4.
  got = layers.rms_norm(jnp.array([[3.0, 4.0]]), jnp.array([2.0, 1.0]), 3.5)
  np.testing.assert_allclose(got, [[1.5, 1.0]], rtol=1e-6)


def test_rotation_by_hand():
  # A quarter turn maps the pair (1, 2) to (-2, 1). A head is (1, 5, 2, 6); its second pair (5, 6) is not rotated.
  cos, sin = jnp.array([0.0, 1.0]).reshape(1, 1, 1, 2), jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2)
  got = layers.rotate(jnp.array([1.0, 5.0, 2.0, 6.0]).reshape(1, 1, 1, 4), cos, sin)
  np.testing.assert_allclose(got.reshape(-1), [-2.0, 5.0, 1.0, 6.0], atol=1e-6)


def same_gradients(mine, theirs, inputs, weight, atol):
  found, want = (jax.jit(lambda *x, f=f: jax.vjp(f, *x)[1](weight))(*inputs) for f in (mine, theirs))
  for one, other in zip(found, want, strict=True):
    np.testing.assert_allclose(one, other, atol=atol)


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 4, 8), (1, 6, 8)])
def test_rms_norm_backward(shape):
  *inputs, weight = draws(shape, (8,), shape)
  row = lambda gain: gain.reshape((1,) * (len(shape) - 1) + (8,))
  plain = lambda x, gain: x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-3) * row(gain)
  same_gradients(lambda x, gain: layers.rms_norm(x, gain, 1e-3), plain, inputs, weight, 2e-5)


@pytest.mark.parametrize("name, activation", [("silu", jax.nn.silu), ("gelu_pytorch_tanh", jax.nn.gelu)])
def test_gate_backward(name, activation):
  gate, up, weight = draws((5, 8), (5, 8), (5, 8))
  plain = lambda gate, up: activation(gate) * up
  same_gradients(lambda *x: layers.gated(*x, name), plain, (3.0 * gate, up), weight, 2e-6)


def test_bfloat16_in_and_out_and_float32_gain_with_float32_gradient():
  x, weight = draws((2, 8), (2, 8), dtype=jnp.bfloat16)
  gain = jnp.ones((8,))
  out, back = jax.vjp(lambda x, gain: layers.rms_norm(x, gain, 1e-6), x, gain)
  assert out.dtype == jnp.bfloat16
  assert [g.dtype for g in back(weight)] == [jnp.bfloat16, jnp.float32]
  wide = layers.rms_norm(x.astype(jnp.float32), gain, 1e-6)
  np.testing.assert_allclose(out.astype(jnp.float32), wide, rtol=2**-8)  # rounded once, at the end


def test_a_zero_row_has_a_finite_gradient():
  x, gain = jnp.zeros((1, 4)), jnp.ones((4,))
  assert np.isfinite(jax.grad(lambda x: layers.rms_norm(x, gain, 1e-6).sum())(x)).all()


def test_linear_of_flattened_tokens():
  x, weight, bias = draws((2, 3, 4), (4, 5), (5,))
  want = np.einsum("btk,kn->btn", x, weight) + np.asarray(bias)[None, None]
  np.testing.assert_allclose(matmul.linear(x, weight, bias), want, atol=1e-5)
