"""Drawing from logits whose vocabulary is sharded gives the same tokens, and no device sends its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.core import sampling
from ragrl_jax.plan import aot

B = 8
ROW = 4 * 600  # bytes: at most a row of the blocks' sums, or one block


def given(vocabulary):
  """Rows of all kinds: plain, tied, flat, greedy, top-k and top-p."""
  random = np.random.default_rng(0)
  logits = (random.normal(size=(B, vocabulary)) * 3).astype(np.float32)
  logits[1], logits[2] = np.round(logits[1]), 0
  return (
    logits,
    random.random(B, np.float32),
    np.float32([1, 0.8, 1, 0, 0.7, 1, 1, 1]),
    np.int32([0, 0, 0, 0, 20, 0, 40, 0]),
    np.float32([1, 1, 1, 1, 1, 0.9, 0.8, 0.3]),
  )


@pytest.mark.parametrize("vocabulary, tensor", [(151_936, 8), (320, 2)])
def test_tokens_are_the_same_and_no_weights_are_sent(vocabulary, tensor):
  mesh = Mesh(np.asarray(jax.devices()).reshape(-1, tensor), ("data", "tensor"))
  sharded, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "tensor"), ()))
  args = given(vocabulary)
  placed = [jax.device_put(args[0], sharded), *jax.device_put(args[1:], whole)]
  compiled = jax.jit(sampling.draw, out_shardings=whole).lower(*placed).compile()
  moved = aot.collectives(compiled.as_text())
  assert any(one.kind == "all-reduce" for one in moved)  # the devices exchange the maxima of their shares
  # Devices send the blocks' sums and the blocks that hold a drawn token, never a share of the vocabulary.
  assert max(one.bytes for one in moved) <= B * ROW
  assert sum(one.bytes * one.times for one in moved) <= 12 * B * ROW
  tokens, logprobs = compiled(*placed)
  want, of_want = jax.jit(sampling.draw)(*map(jnp.asarray, args))
  np.testing.assert_array_equal(tokens, want)
  np.testing.assert_allclose(logprobs, of_want, atol=2e-6)
