import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ragrl_jax.core import advantages, groups

ONE = jnp.zeros(4, jnp.int32)
RIGHT = jnp.array([1.0, 0.0, 0.0, 0.0])
REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), min_size=6, max_size=6)


@pytest.mark.parametrize("std, want", [
  # Deviations (.75, -.25, -.25, -.25), sum of squares .75. Sample: sqrt(.75 / 3) = .5; population: sqrt(.75 / 4).
  ("sample", [1.5, -0.5, -0.5, -0.5]), ("population", [3**0.5, -1 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5]),
  ("none", [0.75, -0.25, -0.25, -0.25]),
])  # fmt: skip
def test_group_relative_by_hand(std, want):
  np.testing.assert_allclose(advantages.group_relative(RIGHT, ONE, std=std, eps=0.0), want, rtol=1e-6)
  with pytest.raises(ValueError, match="'sample', 'population' or 'none'"):
    advantages.group_relative(RIGHT, ONE, std="mad")


def test_members_of_a_group_need_not_be_neighbours_and_std_floor_by_hand():
  # Group 7: 1, 2, 3: mean 2, sample std sqrt(2 / 2) = 1. Group 4 is constant.
  rewards = jnp.array([1.0, 5.0, 2.0, 5.0, 3.0])
  got = advantages.group_relative(rewards, jnp.array([7, 4, 7, 4, 7]), eps=0.0)
  np.testing.assert_allclose(got, [-1.0, 0.0, 0.0, 0.0, 1.0], rtol=1e-6)
  # LEAR's example {0.49, 0.51} has population std 0.01: ∓1 without a floor, ∓0.01 / 0.1 with the floor 0.1.
  for floor, eps, want in ((0.0, 0.0, 1.0), (0.1, 0.0, 0.1), (0.1, 0.1, 0.05)):  # eps is added to the floor
    got = advantages.group_relative(jnp.array([0.49, 0.51]), ONE[:2], std="population", std_floor=floor, eps=eps)
    np.testing.assert_allclose(got, [-want, want], rtol=1e-4)


@pytest.mark.parametrize("std", ["sample", "population", "none"])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_constant_groups_and_groups_of_one_are_exact_zeros(std, eps):
  # The mean of seven times 0.7 is not 0.7 in float32. Its residue over a deviation near zero could be anything.
  rewards, ids = jnp.array([0.7] * 7 + [3.0]), jnp.array([0] * 7 + [1])
  np.testing.assert_array_equal(advantages.group_relative(rewards, ids, std=std, eps=eps), np.zeros(8))
  np.testing.assert_array_equal(advantages.leave_one_out(rewards, ids), np.zeros(8))


def test_leave_one_out_by_hand():
  # 1 - mean(0, 0, 0) = 1; 0 - mean(1, 0, 0) = -1/3.
  np.testing.assert_allclose(advantages.leave_one_out(RIGHT, ONE), [1.0, -1 / 3, -1 / 3, -1 / 3], rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(REWARDS, st.permutations(range(6)), st.integers(-3, 3))
def test_shift_scale_and_order(rewards, order, shift):
  ids, order = jnp.array([0, 1, 0, 1, 0, 2]), jnp.array(order)
  r = jnp.array(rewards, jnp.float32)
  got = advantages.group_relative(r, ids, eps=0.0)
  np.testing.assert_allclose(advantages.group_relative(r[order], ids[order], eps=0.0), got[order], atol=1e-5)
  np.testing.assert_allclose(advantages.group_relative(2.0 * r + shift, ids, eps=0.0), got, atol=1e-5)
  np.testing.assert_allclose(advantages.leave_one_out(r + shift, ids), advantages.leave_one_out(r, ids), atol=1e-5)


def test_gae_by_hand():
  # Trained tokens 0, 1, 3; token 2 is retrieved text. gamma .5, lam .2, V = (1, 2, ·, 3), r = (0, 0, ·, 4).
  # t=3: delta = 4 - 3 = 1, A = 1.  t=1: delta = 0 + .5·3 - 2 = -.5, A = -.5 + .1·1 = -.4.
  # t=0: delta = .5·2 - 1 = 0, A = .1·(-.4) = -.04.  Returns A + V: .96, 1.6, ·, 4.
  rewards, values = jnp.array([[[0.0, 0.0, 9.0, 4.0]], [[1.0, 2.0, 9.0, 3.0]]])
  got, returns = advantages.gae(rewards, values, jnp.array([[1, 1, 0, 1]]), gamma=0.5, lam=0.2)
  np.testing.assert_allclose(got, [[-0.04, -0.4, 0.0, 1.0]], rtol=1e-6)
  np.testing.assert_allclose(returns, [[0.96, 1.6, 0.0, 4.0]], rtol=1e-6)


def test_gae_ignores_untrained_tokens():
  rewards, values = jax.random.normal(jax.random.key(0), (2, 1, 8))
  on = np.array([0, 1, 0, 1, 1, 0, 0, 1], bool)
  junk = jnp.where(on, 0.0, jnp.nan)[None]
  full = advantages.gae(rewards + junk, values + junk, on[None], gamma=0.9, lam=0.8)
  dense = advantages.gae(rewards[:, on], values[:, on], np.ones((1, 4), bool), gamma=0.9, lam=0.8)
  for a, b in zip(full, dense):
    np.testing.assert_allclose(a[:, on], b, rtol=1e-6)
    np.testing.assert_array_equal(a[:, ~on], np.zeros((1, 4)))


def test_sizes_and_constant_groups_by_hand():
  # Groups: 3 → (0.5, 0.5), 1 → (0, 1), 9 alone.
  ids, values = jnp.array([3, 1, 3, 9, 1]), jnp.array([0.5, 0, 0.5, 7, 1.0])
  np.testing.assert_array_equal(groups.sizes(ids), [2, 2, 2, 1, 2])
  np.testing.assert_array_equal(groups.constant(values, ids), [True, False, True, True, False])


def test_equal_up_to_rounding_or_within_the_tolerance_is_constant():
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
  assert groups.equal([0.3, 0.3001], tolerance=1e-3) and not groups.equal([0.3, 0.302], tolerance=1e-3)
  # Seven rewards of 0.7 have a standard deviation of 6e-8 in NumPy's float32. A difference of 1e-4 is a spread.
  seven = np.full(7, 0.7, np.float32)
  assert groups.constant(seven, np.zeros(7, np.int32)).all()
  seven[3] += np.float32(1e-4)
  assert not groups.constant(seven, np.zeros(7, np.int32)).any()
  # The tolerance is absolute. However small it is, rounding of a large value is not a spread.
  assert groups.equal([1e6, float(np.nextafter(np.float32(1e6), np.float32(2e6)))], tolerance=1e-9)
