"""The engine in other dtypes and on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.models import lora
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import rules
from ragrl_jax.testing import small_engine as kit
from ragrl_jax.testing.small_engine import requests, rollout


@pytest.mark.slow  # compiles an engine of its own
def test_the_matmuls_dtype_is_the_decoders_and_norms_stay_float32():
  model = Decoder(kit.CONFIG, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
  graphdef, params = nnx.split(model)
  narrow = Engine(graphdef, kit.TOKENIZER, kit.stops(), Sizes(**kit.SIZES))
  narrow.load(params, version=1)
  dtypes = {
    rules.names_of(path)[-1]: leaf.dtype for path, leaf in jax.tree_util.tree_leaves_with_path(narrow._kv.weights)
  }
  assert {dtypes[name] for name in ("embedding", "q", "o", "gate", "down")} == {jnp.dtype(jnp.bfloat16)}
  assert {dtypes[name] for name in ("final_norm", "attention_norm", "q_norm")} == {jnp.dtype(jnp.float32)}
  assert narrow._kv.cache[0].dtype == jnp.bfloat16
  forward = jax.jit(model)
  for episode in rollout(narrow).run(requests(2, 2), step=0):
    ids = [i for s in episode.segments for i in s.ids]
    table = jax.nn.log_softmax(forward(jnp.asarray([ids + [0] * (kit.CONTEXT - len(ids))]))[0])
    first = len(episode.segments[0].ids)
    said = episode.segments[1]
    want = table[np.arange(first - 1, first - 1 + len(said.ids)), np.array(said.ids)]
    # bfloat16 keeps 8 bits: logits of a few units differ by hundredths between two ways of summing.
    np.testing.assert_allclose(said.logprobs, want, atol=0.05)


@pytest.mark.slow  # compiles an engine of its own
def test_adapters_are_loaded_anew_and_their_frozen_base_is_cast_once():
  model = Decoder(kit.CONFIG, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)  # computed in float32
  lora.add(model, rank=4, alpha=16.0, layers="q o|down", seed=0)
  graphdef, adapters, frozen = lora.split(model)
  draw = np.random.default_rng(0)
  trained = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.2, x.shape), x.dtype), adapters)
  made = Engine(graphdef, kit.TOKENIZER, kit.stops(), Sizes(**kit.SIZES), frozen=frozen)
  made.load(trained, version=1)
  assert made._kv.weights.outer["embedding"][...].dtype == jnp.float32
  first, programs = made._kv.weights.layers[1]["q"][...], (made._kv.programs.decode, made._kv.programs.extend)
  compiled = [program._cache_size() for program in programs]
  forward = jax.jit(lambda adapters, tokens: nnx.merge(graphdef, adapters, frozen)(tokens))
  for version, weights in ((1, trained), (2, lora.without(trained))):  # as trained; as the reference policy
    made.load(weights, version=version)
    episodes = rollout(made).run(requests(2, 2), step=0)
    for episode in episodes:
      ids = [i for s in episode.segments for i in s.ids]
      table = jax.nn.log_softmax(forward(weights, jnp.asarray([ids + [0] * (kit.CONTEXT - len(ids))]))[0])
      first_said, said = len(episode.segments[0].ids), episode.segments[1]
      places = np.arange(first_said - 1, first_said - 1 + len(said.ids))
      np.testing.assert_allclose(said.logprobs, table[places, np.array(said.ids)], atol=1e-5)
  assert made._kv.weights.layers[1]["q"][...] is first
  assert [program._cache_size() for program in programs] == compiled
