import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.core import guards, kl

GAPS = jnp.array([-120.0, -30.0, -5.0, -2.0, -1e-4, 0.0, 1e-4, 2.0, 5.0, 30.0, 120.0])  # log pi_ref - log pi


def slope(estimator, gaps, **how):
  """The derivative d penalty / d log pi at these gaps."""
  return jax.vmap(jax.grad(lambda x, y: kl.kl_penalty(x, y, estimator, **how)))(-gaps, jnp.zeros_like(gaps))


@pytest.mark.parametrize("estimator, value, slope_there", [
  # x - y = -2: the policy gives the token less probability than the reference does. e^2 - 2 - 1 = 4.389.
  # d/dx: 1; sign; x - y; 1 - e^(y - x) = 1 - e^2. The two straight-through forms have k2's.
  ("k1", -2.0, 1.0), ("abs", 2.0, -1.0), ("k2", 2.0, -2.0), ("k3", np.exp(2.0) - 3.0, 1.0 - np.exp(2.0)),
  ("k1+", -2.0, -2.0), ("k3+", np.exp(2.0) - 3.0, -2.0),
])  # fmt: skip
def test_value_and_slope_by_hand(estimator, value, slope_there):
  np.testing.assert_allclose(kl.kl_penalty(jnp.array([-3.0]), jnp.array([-1.0]), estimator), [value], rtol=1e-6)
  np.testing.assert_allclose(slope(estimator, jnp.array([2.0])), [slope_there], rtol=1e-6)


@pytest.mark.parametrize("estimator", kl.ESTIMATORS)
def test_at_any_gap_values_are_finite_and_gradients_pull_back(estimator):
  values, slopes = kl.kl_penalty(-GAPS, jnp.zeros_like(GAPS), estimator), slope(estimator, GAPS)
  assert jnp.isfinite(values).all() and jnp.isfinite(slopes).all()
  assert estimator in ("k1", "k1+") or (values >= 0).all()
  if estimator not in ("k1", "abs"):  # below the reference the policy is pulled up, above it down: never 0
    np.testing.assert_array_equal(jnp.sign(slopes), jnp.sign(-GAPS))


@pytest.mark.parametrize("gap, tangent, value, slope_there", [
  # At the tangent point 2: value e^2 - 3, slope e^2 - 1. At 3 the tangent gives their sum; e^3 - 4 would be 16.1.
  (3.0, 2.0, np.exp(2.0) - 3.0 + np.exp(2.0) - 1.0, 1.0 - np.exp(2.0)),
  (-3.0, 2.0, 2.0, 1.0 - np.exp(-2.0)),  # e^-2 - 1 + 2, and once -(e^-2 - 1)
  (10.0, 5.0, 879.479, -147.413),  # e^5 - 6 + 5 (e^5 - 1)
  (10.0, None, 22_015.466, -22_025.466),  # as published: e^10 - 11
])  # fmt: skip
def test_k3_continues_along_its_tangent(gap, tangent, value, slope_there):
  got = kl.kl_penalty(jnp.array([-gap]), jnp.array([0.0]), "k3", tangent=tangent)
  np.testing.assert_allclose(got, [value], rtol=1e-5)
  np.testing.assert_allclose(slope("k3", jnp.array([gap]), tangent=tangent), [slope_there], rtol=1e-5)


def test_k3_is_accurate_for_small_gaps():
  # e^g - 1 - g = g^2 / 2 + g^3 / 6 + …; a naive float32 formula gives 0 or noise for these gaps.
  np.testing.assert_allclose(kl.kl_penalty(jnp.array([0.0]), jnp.array([1e-3]), "k3"), [5.0017e-7], rtol=2e-2)


@pytest.mark.parametrize("estimator, is_kl", [("k1", False), ("k2", True), ("k1+", True), ("k3+", True)])
def test_expected_gradient_on_policy(estimator, is_kl):
  # E_pi[(d penalty / d log pi) · grad log pi], computed exactly over a whole distribution: the KL's gradient for k2 and
  # for the straight-through forms, and 0 for k1.
  logits, ref = jnp.array([0.3, -1.0, 0.7, 0.1]), jax.nn.log_softmax(jnp.array([1.0, 0.0, -0.5, 0.2]))

  def expected(logits):
    logp = jax.nn.log_softmax(logits)
    return (jax.lax.stop_gradient(jnp.exp(logp)) * kl.kl_penalty(logp, ref, estimator)).sum()

  true_kl = lambda logits: (jnp.exp(logp := jax.nn.log_softmax(logits)) * (logp - ref)).sum()
  want = jax.grad(true_kl)(logits) if is_kl else jnp.zeros(4)
  np.testing.assert_allclose(jax.grad(expected)(logits), want, atol=1e-6)


def test_the_reference_gets_no_gradient():
  for estimator in kl.ESTIMATORS:
    assert float(jax.grad(lambda y, e=estimator: kl.kl_penalty(jnp.float32(-1.0), y, e))(jnp.float32(-2.0))) == 0.0
  with pytest.raises(ValueError, match="k1, k2, k3"):
    kl.kl_penalty(jnp.zeros(1), jnp.zeros(1), "k4")


def test_adapted_coefficient_by_hand():
  # The measured KL is twice the target: error 1, limited to 0.2. 100 of 1000 sequences: 1 + 0.2 · 0.1 = 1.02.
  adapted = lambda found, **how: kl.adapted_coefficient(0.5, found, target=0.1, **how)
  assert adapted(0.2, horizon=1000, num_sequences=100) == pytest.approx(0.51)
  # On target, the coefficient stays. Below the target, it falls.
  assert adapted(0.1, horizon=1000, num_sequences=100) == pytest.approx(0.5)
  assert adapted(0.09, horizon=100, num_sequences=100) == pytest.approx(0.45)
  # More sequences than the horizon count as the horizon: 1 - 0.2 · 10 < 0 would reward divergence, and 0 would stay 0.
  assert adapted(0.0, horizon=100, num_sequences=1000) == pytest.approx(0.4)


def test_the_corrected_estimate_equals_its_source():
  """DeepSeek-V3.2 eq. 7 as TRL writes it: the ratio, which has a gradient too, times k3."""
  draw = np.random.default_rng(0)
  x, old, ref = (jnp.asarray(draw.normal(-2.0, 0.7, (1, 50)).astype(np.float32)) for _ in range(3))
  published = lambda x: jnp.exp(x - old) * (jnp.exp(ref - x) - (ref - x) - 1.0)
  weigh = lambda x: guards.importance_weights(x, old, jnp.ones(x.shape), cap=float("inf"))
  corrected = lambda x: weigh(x) * kl.kl_penalty(x, ref, "k3+")
  both = lambda f: jax.jit(lambda x: (f(x), jax.grad(lambda x: f(x).sum())(x)))(x)
  np.testing.assert_allclose(both(corrected), both(published), rtol=1e-5, atol=1e-6)
  # Over draws of the old policy, each estimator's weighted gradient is the KL's, which its plain gradient is not.
  logits, reference, before = (jnp.asarray(draw.normal(size=(1, 7)), jnp.float32) for _ in range(3))
  old, ref = jax.nn.log_softmax(before), jax.nn.log_softmax(reference)
  exact = jax.grad(lambda z: (jnp.exp(logp := jax.nn.log_softmax(z)) * (logp - ref)).sum())(logits)

  def expected(z, estimator, weighted):
    logp = jax.nn.log_softmax(z)
    weights = guards.importance_weights(logp, old, jnp.ones(z.shape), cap=float("inf")) if weighted else 1.0
    return (jnp.exp(old) * weights * kl.kl_penalty(logp, ref, estimator)).sum()

  found = jax.jit(jax.grad(expected), static_argnums=(1, 2))
  for estimator in kl.UNBIASED:
    np.testing.assert_allclose(found(logits, estimator, True), exact, atol=1e-5)
    assert jnp.abs(found(logits, estimator, False) - exact).max() > 0.05
