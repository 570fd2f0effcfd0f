import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from ragrl_jax.learner import optimizer
from ragrl_jax.learner.settings import OptimizerSettings

SHAPES = dict(embedding=(6, 4), final_norm=(4,))
SHAPES |= dict(layers=dict(q=(2, 4, 6), q_norm=(2, 4), q_bias=(2, 6), experts_up=(2, 3, 4, 6)))
PARAMS = jax.tree.map(jnp.ones, SHAPES, is_leaf=lambda x: isinstance(x, tuple))
TENTH, ROOT = {7: 0.22, 10: 0.04, 99: 0.04}, {0: 0.1, 3: 0.4, 4: 0.4, 16: 0.2, 36: 0.4 / 3}


@pytest.mark.parametrize("how, rates", [
  # A linear warm-up of 4 steps: 1/4, 2/4, 3/4, 4/4 of the peak; then constant.
  (dict(warmup_steps=4, total_steps=10), {0: 0.1, 1: 0.2, 3: 0.4, 4: 0.4, 9: 0.4}), (dict(warmup_steps=1), {0: 0.4}),
  # Cosine to a tenth over the 6 steps after the warm-up. Half-way, at step 7: (1 + .1) / 2.
  (dict(warmup_steps=4, schedule="cosine", final_share=0.1, total_steps=10), {4: 0.4} | TENTH),
  # Linear to a tenth over the same 6 steps: half-way (1 + .1) / 2 again, a sixth of the way 1 - .9 / 6.
  (dict(warmup_steps=4, schedule="linear", final_share=0.1, total_steps=10), {4: 0.4, 5: 0.34} | TENTH),
  # Inverse square root: 4 steps up, then .4 sqrt(4 / step): a half at step 16, a third at 36, wherever the run ends.
  (dict(warmup_steps=4, schedule="inverse_sqrt", total_steps=20), ROOT),
  (dict(warmup_steps=4, schedule="inverse_sqrt", total_steps=999), ROOT),
  (dict(schedule="inverse_sqrt"), {0: 0.4, 3: 0.2}),  # n = 1
])  # fmt: skip
def test_rates_by_hand(how, rates):
  rate = optimizer.learning_rate(OptimizerSettings(learning_rate=0.4, **how))
  rel = 1e-5 if how.get("schedule") in ("cosine", "linear") else 1e-6
  assert {step: float(rate(step)) for step in rates} == pytest.approx(rates, rel=rel)


def test_which_parameters_decay_and_which_use_muon():
  layers = dict(q=True, q_norm=False, q_bias=False, experts_up=True)
  assert optimizer.decayed(PARAMS) == dict(embedding=True, final_norm=False, layers=layers)
  layers = dict(q="muon", q_norm="adamw", q_bias="adamw", experts_up="muon")
  assert optimizer.kinds(PARAMS) == dict(embedding="adamw", final_norm="adamw", layers=layers)
  # A hybrid's delta layers decay as the others do.
  matrices = dict(qkv=(2, 4, 6), down=(2, 8, 4), conv=(2, 4, 1, 6), qkv_lora_a=(2, 4, 1))
  shapes = matrices | dict(log_decay=(2, 3), mlp_norm=(2, 4))
  decayed = optimizer.decayed(dict(delta={name: jnp.ones(shape) for name, shape in shapes.items()}))
  assert decayed == dict(delta={name: name in matrices for name in shapes})


def test_muon_takes_each_expert_as_a_matrix_of_its_own():
  rows = jax.random.normal(jax.random.key(0), (2, 3, 4, 6))
  made = optimizer.make(OptimizerSettings(kind="muon", learning_rate=1e-2, weight_decay=0.0, clip_norm=0.0))
  step = lambda name, tree: made.update(tree, made.init(tree), tree)[0]["layers"][name]
  experts = step("experts_up", dict(layers=dict(experts_up=rows)))
  for number in range(3):
    alone = step("q", dict(layers=dict(q=rows[:, number])))
    np.testing.assert_allclose(experts[:, number], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_decay_alone_pulls_matrices_only_and_adapters_are_matrices_for_adamw(kind):
  # Without a gradient, an update is -rate · decay · parameter: 1e-2 · 0.5 (with Muon five times the rate) of ones.
  made = optimizer.make(OptimizerSettings(kind=kind, learning_rate=1e-2, weight_decay=0.5))
  updates, _ = made.update(jax.tree.map(jnp.zeros_like, PARAMS), made.init(PARAMS), PARAMS)
  found = [updates["embedding"], *(updates["layers"][name] for name in ("q", "q_norm", "q_bias"))]
  assert [float(x.ravel()[0]) for x in found] == pytest.approx([-5e-3, -5e-3 * (5 if kind == "muon" else 1), 0, 0])
  assert not any(np.ptp(x) for x in found)
  adapters = dict(layers=dict(q_lora_a=jnp.ones((2, 4, 3)), q_lora_b=jnp.ones((2, 3, 6))))  # none of them is Muon's
  updates, _ = made.update(jax.tree.map(jnp.zeros_like, adapters), made.init(adapters), adapters)
  for update in updates["layers"].values():
    np.testing.assert_allclose(update, -5e-3, rtol=1e-6)


def test_the_clip_uses_the_norm_of_all_gradients_but_those_of_a_value_head_with_a_clip_and_a_rate_of_its_own():
  of = lambda rate, clip: OptimizerSettings(learning_rate=rate, clip_norm=clip, weight_decay=0.0, b1=0.0, b2=0.0)
  made, params = optimizer.make(of(0.5, 1.0), head=of(0.25, 2.0)), PARAMS | dict(value_head=jnp.ones(4))
  # Adam divides by |g|, so the test reads the state: the first moment is the clipped gradient.
  grads = jax.tree.map(lambda x: jnp.full_like(x, 3.0), params)
  updates, state = made.update(grads, made.init(params), params)
  found = [float(updates[name].ravel()[0]) for name in ("embedding", "value_head")]
  assert found == pytest.approx([-0.5, -0.25])
  moments = [x for x in jax.tree.leaves(state) if x.ndim]
  size = sum(x.size for x in jax.tree.leaves(PARAMS))
  assert any(np.allclose(m, 1 / size**0.5) for m in moments) and any(np.allclose(m, 2 / 4**0.5) for m in moments)


def test_muon_of_stacked_layers_is_muon_of_each():
  """The update of one layer equals Optax's own Muon for that matrix alone, for wide and tall matrices."""
  draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
  grads = dict(layers=dict(up=draw(0, 3, 4, 10), down=draw(1, 3, 10, 4)))
  params, how = jax.tree.map(jnp.zeros_like, grads), dict(weight_decay=0.0, clip_norm=0.0, muon_scale=2.0)
  made = optimizer.make(OptimizerSettings(kind="muon", learning_rate=0.1, **how))
  updates, state = made.update(grads, made.init(params), params)
  updates, _ = made.update(grads, state, params)
  alone = contrib.muon(0.2)
  for name in ("up", "down"):
    for layer in range(3):
      g, p = grads["layers"][name][layer], params["layers"][name][layer]
      with jax.numpy_dtype_promotion("standard"):
        want, theirs = alone.update(g, alone.init(p), p)
        want, _ = alone.update(g, theirs, p)
      np.testing.assert_allclose(updates["layers"][name][layer], want, rtol=2e-3, atol=2e-4)


def test_adamw_is_optax():
  """Over two steps: the update of the first is the gradient's sign, whatever the moments' decays are."""
  grads, how = jax.tree.map(lambda x: jnp.linspace(-1, 1, x.size).reshape(x.shape), PARAMS), dict(b1=0.8, b2=0.95)
  made = optimizer.make(OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, clip_norm=0.0, **how))
  theirs = optax.adamw(1e-3, weight_decay=0.0, **how)
  two, their_two = made.init(PARAMS), theirs.init(PARAMS)
  for given in (grads, jax.tree.map(lambda g: 3 * g, grads)):
    with jax.numpy_dtype_promotion("standard"):
      want, their_two = theirs.update(given, their_two, PARAMS)
    got, two = made.update(given, two, PARAMS)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)
