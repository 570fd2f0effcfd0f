"""The output head on a mesh: each device holds a part of the vocabulary, and the results stay the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from ragrl_jax.core import logprobs
from ragrl_jax.core.spread import ONE_DEVICE
from ragrl_jax.parallel import mesh as mesh_lib, rules

R, T, D = 8, 6, 16


def arrays(vocab):
  draw = np.random.default_rng(0)
  normal = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
  mask = (draw.random((R, T)) < 0.6) & (np.arange(R) > 0)[:, None]  # one row, and so one device, has nothing to do
  targets = jnp.asarray(draw.integers(0, vocab, (R, T)), jnp.int32)
  return normal(R, T, D), 0.5 * normal(vocab, D), targets, jnp.asarray(mask), normal(2, R, T)


@functools.cache
def run(mesh, vocab, tokenless=(), beta=None, piece=None):
  hidden, weights, targets, mask, weigh = arrays(vocab)
  spread = rules.head(mesh, hidden, weights)
  if mesh is not None:
    at = NamedSharding(mesh, P(spread.rows, spread.length))
    hidden, targets, mask = (jax.device_put(x, at) for x in (hidden, targets, mask))
    weights = jax.device_put(weights, NamedSharding(mesh, P(spread.vocab, spread.embed)))
  how = dict(spread=spread, tokenless=tokenless, piece=piece)
  if beta is not None:  # a teacher twice as wide as the policy
    how |= dict(beta=beta, teacher=tuple(jnp.flip(jnp.tile(x, 2), 0) for x in (hidden, weights)))

  @jax.jit
  def f(hidden, weights):
    call = lambda h, w: logprobs.chunked(h, w, targets, mask, chunk=3, temperature=0.7, **how)
    found, back = jax.vjp(call, hidden, weights)
    return found, back((*weigh, weigh[0])[: len(found)])

  return jax.device_get(f(hidden, weights))


def check_equal(one, other, rtol=1e-7):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, 1e-5), one, other)


@pytest.mark.parametrize("piece", [None, 2])  # rows of the vocabulary at a time; one device takes all
@pytest.mark.parametrize("vocab, sizes", [
  (32, dict(data=2, fsdp=2, tensor=2)),
  (34, dict(fsdp=4, tensor=2)),  # 17 rows per device, in four pieces
  (35, dict(fsdp=2, tensor=2, sequence=2)),  # 35: no mesh divides this vocabulary
])  # fmt: skip
def test_a_mesh_computes_what_one_device_computes(vocab, sizes, piece):
  check_equal(run(None, vocab), run(mesh_lib.make(jax.devices(), **{"data": 1, **sizes}), vocab, piece=piece))


def test_a_mesh_computes_the_divergence_from_a_teacher():
  mesh = mesh_lib.make(jax.devices(), data=1, fsdp=2, tensor=2, sequence=2)
  how = dict(vocab=34, tokenless=((30, 34),), beta=0.3)
  check_equal(run(None, **how), run(mesh, piece=2, **how), rtol=1e-5)


def test_rows_without_a_token_on_a_mesh():
  # Ranges across the devices' pieces: 17 rows of the vocabulary for each half, in four pieces.
  mesh, tokenless = mesh_lib.make(jax.devices(), data=1, fsdp=4, tensor=2), ((0, 3), (15, 19), (30, 34))
  one, _ = run(None, 34, tokenless)
  check_equal(run(None, 34, tokenless), run(mesh, 34, tokenless))
  *_, targets, mask, _ = arrays(34)
  missing = np.isin(targets, [*range(3), *range(15, 19), *range(30, 34)])
  assert (one[0][mask & ~missing] > run(None, 34)[0][0][mask & ~missing]).all()  # the others share the mass


def test_the_sharding_of_the_head():
  hidden, weights = arrays(32)[:2]
  mesh = mesh_lib.make(jax.devices(), data=2, fsdp=2, tensor=2)
  found = rules.head(mesh, hidden, weights)
  assert (found.rows, found.vocab, found.embed) == (("data", "fsdp"), ("tensor",), ("fsdp",))
  assert found.gathered == ("fsdp",) and found.pieces == ("tensor", "fsdp")
  assert rules.head(mesh, hidden[:3], weights).rows == ()  # four devices do not divide three rows, so they stay whole
  for alone in (None, mesh_lib.make(jax.devices()[:1])):
    assert rules.head(alone, hidden, weights) == ONE_DEVICE
