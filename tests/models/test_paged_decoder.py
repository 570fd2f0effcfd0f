"""A decoder that attends over pages: the same log-probabilities as without pages, and the effect of int8 pages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from paged_kit import INTERPRET

from ragrl_jax.models import cache as cache_lib
from ragrl_jax.models import paged_gpu
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder

PAGE = 16


def into_pages(x):
  """[B, T, KV, h] with T a multiple of PAGE → [B · T / PAGE, KV, PAGE, h]."""
  B, T, KV, h = x.shape
  return x.reshape(B * T // PAGE, PAGE, KV, h).transpose(0, 2, 1, 3)


def over_pages(dtype, layer, q, k, v, carry):
  """The decoder's `attend`, with the keys and values of all tokens in pages."""
  B, T, _, _ = q.shape
  pages, scales = jnp.stack([into_pages(k), into_pages(v)], 1), None
  if dtype == "int8":
    pages, scales = cache_lib.quantize(pages)
  pages = pages.astype(dtype)
  table = jnp.arange(B * T // PAGE, dtype=jnp.int32).reshape(B, -1)
  return paged_gpu.attend(q, pages, table, jnp.zeros(B, jnp.int32), scales=scales, interpret=INTERPRET), carry


@pytest.fixture(scope="module")
def model_and_tokens():
  shape = dict(d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=96, rope_theta=1e4, tied=True)
  config = DecoderConfig.from_shape(61, family="qwen3", **shape)
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
  draw = np.random.default_rng(0)
  # Much larger than usual initial weights, so attention is peaked and logits are uneven.
  leaf = lambda x: jnp.asarray(draw.normal(0, 0.4, x.shape), jnp.float32)
  return nnx.merge(graphdef, jax.tree.map(leaf, abstract)), jnp.asarray(draw.integers(0, 61, (2, 3 * PAGE)), jnp.int32)


@functools.partial(jax.jit, static_argnames="dtype")
def gap(model, tokens, dtype):
  """(mean, largest) difference of the log-probabilities of `tokens` from those of plain attention."""

  def logprobs(hidden):
    logits = jnp.einsum("btd,vd->btv", hidden, model.unembedding())
    return jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)

  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
  paged, *_ = model.run(model.embed(tokens), positions, functools.partial(over_pages, dtype), ())
  found = jnp.abs(logprobs(paged) - logprobs(model.hidden(tokens)))
  return found.mean(), found.max()


def test_pages_change_nothing(model_and_tokens):
  assert gap(*model_and_tokens, dtype="float32")[1] < 1e-5


@pytest.mark.parametrize("dtype, mean, most", [("bfloat16", 0.004, 0.02), ("int8", 0.02, 0.1)])
def test_int8_and_bfloat16_pages_change_little(model_and_tokens, dtype, mean, most):
  found = gap(*model_and_tokens, dtype=dtype)
  print(f"{dtype} keys and values: log-probabilities differ by {found[0]:.4f} in the mean, {found[1]:.4f} at most")
  assert 1e-5 < found[0] < mean and found[1] < most
