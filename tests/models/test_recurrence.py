"""Linear recurrences from chunk to chunk: by groups as one after the other, and their gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.models import recurrence


def drawn(count, n, dk=3, dv=2, heads=(2,)):
  draw = np.random.default_rng(count + n)
  of = lambda *shape: jnp.asarray(draw.normal(0, 0.4, (count, *heads, *shape)), jnp.float32)
  keep = jnp.asarray(draw.uniform(0, 1, (count, *heads, n, n)), jnp.float32)
  return recurrence.Step(keep, of(n * dk, n * dk), of(n * dk, dv)), of(n * dk, dv)[0]


def by_hand(chunks, state):
  before = []
  for keep, erases, written in zip(*map(np.float64, chunks)):
    before.append(state)
    whole = np.kron(keep, np.eye(len(erases) // len(keep)))
    state = (whole - erases) @ state + written
  return np.stack(before), state


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 5, 9, 12])
def test_both_ways_are_the_recurrence(count, n):
  chunks, state = drawn(count, n, heads=())
  want = by_hand(chunks, np.float64(state))
  for found in jax.jit(lambda *given: (recurrence.by_scan(*given), recurrence.by_groups(*given)))(chunks, state):
    for one, other in zip(found, want):
      np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())


@pytest.mark.slow  # three backward passes to compile
@pytest.mark.parametrize("n", [1, 2])
def test_the_gradient_by_hand_is_that_of_both_ways(n):
  chunks, state = drawn(7, n)
  weight = [jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32) for x in (chunks.written, state)]
  loss = lambda way: lambda *given: sum((x * w).sum() for x, w in zip(way(*given), weight))
  want, *others = (
    jax.jit(jax.grad(loss(way), argnums=(0, 1)))(chunks, state)
    for way in (recurrence.by_scan, recurrence.by_groups, recurrence.states)
  )
  for other in others:
    for one, same in zip(*map(jax.tree.leaves, (want, other)), strict=True):
      np.testing.assert_allclose(same, one, atol=2e-5 * float(jnp.abs(one).max()))
