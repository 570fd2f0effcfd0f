import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.core import logprobs

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
  targets = jnp.zeros(hidden.shape[:2], jnp.int32)
  return logprobs.chunked(
    hidden, unembedding, targets, mask, chunk=chunk, temperature=0.8, teacher=teacher, beta=beta, **more
  )[2]


@pytest.mark.parametrize("beta", GOLDEN)
def test_divergence_and_gradient_are_those_of_trl(beta):
  one = jnp.eye(3)  # the states are the logits
  value, gradient = jax.value_and_grad(lambda h: apart(h, one, (jnp.asarray(TEACHER), one), beta).mean())(POLICY)
  want, of_logits = GOLDEN[beta]
  np.testing.assert_allclose(value, want, atol=1e-6)
  np.testing.assert_allclose(gradient[0], of_logits, atol=1e-6)


def plain(hidden, unembedding, teacher, beta):
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
  sizes = (3, 7, 4), (12, 4), (3, 7, 6), (12, 6)
  hidden, weights, *teacher = (jax.random.normal(key, size) for key, size in zip(keys, sizes))
  mask = jnp.asarray([[0, 1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0]], jnp.float32)
  g = jax.random.normal(jax.random.key(5), mask.shape) * mask
  chunked = lambda h, w: (apart(h, w, tuple(teacher), beta, mask, chunk=6, piece=piece) * g).sum()
  whole = lambda h, w: (plain(h, w, teacher, beta) * g).sum()
  got, want = (jax.jit(jax.value_and_grad(f, (0, 1)))(hidden, weights) for f in (chunked, whole))
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=3e-6)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_rows_without_a_token_are_as_if_they_were_not_there(beta):
  draw = lambda seed, *size: jax.random.normal(jax.random.key(seed), size)
  hidden, weights, states, head = draw(0, 1, 2, 4), draw(1, 6, 4), draw(2, 1, 2, 5), draw(3, 6, 5)
  kept = np.array([0, 1, 4])
  got, back = jax.vjp(lambda h: apart(h, weights, (states, head), beta, tokenless=((2, 4), (5, 6)), piece=2), hidden)
  want, back_want = jax.vjp(lambda h: plain(h, weights[kept], (states, head[kept]), beta), hidden)
  np.testing.assert_allclose(got, want, atol=1e-6)
  np.testing.assert_allclose(back(jnp.ones((1, 2)))[0], back_want(jnp.ones((1, 2)))[0], atol=1e-6)
