import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.core import sampling
from ragrl_jax.plan import aot

B, V = 8, 23
DRAW, KEEP = jax.jit(sampling.draw), jax.jit(sampling.keep)
row = lambda value, dtype=jnp.float32, n=B: jnp.full((n,), value, dtype)


def draw(logits, uniform, temperature=1.0, top_k=0, top_p=1.0):
  n = logits.shape[0]
  how = row(temperature, n=n), row(top_k, jnp.int32, n), row(top_p, n=n)
  return DRAW(jnp.asarray(logits, jnp.float32), jnp.asarray(uniform, jnp.float32), *how)


def random_logits(seed, n=B, v=V):
  return np.random.default_rng(seed).normal(size=(n, v)).astype(np.float32) * 2


def test_a_draw_and_temperature_by_hand_and_greedy_takes_the_first_of_the_likeliest():
  # Running sums of (.1, .2, .3, .4) are .1, .3, .6, 1. The first sum that exceeds the number gives the token.
  logits = np.log(np.tile(np.float32([0.1, 0.2, 0.3, 0.4]), (6, 1)))
  tokens, logprobs = draw(logits, [0.0, 0.05, 0.15, 0.35, 0.65, 0.99999994])
  np.testing.assert_array_equal(tokens, [0, 0, 1, 2, 3, 3])
  np.testing.assert_allclose(logprobs, np.log([0.1, 0.1, 0.2, 0.3, 0.4, 0.4]), rtol=1e-6)
  # Weights (1, 4) at temperature 1/2 become (1, 16), so the boundary is at 1/17.
  logits = np.log(np.float32([[1.0, 4.0]] * 2))
  tokens, logprobs = draw(logits, [1 / 17 - 1e-4, 1 / 17 + 1e-4], temperature=0.5)
  np.testing.assert_array_equal(tokens, [0, 1])
  np.testing.assert_allclose(logprobs, np.log([1 / 17, 16 / 17]), rtol=1e-5)
  token, logprob = draw(np.float32([[0.0, 2.0, 2.0, 1.0]]), [0.999], temperature=0.0, top_k=3, top_p=0.1)
  assert int(token[0]) == 1  # the log-probability is that of temperature 1
  np.testing.assert_allclose(logprob, 2 - np.log(1 + 2 * np.exp(2) + np.exp(1)), rtol=1e-6)


def test_tokens_of_zero_weight_are_never_drawn():
  # The only possible tokens are in the middle. V is not a square, so the blocks have padding.
  logits = np.full((B, V), -np.inf, np.float32)
  logits[:, 9], logits[:, 11] = 0.0, -30.0
  even = np.linspace(0, 1, B, endpoint=False).astype(np.float32) + np.float32(0.1249999)
  for numbers in (even, np.full(B, 1 - 2**-24)):
    assert set(np.asarray(draw(logits, numbers)[0])) <= {9, 11}


def test_a_running_sum_that_rounding_lets_rise_gives_no_place_of_zero_weight():
  rng, rows = np.random.default_rng(0), 2048
  weights = np.zeros((rows, 396), np.float32)
  for row in weights:
    row[rng.choice(396, 50, replace=False)] = rng.random(50)
  edges = np.asarray(jax.jit(functools.partial(jnp.cumsum, axis=1))(weights))
  rises = (np.diff(edges) > 0) & (weights[:, 1:] == 0)
  assert rises.any()
  at = np.where(rises.any(axis=1), rises.argmax(axis=1), 0)
  target = edges[np.arange(rows), at]  # below the place that rises without a weight
  for numbers in (target, edges[:, -1], np.nextafter(edges[:, -1], np.float32(1e9))):
    place = np.asarray(jax.jit(sampling._first)(weights, edges, numbers))
    assert (weights[np.arange(rows), place] > 0).all()


def kept(logits, top_k, top_p):
  """Top-k, then top-p over the rest, for one row in float64, written directly from the definition."""
  order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
  order = order[:top_k] if top_k else order
  weights = np.exp(logits[order].astype(np.float64) - logits.max())
  share = weights / weights.sum()
  if top_p < 1:
    order = order[: 1 + int((np.cumsum(share) < top_p).sum())]
  return set(order.tolist())


def middle(logits, top_k, rank):
  """A top_p in the middle of the mass of the token at this rank, so that rounding does not change what is kept."""
  weights = np.sort(np.exp(logits.astype(np.float64) - logits.max()))[::-1][: top_k or None]
  return float((np.cumsum(weights)[rank] - weights[rank] / 2) / weights.sum())


@pytest.mark.parametrize("vocabulary", [997, 1600])  # a prime number has one share, 1,600 has 16
def test_filters_keep_what_float64_keeps_for_all_kinds_of_logits(vocabulary):
  draw_ = np.random.default_rng(3)
  noise = draw_.normal(size=vocabulary).astype(np.float32)
  kinds = dict(
    random=noise * 2, negative=noise - 50, tied=np.round(noise * 2), flat=np.zeros(vocabulary, np.float32),
    zeros=np.where(np.round(noise) == 0, np.float32(-0.0) * (noise > 0), noise),  # -0.0 and 0.0 are equal
    peaked=np.where(np.arange(vocabulary) == 700, np.float32(10), noise),
    cut=np.where(noise > 0, noise, -np.inf).astype(np.float32),
  )  # fmt: skip
  # (top_k, rank of the last token that top_p keeps; None: top_p 1)
  ways = [(0, None), (1, 0), (5, None), (40, None), (2000, None), (0, 0), (0, 3), (0, 60), (40, 0), (40, 9), (400, 250)]
  rows, names = [], []
  for name, logits in kinds.items():
    for top_k, rank in ways:
      top_p = 1.0 if rank is None else middle(logits, top_k, rank)
      rows.append((logits, top_k, top_p))
      names.append(f"{name}, top_k {top_k}, rank {rank}")
  logits, top_k, top_p = (np.asarray(x) for x in zip(*rows))
  mask = np.asarray(KEEP(logits, top_k.astype(np.int32), top_p.astype(np.float32)))
  for name, got, one in zip(names, mask, rows):
    assert set(np.flatnonzero(got)) == kept(one[0], int(one[1]), one[2]), name


def test_the_smallest_top_p_keeps_the_likeliest_and_the_largest_nearly_all():
  logits = random_logits(4)
  mask = np.asarray(KEEP(logits, row(0, jnp.int32), jnp.float32([1e-30, 1e-9, 0.999999] + [1.0] * 5)))
  assert [np.flatnonzero(kept).tolist() for kept in mask[:2]] == [[np.argmax(row)] for row in logits[:2]]
  assert mask[2].sum() >= V - 1 and mask[3:].all()


def test_every_token_has_one_place_and_no_block_crosses_a_share():
  for vocabulary in (1, 7, 16, 259, 506, 50_257, 151_936):
    shares, share, blocks, size = sampling._sizes(vocabulary)
    assert shares == np.gcd(vocabulary, 16) and shares * share == vocabulary
    assert share <= blocks * size < share + blocks and blocks * shares + size < 4 * vocabulary**0.5 + 32
    ids = np.asarray(sampling._blocked(jnp.arange(vocabulary, dtype=jnp.int32)[None], -1)).ravel()
    places = np.flatnonzero(ids >= 0).astype(np.int32)
    np.testing.assert_array_equal(ids[places], np.arange(vocabulary))
    np.testing.assert_array_equal(sampling._id(jnp.asarray(places), vocabulary), np.arange(vocabulary))


@pytest.mark.parametrize("vocabulary", [259, 320])
def test_every_token_of_a_byte_vocabulary_is_drawn_at_its_number(vocabulary):
  # With equal weights, numbers from i / V to (i + 1) / V draw token i.
  middles = (np.arange(vocabulary) + 0.5) / vocabulary
  tokens, logprobs = draw(np.zeros((vocabulary, vocabulary), np.float32), middles)
  np.testing.assert_array_equal(tokens, np.arange(vocabulary))
  np.testing.assert_allclose(logprobs, -np.log(vocabulary), rtol=1e-6)


@pytest.mark.parametrize("top_k, top_p", [(0, 1.0), (4, 1.0), (0, 0.6)])
def test_logprobs_are_the_unfiltered_softmax_at_the_temperature(top_k, top_p):
  logits = random_logits(1)
  tokens, logprobs = draw(logits, np.linspace(0.05, 0.95, B), 0.7, top_k, top_p)
  want = jax.nn.log_softmax(jnp.asarray(logits) / 0.7)[np.arange(B), tokens]
  np.testing.assert_allclose(logprobs, want, atol=1e-6)


def test_a_row_depends_on_that_row_alone():
  # The neighbours change, and some use filters. This row stays the same to the bit.
  logits, uniform = random_logits(2), np.linspace(0.05, 0.95, B).astype(np.float32)
  args = (row(0.9), row(0, jnp.int32), row(1.0))
  alone = DRAW(jnp.asarray(logits), jnp.asarray(uniform), *args)
  for seed in range(3):
    other = random_logits(seed + 10)
    other[3] = logits[3]
    filtering = row(0.9).at[0].set(0.0), row(0, jnp.int32).at[1].set(2), row(1.0).at[5].set(0.3)
    mixed = DRAW(jnp.asarray(other), jnp.asarray(uniform), *filtering)
    assert mixed[0][3] == alone[0][3] and mixed[1][3].tobytes() == alone[1][3].tobytes()


@pytest.mark.slow  # programs of many sizes
def test_a_number_at_an_edge_draws_the_same_token_in_every_row():
  # A vectorised loop leaves the last rows over, and another loop computes them. A row gets the same token from both.
  n, v = 64, 506
  logits = random_logits(8, n, v)
  logits[:, 4] = 13  # the others have little mass: an error in the last digit of a sum near 1 moves the edges
  weights = np.exp(logits.astype(np.float64))
  edges = (np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)).astype(np.float32)
  # As users compile it: the tests' own option vectorises nothing.
  run = jax.jit(sampling.draw, compiler_options=dict(xla_backend_optimization_level=3))
  top_k = row(0, jnp.int32, n)
  for edge in range(5, v, 2):
    uniform = edges[:, edge]
    want = run(logits, uniform, row(1.0, n=n), top_k, row(1.0, n=n))
    turned = run(logits[::-1], uniform[::-1], row(1.0, n=n), top_k, row(1.0, n=n))
    beside_a_filter = run(logits, uniform, row(1.0, n=n), top_k.at[0].set(2), row(1.0, n=n))
    for x, y, z in zip(want, turned, beside_a_filter):
      np.testing.assert_array_equal(y[::-1], x)
      np.testing.assert_array_equal(z[1:], x[1:])


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
  rare = expected < 5  # chi-square needs five per bin, so rare tokens share one
  merge = lambda x: np.append(x[~rare], x[rare].sum()) if rare.any() else x
  assert scipy.stats.chisquare(merge(counts[allowed]), merge(expected)).pvalue > 1e-3


def test_uniforms_differ_by_key_and_by_position_and_are_uniform():
  keys = jnp.asarray(np.random.default_rng(1).integers(0, 2**32, (64, 2), dtype=np.uint32))
  at = functools.partial(jax.jit(sampling.uniforms), keys)
  numbers = np.stack([np.asarray(at(jnp.full(64, t, jnp.int32))) for t in range(32)])
  assert numbers.min() >= 0 and numbers.max() < 1
  assert len(np.unique(numbers)) > 2040  # of 2048; 0.25 equal pairs of float32 are expected by chance
  assert scipy.stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
  np.testing.assert_array_equal(at(jnp.full(64, 7, jnp.int32)), numbers[7])


ROW = 4 * 600  # bytes: at most a row of the blocks' sums, or one block


def given(vocabulary):
  """Rows of all kinds: plain, tied, flat, greedy, top-k and top-p."""
  random = np.random.default_rng(0)
  logits = (random.normal(size=(B, vocabulary)) * 3).astype(np.float32)
  logits[1], logits[2] = np.round(logits[1]), 0
  temperature, top_k = np.float32([1, 0.8, 1, 0, 0.7, 1, 1, 1]), np.int32([0, 0, 0, 0, 20, 0, 40, 0])
  return logits, random.random(B, np.float32), temperature, top_k, np.float32([1, 1, 1, 1, 1, 0.9, 0.8, 0.3])


# the larger one has much to compile
@pytest.mark.parametrize("vocabulary, tensor", [pytest.param(151_936, 8, marks=pytest.mark.long), (320, 2)])
def test_tokens_are_the_same_and_no_weights_are_sent(vocabulary, tensor):
  mesh = Mesh(np.asarray(jax.devices()).reshape(-1, tensor), ("data", "tensor"))
  sharded, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "tensor"), ()))
  args = given(vocabulary)
  placed = [jax.device_put(args[0], sharded), *jax.device_put(args[1:], whole)]
  compiled = jax.jit(sampling.draw, out_shardings=whole).lower(*placed).compile()
  moved = aot.collectives(compiled.as_text())
  assert any(one.kind == "all-reduce" for one in moved)  # the devices exchange the maxima of their shares
  # Devices send the blocks' sums and the blocks that hold a drawn or the likeliest token (both at once), never a share
  # of the vocabulary.
  assert max(one.bytes for one in moved) <= 2 * B * ROW and sum(one.bytes * one.times for one in moved) <= 12 * B * ROW
  tokens, logprobs = compiled(*placed)
  want, of_want = jax.jit(sampling.draw)(*map(jnp.asarray, args))
  np.testing.assert_array_equal(tokens, want)
  np.testing.assert_allclose(logprobs, of_want, atol=2e-6)
