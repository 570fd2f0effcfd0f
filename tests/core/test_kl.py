import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ragrl_jax.core import kl

GAPS = jnp.array([-120.0, -30.0, -5.0, -2.0, -1e-4, 0.0, 1e-4, 2.0, 5.0, 30.0, 120.0])  # log pi_ref - log pi


def slope(estimator, gaps, **how):
  """The derivative d penalty / d log pi at these gaps."""
  return jax.vmap(jax.grad(lambda x, y: kl.kl_penalty(x, y, estimator, **how)))(-gaps, jnp.zeros_like(gaps))


@pytest.mark.parametrize(
  "estimator, want",
  [
    # x - y = -2: the policy gives the token less probability than the reference does. e^2 - 2 - 1 = 4.389.
    ("k1", -2.0),
    ("abs", 2.0),
    ("k2", 2.0),
    ("k3", np.exp(2.0) - 3.0),
    ("k1+", -2.0),
    ("k3+", np.exp(2.0) - 3.0),
  ],
)
def test_value_by_hand(estimator, want):
  got = kl.kl_penalty(jnp.array([-3.0]), jnp.array([-1.0]), estimator)
  np.testing.assert_allclose(got, [want], rtol=1e-6)


@pytest.mark.parametrize(
  "estimator, want",
  [
    # d/dx at x - y = -2: 1; sign; x - y; 1 - e^(y - x) = 1 - e^2. The two straight-through forms have k2's.
    ("k1", 1.0),
    ("abs", -1.0),
    ("k2", -2.0),
    ("k3", 1.0 - np.exp(2.0)),
    ("k1+", -2.0),
    ("k3+", -2.0),
  ],
)
def test_slope_by_hand(estimator, want):
  np.testing.assert_allclose(slope(estimator, jnp.array([2.0])), [want], rtol=1e-6)


@pytest.mark.parametrize("estimator", kl.ESTIMATORS)
def test_finite_however_far_apart(estimator):
  assert jnp.isfinite(kl.kl_penalty(-GAPS, jnp.zeros_like(GAPS), estimator)).all()
  assert jnp.isfinite(slope(estimator, GAPS)).all()


@pytest.mark.parametrize("estimator", ["k2", "k3", "k1+", "k3+"])
def test_the_gradient_does_not_vanish_for_large_gaps(estimator):
  # Far below the reference the policy must be pulled up, far above it down: sign(x - y), never 0.
  np.testing.assert_array_equal(jnp.sign(slope(estimator, GAPS)), jnp.sign(-GAPS))


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3+", "abs"])
def test_never_negative(estimator):
  assert (kl.kl_penalty(-GAPS, jnp.zeros_like(GAPS), estimator) >= 0).all()


def test_k3_continues_along_its_tangent():
  # At the tangent point 2: value e^2 - 3, slope e^2 - 1. At 3 the tangent gives their sum; e^3 - 4 would be 16.1.
  got = kl.kl_penalty(jnp.array([-3.0]), jnp.array([0.0]), "k3", tangent=2.0)
  np.testing.assert_allclose(got, [np.exp(2.0) - 3.0 + np.exp(2.0) - 1.0], rtol=1e-6)
  np.testing.assert_allclose(slope("k3", jnp.array([3.0, 50.0]), tangent=2.0), [1.0 - np.exp(2.0)] * 2, rtol=1e-6)
  # Value and slope are continuous at the tangent point, from both sides.
  for at in (2.0, -2.0):
    around = jnp.array([at * (1 - 1e-5), at * (1 + 1e-5)])
    low, high = kl.kl_penalty(-around, jnp.zeros(2), "k3", tangent=2.0)
    np.testing.assert_allclose(low, high, rtol=1e-3)
    np.testing.assert_allclose(*slope("k3", around, tangent=2.0), rtol=1e-3)


def test_k3_as_published_has_no_tangent():
  # e^10 - 11 = 22,015.5, and the slope in log pi 1 - e^10 = -22,025.5; with the tangent at 5, e^5 - 6 + 5 (e^5 - 1) =
  # 879.5 and -147.4.
  for tangent, value, slope_there in ((None, 22_015.466, -22_025.466), (5.0, 879.479, -147.413)):
    got = kl.kl_penalty(jnp.array([-10.0]), jnp.array([0.0]), "k3", tangent=tangent)
    np.testing.assert_allclose(got, [value], rtol=1e-5)
    np.testing.assert_allclose(slope("k3", jnp.array([10.0]), tangent=tangent), [slope_there], rtol=1e-5)
  near = jnp.linspace(-5.0, 5.0, 21)
  want = kl.kl_penalty(-near, jnp.zeros_like(near), "k3")
  np.testing.assert_allclose(kl.kl_penalty(-near, jnp.zeros_like(near), "k3", tangent=None), want, rtol=1e-6)
  assert jnp.isinf(kl.kl_penalty(jnp.array([-90.0]), jnp.array([0.0]), "k3", tangent=None)).all()


def test_k3_is_accurate_for_small_gaps():
  # e^g - 1 - g = g^2 / 2 + g^3 / 6 + …; a naive float32 formula gives 0 or noise for these gaps.
  np.testing.assert_allclose(kl.kl_penalty(jnp.array([0.0]), jnp.array([1e-3]), "k3"), [5.0017e-7], rtol=2e-2)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_gradients_are_the_derivatives(estimator):
  x, y = jnp.array([-1.0, -0.3, -9.0, -2.0]), jnp.array([-0.5, -1.2, -1.0, -12.0])
  check_grads(lambda x: kl.kl_penalty(x, y, estimator), (x,), order=1, modes=["rev"], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("estimator, is_kl", [("k1", False), ("k2", True), ("k1+", True), ("k3+", True)])
def test_expected_gradient_on_policy(estimator, is_kl):
  # E_pi[(d penalty / d log pi) · grad log pi], computed exactly over a whole distribution: the KL's gradient for k2 and
  # for the straight-through forms, and 0 for k1.
  logits, ref = jnp.array([0.3, -1.0, 0.7, 0.1]), jax.nn.log_softmax(jnp.array([1.0, 0.0, -0.5, 0.2]))

  def expected(logits):
    logp = jax.nn.log_softmax(logits)
    return (jax.lax.stop_gradient(jnp.exp(logp)) * kl.kl_penalty(logp, ref, estimator)).sum()

  def true_kl(logits):
    logp = jax.nn.log_softmax(logits)
    return (jnp.exp(logp) * (logp - ref)).sum()

  want = jax.grad(true_kl)(logits) if is_kl else jnp.zeros(4)
  np.testing.assert_allclose(jax.grad(expected)(logits), want, atol=1e-6)


def test_the_reference_gets_no_gradient():
  for estimator in kl.ESTIMATORS:
    assert float(jax.grad(lambda y, e=estimator: kl.kl_penalty(jnp.float32(-1.0), y, e))(jnp.float32(-2.0))) == 0.0


def test_unknown_estimator_is_refused():
  with pytest.raises(ValueError, match="k1, k2, k3"):
    kl.kl_penalty(jnp.zeros(1), jnp.zeros(1), "k4")


def test_adapted_coefficient_by_hand():
  # The measured KL is twice the target: error 1, limited to 0.2. 100 of 1000 sequences: 1 + 0.2 · 0.1 = 1.02.
  assert kl.adapted_coefficient(0.5, 0.2, target=0.1, horizon=1000, num_sequences=100) == pytest.approx(0.51)
  # On target, the coefficient stays. Below the target, it falls.
  assert kl.adapted_coefficient(0.5, 0.1, target=0.1, horizon=1000, num_sequences=100) == pytest.approx(0.5)
  assert kl.adapted_coefficient(0.5, 0.09, target=0.1, horizon=100, num_sequences=100) == pytest.approx(0.45)
  # More sequences than the horizon count as the horizon: 1 - 0.2 · 10 < 0 would reward divergence, and 0 would stay 0.
  assert kl.adapted_coefficient(0.5, 0.0, target=0.1, horizon=100, num_sequences=1000) == pytest.approx(0.4)
