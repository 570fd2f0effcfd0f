import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.core import logprobs

R, T, D, V = 3, 7, 4, 12
MASK = np.array([[0, 1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0]])


@pytest.fixture(scope="module")
def inputs():
  keys = jax.random.split(jax.random.key(0), 3)
  hidden = 2.0 * jax.random.normal(keys[0], (R, T, D))
  return hidden, jax.random.normal(keys[1], (V, D)), jax.random.randint(keys[2], (R, T), 0, V)


def from_logits(logits, tokens):
  return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]


def entropy(logits):
  return jax.scipy.special.entr(jax.nn.softmax(logits)).sum(axis=-1)


def near(got, want, **tolerances):
  jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerances), got, want)


def plain(hidden, weights, targets, mask, temperature):
  """The same, computed from all logits at once."""
  logits = jnp.einsum("rtd,vd->rtv", hidden, weights) / temperature
  on = mask.astype(jnp.float32)
  return from_logits(logits, targets) * on, entropy(logits) * on


def test_entropy_and_rows_without_a_token_by_hand():
  # Softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8.
  weights = jnp.log(jnp.array([[1.0], [2.0], [5.0]]))
  _, found = logprobs.chunked(jnp.ones((1, 1, 1)), weights, jnp.array([[0]]), jnp.ones((1, 1)), chunk=1)
  p = np.array([1, 2, 5]) / 8
  np.testing.assert_allclose(found, [[-(p * np.log(p)).sum()]], rtol=1e-6)
  # Softmax of (log 1, log 2, log 5, log 7) without row 1 is (1, 5, 7) / 13.
  p = np.array([1, 5, 7]) / 13
  whole = logprobs.without(jnp.log(jnp.array([[1.0, 2.0, 5.0, 7.0]])), ((1, 2),))
  np.testing.assert_allclose(from_logits(whole, jnp.array([2])), [np.log(5 / 13)], rtol=1e-6)
  np.testing.assert_allclose(entropy(whole), [-(p * np.log(p)).sum()], rtol=1e-6)


@pytest.mark.parametrize("chunk, temperature, piece", [(1, 1.0, None), (6, 0.7, 4), (100, 1.0, 1), (100, 1.0, 5)])
def test_chunks_give_what_the_whole_gives(inputs, chunk, temperature, piece):
  mask = jnp.asarray(MASK)
  got = jax.jit(lambda *x: logprobs.chunked(*x, chunk=chunk, temperature=temperature, piece=piece))(*inputs, mask)
  np.testing.assert_allclose(got, plain(*inputs, mask, temperature), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("piece", [None, 3])
def test_gradients_are_those_of_the_whole(inputs, piece):
  hidden, weights, targets = inputs
  mask = jnp.asarray(MASK)
  g = jax.random.normal(jax.random.key(5), (2, R, T))

  def pulled(f):
    return jax.jit(jax.grad(lambda h, w: sum((x * c).sum() for x, c in zip(f(h, w), g)), (0, 1)))(hidden, weights)

  got = pulled(lambda h, w: logprobs.chunked(h, w, targets, mask, chunk=6, temperature=0.7, piece=piece))
  near(got, pulled(lambda h, w: plain(h, w, targets, mask, 0.7)), rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(got[0][MASK == 0], 0.0)  # untrained places get no gradient


@pytest.mark.parametrize("piece", [None, 2])  # two pieces of two rows have no token at all
def test_rows_without_a_token_are_as_if_they_were_not_there(inputs, piece):
  hidden, weights, _ = inputs
  mask, kept = jnp.asarray(MASK), np.array([0, 1, 4, 5, 6, 7])  # rows 2, 3 and 8 to 11 have no token
  targets = np.random.default_rng(0).integers(0, len(kept), (R, T))
  g = jax.random.normal(jax.random.key(5), (2, R, T))

  def pulled(w, ids, **more):
    f = lambda h, w: logprobs.chunked(h, w, jnp.asarray(ids), mask, chunk=6, temperature=0.7, **more)
    found, back = jax.jit(lambda h, w: jax.vjp(f, h, w))(hidden, w)
    return found, back(tuple(g))

  found, (of_hidden, of_weights) = pulled(weights, kept[targets], tokenless=((2, 4), (8, 12)), piece=piece)
  near((found, (of_hidden, of_weights[kept])), pulled(weights[kept], targets), rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(np.delete(of_weights, kept, axis=0), 0.0)


def test_masked_states_may_be_anything(inputs):
  hidden, weights, targets = inputs
  broken = jnp.where(MASK[..., None] > 0, hidden, jnp.nan)
  f = jax.jit(jax.value_and_grad(lambda h: logprobs.chunked(h, weights, targets, jnp.asarray(MASK), chunk=6)[0].sum()))
  jax.tree.map(np.testing.assert_array_equal, f(broken), f(hidden))


def test_bfloat16_states_are_summed_in_float32_and_greedy_sampling_is_refused(inputs):
  hidden, weights, targets = inputs
  got, _ = logprobs.chunked(hidden.astype(jnp.bfloat16), weights, targets, jnp.asarray(MASK), chunk=8)
  want, _ = plain(hidden, weights, targets, jnp.asarray(MASK), 1.0)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, want, atol=0.06)
  with pytest.raises(ValueError, match="above 0"):
    logprobs.chunked(*inputs, jnp.asarray(MASK), chunk=8, temperature=0.0)


def test_the_first_piece_may_hold_the_greatest_logit_or_the_last():
  # One token has nearly all of the probability: the entropy is a small number, and no difference of large ones.
  for first in (40.0, 0.0):
    logits = jnp.zeros(8).at[0 if first else 7].set(40.0)
    got = logprobs.chunked(jnp.ones((1, 1, 1)), logits[:, None], jnp.array([[3]]), jnp.ones((1, 1)), chunk=1, piece=2)
    assert abs(got[0][0, 0] + 40.0) < 1e-5
    np.testing.assert_allclose(got[1][0, 0], 7 * 40.0 * np.exp(-40.0), rtol=1e-4)


def test_a_vocabulary_that_no_piece_divides_is_computed_whole():
  weights = jax.random.normal(jax.random.key(0), (13, 2))
  given = weights, jnp.zeros((1, 3), int), jnp.ones((1, 3))
  f = lambda piece: jax.jit(lambda h: logprobs.chunked(h, *given, chunk=3, piece=piece))(jnp.ones((1, 3, 2)))
  np.testing.assert_array_equal(f(5), f(None))


@pytest.mark.parametrize("piece", [None, 1024])
def test_the_full_logits_are_never_materialised(inputs, piece):
  # The largest array in the compiled gradient is far smaller than R · T · V elements.
  rows, length, vocabulary = 4, 64, 4096

  def f(h, w):
    ones = jnp.ones((rows, length), jnp.int32)
    return sum(x.sum() for x in logprobs.chunked(h, w, ones, ones, chunk=16, piece=piece))

  args = jax.ShapeDtypeStruct((rows, length, D), jnp.float32), jax.ShapeDtypeStruct((vocabulary, D), jnp.float32)
  memory = jax.jit(jax.grad(f, (0, 1))).lower(*args).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 4 * rows * length * vocabulary / 3


POLICY = np.array([[[0.3, -1.2, 2.0], [1.5, 0.0, -0.5]]], np.float32)
TEACHER = np.array([[[1.0, 0.4, -0.6], [-0.3, 0.9, 0.2]]], np.float32)
# beta → (mean over both tokens, its gradient in the policy's logits) at temperature 0.8.
# From TRL 1.16's GKDTrainer.generalized_jsd_loss with torch in float64.
GOLDEN = {
  0.0: (1.415774558, [[-0.323145506, -0.173572895, 0.496718401], [0.420857886, -0.303518227, -0.117339659]]),
  0.25: (0.236385419, [[-0.045107161, -0.013463767, 0.058570928], [0.062457258, -0.043678575, -0.018778683]]),
  0.5: (0.309229548, [[-0.052619405, -0.013212772, 0.065832177], [0.074758244, -0.051440606, -0.023317639]]),
  1.0: (1.492460133, [[-0.236679563, -0.047614993, 0.284294555], [0.316976755, -0.213226424, -0.103750331]]),
}


def apart(hidden, unembedding, teacher, beta, mask=None, chunk=1, **more):
  mask = jnp.ones(hidden.shape[:2]) if mask is None else mask
  how = dict(chunk=chunk, temperature=0.8, teacher=teacher, beta=beta) | more
  return logprobs.chunked(hidden, unembedding, jnp.zeros(hidden.shape[:2], jnp.int32), mask, **how)[2]


@pytest.mark.parametrize("beta", GOLDEN)
def test_divergence_and_gradient_are_those_of_trl(beta):
  one = jnp.eye(3)  # the states are the logits
  loss = lambda h: apart(h, one, (jnp.asarray(TEACHER), one), beta).mean()
  value, gradient = jax.jit(jax.value_and_grad(loss))(POLICY)
  near((value, list(gradient[0])), (GOLDEN[beta][0], [np.asarray(row) for row in GOLDEN[beta][1]]), atol=1e-6)


def whole_divergence(hidden, unembedding, teacher, beta):
  """The formula over all logits at once."""
  log = lambda h, w: jax.nn.log_softmax(jnp.einsum("rtd,vd->rtv", h, w) / 0.8)
  p, q = log(hidden, unembedding), log(*teacher)
  kl = lambda a, b: (jnp.exp(a) * (a - b)).sum(-1)
  if beta in (0.0, 1.0):
    return kl(p, q) if beta else kl(q, p)
  m = jnp.log(beta * jnp.exp(q) + (1 - beta) * jnp.exp(p))
  return beta * kl(q, m) + (1 - beta) * kl(p, m)


@pytest.mark.parametrize("piece", [None, 4])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_chunks_of_a_wider_teacher_give_what_the_whole_gives(beta, piece):
  keys = jax.random.split(jax.random.key(0), 4)
  sizes = (R, T, D), (V, D), (R, T, 6), (V, 6)
  hidden, weights, *teacher = (jax.random.normal(key, size) for key, size in zip(keys, sizes))
  mask = jnp.asarray(MASK, jnp.float32)
  g = jax.random.normal(jax.random.key(5), mask.shape) * mask
  chunked = lambda h, w: (apart(h, w, tuple(teacher), beta, mask, chunk=6, piece=piece) * g).sum()
  whole = lambda h, w: (whole_divergence(h, w, teacher, beta) * g).sum()
  got, want = (jax.jit(jax.value_and_grad(f, (0, 1)))(hidden, weights) for f in (chunked, whole))
  near(got, want, atol=3e-6)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_rows_of_a_teacher_without_a_token_are_as_if_they_were_not_there(beta):
  draw = lambda seed, *size: jax.random.normal(jax.random.key(seed), size)
  hidden, weights, states, head = draw(0, 1, 2, 4), draw(1, 6, 4), draw(2, 1, 2, 5), draw(3, 6, 5)
  kept = np.array([0, 1, 4])
  cut = lambda h: apart(h, weights, (states, head), beta, tokenless=((2, 4), (5, 6)), piece=2)
  whole = lambda h: whole_divergence(h, weights[kept], (states, head[kept]), beta)
  got, want = (jax.jit(lambda h, f=f: (f(h), jax.grad(lambda h: f(h).sum())(h)))(hidden) for f in (cut, whole))
  near(got, want, atol=1e-6)
