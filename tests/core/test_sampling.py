"""Drawing tokens: by hand at the edges, against numpy for the filters, against the softmax for the frequencies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ragrl_jax.core import sampling

B, V = 8, 23
DRAW = jax.jit(sampling.draw)


def row(value, dtype=jnp.float32, n=B):
  return jnp.full((n,), value, dtype)


def draw(logits, uniform, temperature=1.0, top_k=0, top_p=1.0):
  n = logits.shape[0]
  return DRAW(
    jnp.asarray(logits, jnp.float32),
    jnp.asarray(uniform, jnp.float32),
    row(temperature, n=n),
    row(top_k, jnp.int32, n),
    row(top_p, n=n),
  )


def random_logits(seed, n=B, v=V):
  return np.random.default_rng(seed).normal(size=(n, v)).astype(np.float32) * 2


def test_a_draw_by_hand():
  # Running sums of (.1, .2, .3, .4) are .1, .3, .6, 1: the first that exceeds the number.
  logits = np.log(np.tile(np.float32([0.1, 0.2, 0.3, 0.4]), (6, 1)))
  tokens, logprobs = draw(logits, [0.0, 0.05, 0.15, 0.35, 0.65, 0.99999994])
  np.testing.assert_array_equal(tokens, [0, 0, 1, 2, 3, 3])
  np.testing.assert_allclose(logprobs, np.log([0.1, 0.1, 0.2, 0.3, 0.4, 0.4]), rtol=1e-6)


def test_temperature_by_hand():
  # Weights (1, 4) at temperature 1/2 are (1, 16): the edge is at 1/17.
  logits = np.log(np.float32([[1.0, 4.0]] * 2))
  tokens, logprobs = draw(logits, [1 / 17 - 1e-4, 1 / 17 + 1e-4], temperature=0.5)
  np.testing.assert_array_equal(tokens, [0, 1])
  np.testing.assert_allclose(logprobs, np.log([1 / 17, 16 / 17]), rtol=1e-5)


def test_greedy_takes_the_first_of_the_likeliest_and_reports_temperature_one():
  logits = np.float32([[0.0, 2.0, 2.0, 1.0]])
  token, logprob = draw(logits, [0.999], temperature=0.0, top_k=3, top_p=0.1)
  assert int(token[0]) == 1
  np.testing.assert_allclose(logprob, 2 - np.log(1 + 2 * np.exp(2) + np.exp(1)), rtol=1e-6)


def test_tokens_of_no_weight_are_never_drawn_at_either_end():
  # The only possible tokens stand in the middle; V is no square, so the blocks are padded, too.
  logits = np.full((B, V), -np.inf, np.float32)
  logits[:, 9], logits[:, 11] = 0.0, -30.0
  tokens, _ = draw(logits, np.linspace(0, 1, B, endpoint=False).astype(np.float32) + np.float32(0.1249999))
  assert set(np.asarray(tokens)) <= {9, 11}
  tokens, _ = draw(logits, np.full(B, 1 - 2**-24))
  assert set(np.asarray(tokens)) <= {9, 11}


def kept(logits, top_k, top_p):
  """Top-k, then top-p over what it left, one row, in float64, written the plain way."""
  order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
  order = order[:top_k] if top_k else order
  weights = np.exp(logits[order].astype(np.float64) - logits.max())
  share = weights / weights.sum()
  if top_p < 1:
    order = order[: 1 + int((np.cumsum(share) < top_p).sum())]
  return set(order.tolist())


def test_filters_keep_what_numpy_keeps():
  for top_k, top_p in [(0, 1.0), (1, 1.0), (5, 1.0), (V, 1.0), (99, 1.0), (0, 0.5), (0, 1e-9), (7, 0.8), (3, 0.01)]:
    logits = random_logits(top_k)
    logits[0, 3:9] = logits[0].max() + 1  # six of equal weight: the lower ids go first
    mask = np.asarray(sampling.keep(jnp.asarray(logits), row(top_k, jnp.int32), row(top_p)))
    for i in range(B):
      assert set(np.flatnonzero(mask[i])) == kept(logits[i], top_k, top_p)


@pytest.mark.parametrize("top_k, top_p", [(0, 1.0), (4, 1.0), (0, 0.6)])
def test_logprobs_are_the_unfiltered_softmax_at_the_temperature(top_k, top_p):
  logits = random_logits(1)
  tokens, logprobs = draw(logits, np.linspace(0.05, 0.95, B), 0.7, top_k, top_p)
  want = jax.nn.log_softmax(jnp.asarray(logits) / 0.7)[np.arange(B), tokens]
  np.testing.assert_allclose(logprobs, want, atol=1e-6)


def test_a_row_depends_on_that_row_alone():
  # Its neighbours change, filter or not: the same bits.
  logits, uniform = random_logits(2), np.linspace(0.05, 0.95, B).astype(np.float32)
  args = (row(0.9), row(0, jnp.int32), row(1.0))
  alone = DRAW(jnp.asarray(logits), jnp.asarray(uniform), *args)
  for seed in range(3):
    other = random_logits(seed + 10)
    other[3] = logits[3]
    mixed = DRAW(
      jnp.asarray(other),
      jnp.asarray(uniform),
      row(0.9).at[0].set(0.0),
      row(0, jnp.int32).at[1].set(2),
      row(1.0).at[5].set(0.3),
    )
    assert mixed[0][3] == alone[0][3] and mixed[1][3].tobytes() == alone[1][3].tobytes()


@pytest.mark.parametrize(
  "temperature, top_k, top_p", [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.5, 6, 1.0), (1.0, 0, 0.7), (0.8, 10, 0.9)]
)
def test_frequencies_fit_the_softmax(temperature, top_k, top_p):
  n = 20_000
  logits = random_logits(5, 1)[0]
  keys = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (n, 2), dtype=np.uint32))
  numbers = jax.jit(sampling.uniforms)(keys, jnp.arange(n, dtype=jnp.int32) % 100)
  tokens, _ = draw(np.tile(logits, (n, 1)), numbers, temperature, top_k, top_p)
  counts = np.bincount(np.asarray(tokens), minlength=V)
  allowed = sorted(kept(logits / np.float32(temperature), top_k, top_p))
  assert counts.sum() == counts[allowed].sum()
  weights = np.exp(logits[allowed].astype(np.float64) / temperature)
  expected = n * weights / weights.sum()
  rare = expected < 5  # chi-square wants five in every bin: the rest share one
  merge = lambda x: np.append(x[~rare], x[rare].sum()) if rare.any() else x
  assert scipy.stats.chisquare(merge(counts[allowed]), merge(expected)).pvalue > 1e-3


def test_uniforms_differ_by_key_and_by_position_and_are_uniform():
  keys = jnp.asarray(np.random.default_rng(1).integers(0, 2**32, (64, 2), dtype=np.uint32))
  at = functools.partial(jax.jit(sampling.uniforms), keys)
  numbers = np.stack([np.asarray(at(jnp.full(64, t, jnp.int32))) for t in range(32)])
  assert numbers.min() >= 0 and numbers.max() < 1
  assert len(np.unique(numbers)) > 2040  # of 2048; chance alone makes 0.25 pairs of float32 equal
  assert scipy.stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
  np.testing.assert_array_equal(at(jnp.full(64, 7, jnp.int32)), numbers[7])
