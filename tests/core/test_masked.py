import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.core import masked


def test_mean_by_hand():
  # The mask is on for the values 1, 3 and 5: (1 + 3 + 5) / 3 = 3.
  for mask in (np.array([[True, False, True, True]]), np.array([[1, 0, 1, 1]]), np.float32([[1.0, 0.0, 1.0, 1.0]])):
    assert float(masked.mean(np.array([[1.0, 100.0, 3.0, 5.0]]), mask)) == 3.0


def test_masked_values_have_no_effect():
  x = jnp.array([[1.0, jnp.nan, jnp.inf, 3.0]])
  mask = jnp.array([[1, 0, 0, 1]])
  assert float(masked.total(x, mask)) == 4.0
  gradient = jax.grad(lambda x: masked.mean(jnp.square(masked.keep(x, mask)), mask))(x)
  # d/dx of (x0^2 + x3^2) / 2 is x0 and x3. All other gradients are 0.
  np.testing.assert_array_equal(gradient, [[1.0, 0.0, 0.0, 3.0]])


def test_an_empty_mask_gives_zero():
  x, off = jnp.ones((2, 3)), jnp.zeros((2, 3), bool)
  assert float(masked.mean(x, off)) == 0.0
  assert float(masked.num_sequences(off)) == 0.0
  np.testing.assert_array_equal(masked.whiten(x, off), np.zeros((2, 3)))


def test_whiten_by_hand():
  # 1, 2, 3: mean 2, unbiased variance (1 + 0 + 1) / 2 = 1.
  got = masked.whiten(jnp.array([[1.0, 7.0, 2.0, 3.0]]), jnp.array([[1, 0, 1, 1]]), eps=0.0)
  np.testing.assert_allclose(got, [[-1.0, 0.0, 0.0, 1.0]], rtol=1e-6)
  np.testing.assert_array_equal(masked.whiten(jnp.array([[5.0, 1.0]]), jnp.array([[1, 0]])), [[0.0, 0.0]])


def test_segment_sums_by_hand():
  x = jnp.array([[1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
  mask = jnp.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]])
  segments = jnp.array([[1, 1, 1, 2, 0], [1, 2, 2, 2, 2]])
  # Row 0: segment 1 sums to 1 + 2, segment 2 to 8, segment 0 (padding) to 16. Row 1: 1, and 1 + 1. Rows stay separate.
  want = [[3.0, 3.0, 3.0, 8.0, 16.0], [1.0, 2.0, 2.0, 2.0, 2.0]]
  np.testing.assert_array_equal(masked.segment_sums(x, mask, segments), want)
  np.testing.assert_array_equal(masked.segment_sums(x, mask, None), [[27.0] * 5, [3.0] * 5])


def test_num_sequences_counts_those_with_a_trained_token():
  mask = jnp.array([[1, 0, 0, 1], [0, 0, 0, 0]])
  segments = jnp.array([[1, 2, 2, 3], [1, 1, 2, 0]])
  assert float(masked.num_sequences(mask, segments)) == 2.0  # segments 1 and 3 of row 0; segment 2 has no trained token
  assert float(masked.num_sequences(mask)) == 1.0  # without segments, a row is a sequence
