import jax.numpy as jnp
import numpy as np

from ragrl_jax.core import groups

IDS = jnp.array([3, 1, 3, 9, 1])


def test_sizes_and_constant_by_hand():
  # Groups: 3 → (0.5, 0.5), 1 → (0, 1), 9 alone.
  np.testing.assert_array_equal(groups.sizes(IDS), [2, 2, 2, 1, 2])
  values = jnp.array([0.5, 0, 0.5, 7, 1.0])
  np.testing.assert_array_equal(groups.constant(values, IDS), [True, False, True, True, False])


def test_equal_up_to_rounding_is_constant():
  # 0.1 + 0.2 and 0.3 differ in the last bit of float32, which is not a spread. A difference of 1e-4 is one.
  x = jnp.array([0.1, 0.3], jnp.float32) + jnp.array([0.2, 0.0], jnp.float32)
  both = jnp.array([0, 0])
  assert groups.constant(x, both).all() and groups.equal([0.1 + 0.2, 0.3, 0.3])
  assert not groups.equal([0.3, 0.3001]) and groups.equal([0.0, 0.0]) and groups.equal([-2.0])
  assert not groups.constant(jnp.array([0.3, 0.3001]), both).any()
  # A large common part neither hides a real difference nor turns rounding into one.
  assert not groups.constant(jnp.array([100.0, 100.01]), both).any()
  assert groups.constant(jnp.array([0.0, 0.0]), both).all()
  # Terms that cancel leave less than a rounding of theirs, but more than one of the sum.
  left = [0.0, 0.1 + 0.2 - 0.3]
  assert left[1] > 0 and groups.constant(jnp.array(left), both).all() and groups.equal(left)


def test_informative_groups_keep_all_their_episodes():
  np.testing.assert_array_equal(groups.informative(np.array([1, 0, 1, 1, 1]), IDS), [False, True, False, False, True])


def test_a_spread_within_the_tolerance_does_not_count():
  both = jnp.array([0, 0])
  assert groups.constant(jnp.array([0.3, 0.3001]), both, tolerance=1e-3).all()
  assert not groups.constant(jnp.array([0.3, 0.302]), both, tolerance=1e-3).any()
  # Seven rewards of 0.7 have a standard deviation of 6e-8 in NumPy's float32. A difference of 1e-4 is a spread.
  seven = np.full(7, 0.7, np.float32)
  assert not groups.informative(seven, np.zeros(7, np.int32)).any()
  seven[3] += np.float32(1e-4)
  assert groups.informative(seven, np.zeros(7, np.int32)).all()
  # The tolerance is absolute. However small it is, rounding of a large value is not a spread.
  assert groups.constant(np.float32([1e6, np.nextafter(np.float32(1e6), np.float32(2e6))]), both, tolerance=1e-9).all()
