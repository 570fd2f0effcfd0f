"""The script of benchmarks/speculation.py, which takes the place of random numbers. The benchmark checks the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import speculation

from ragrl_jax.core import sampling

IDS = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]], np.int32)


def test_turns_are_what_the_policy_writes():
  assert speculation.turns_of(np.array([False, True, True, False, True])) == [(1, 3), (4, 5)]
  assert speculation.turns_of(np.array([False, False, True, True, False])) == [(2, 4)]


def test_a_position_draws_its_token_of_the_script():
  keys, positions = jnp.array([[0, 1], [0, 0]], jnp.uint32), jnp.array([3, 4], jnp.int32)
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 9)), jnp.float32)
  filters = jnp.ones(2), jnp.zeros(2, jnp.int32), jnp.ones(2)
  before = sampling.uniforms, sampling.draw
  with speculation.scripted(IDS):
    numbers = sampling.uniforms(keys, positions)
    tokens, logprobs = jax.jit(sampling.draw)(logits, numbers, *filters)
  assert tokens.tolist() == [8, 5]  # row 1 at 3, row 0 at 4
  # As costly as a draw: its log-probability is that of the token drawn at a half.
  assert np.array_equal(logprobs, jax.jit(sampling.draw)(logits, jnp.full(2, 0.5), *filters)[1])
  assert (sampling.uniforms, sampling.draw) == before
