"""The engine in other dtypes and on several devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from small_engine import requests, rollout

from ragrl_jax import structs
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.learner import forward as learner_forward, packing
from ragrl_jax.models import lora
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules


@pytest.mark.long  # compiles another engine
def test_matmuls_use_the_decoders_dtype_and_norms_stay_float32():
  model = Decoder(kit.CONFIG, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
  narrow = kit.loaded(model)
  leaves = jax.tree_util.tree_leaves_with_path(narrow._kv.weights)
  dtypes = {rules.names_of(path)[-1]: leaf.dtype for path, leaf in leaves}
  assert {dtypes[name] for name in ("embedding", "q", "o", "gate", "down")} == {jnp.dtype(jnp.bfloat16)}
  assert {dtypes[name] for name in ("final_norm", "attention_norm", "q_norm")} == {jnp.dtype(jnp.float32)}
  assert narrow._kv.cache[0].dtype == jnp.bfloat16
  forward = jax.jit(model)
  for episode in rollout(narrow).run(requests(2, 2), step=0):
    # bfloat16 keeps 8 bits, so two ways of summing change logits of a few units by hundredths.
    np.testing.assert_allclose(*kit.scored(episode, forward=forward), atol=0.05)


@pytest.mark.long  # compiles another engine
def test_int8_keys_and_values_keep_a_rows_numbers_its_own():
  slow = kit.Tools(lambda query: 0.01 * (len(query) % 3))
  scarce, plenty = (kit.engine(kv_dtype="int8", page=16, **more) for more in (dict(pages=8), {}))
  assert [x.dtype for x in scarce._kv.cache] == [jnp.uint16] * 2 + [jnp.float32] * 2
  one, two = rollout(plenty), rollout(scarce, tools=slow)
  alone, swapped = one.run(requests(3, 4), step=0), two.run(requests(3, 4)[::-1], step=0)[::-1]
  assert two.report.engine.swapped_rows > 0 and one.report.engine.shared_tokens > 0
  # In another order, with searches that take their time, swapped to the host and back, over shared prompts: bit by bit.
  for a, b in zip(alone, swapped, strict=True):
    assert kit.drawn(a) == kit.drawn(b)
  assert kit.held(plenty) == kit.held(scarce) == 0
  ours, theirs = (np.concatenate(x) for x in zip(*map(kit.scored, alone)))
  gap = np.abs(ours - theirs)
  print(f"int8 keys and values: log-probabilities differ by {gap.mean():.5f} in the mean, {gap.max():.5f} at most")
  assert 1e-6 < gap.mean() < 5e-3 and gap.max() < 0.05


@pytest.mark.long  # compiles another engine
def test_adapters_are_loaded_again_and_their_frozen_base_is_cast_once():
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
  for version, weights in ((1, trained), (2, lora.without(trained))):  # as trained, and as the reference policy
    made.load(weights, version=version)
    for episode in rollout(made).run(requests(2, 2), step=0):
      whole = functools.partial(forward, weights)
      np.testing.assert_allclose(*kit.scored(episode, forward=whole), atol=1e-5)
  assert made._kv.weights.layers[1]["q"][...] is first
  assert [program._cache_size() for program in programs] == compiled


@pytest.mark.long  # compiles another engine, and the learner's forward pass
def test_rows_without_a_token_are_never_drawn_and_have_no_probability():
  # A third of the rows, between and beyond the tokenizer's ids: without the mask a third of these tokens would be such.
  model, temperature = Decoder(kit.CONFIG, rngs=nnx.Rngs(0)), 0.7
  model.tokenless = ((20, 100), (258, 264))
  made, forward = kit.loaded(model, speculate=2), jax.jit(model)
  for how in (dict(temperature=temperature), dict(temperature=0.0), dict(top_k=250), dict(top_k=40, top_p=0.9)):
    for episode in rollout(made, **how).run(requests(2, 4), step=0):
      said = [i for segment in episode.segments if segment.owner == structs.MODEL for i in segment.ids]
      assert said and not any(first <= i < end for i in said for first, end in model.tokenless)
      np.testing.assert_allclose(*kit.scored(episode, how.get("temperature") or 1.0, forward=forward), atol=1e-4)
  (episode, *_) = rollout(made, temperature=temperature).run(requests(1, 1), step=0)
  packed = packing.pack_items(packing.of_episode(episode, (0.0,) * 3), rows=1, lengths=(kit.CONTEXT,))
  scored, entropies = learner_forward.scores(model, packed.blocks[0], temperature=temperature, chunk=16)
  mask = np.asarray(packed.blocks[0].loss_mask).astype(bool)
  np.testing.assert_allclose(np.asarray(scored)[mask], kit.scored(episode, temperature, forward=forward)[0], atol=1e-4)
  assert np.asarray(entropies)[mask].max() < np.log(264 - 86)


SHAPE = dict(d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=48, rope_theta=1e4)
# Windows shorter than the prompts of about 10 tokens, than an extension, and than a page of 16.
FAMILIES = dict(
  mistral=dict(window=20, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
  gemma3_text=dict(window=7, sliding=(True, False), query_scale=20.0),
  qwen3_moe=dict(num_experts=6, experts_per_token=2),
  smollm3=dict(nope=(False, True)),
  ministral3=dict(
    rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, llama_4_scaling_beta=1.0)
  ),
)
OTHERS = "mistral", "qwen3_moe", "smollm3", "ministral3"


@functools.cache
def engine(family, mesh=None, **sizes):
  """(an engine with random weights, its model's forward pass)."""
  config = DecoderConfig.from_shape(264, family=family, **SHAPE | FAMILIES[family])
  model = Decoder(config, rngs=nnx.Rngs(0))
  params = None if mesh is None else rules.place(mesh, nnx.state(model))
  return kit.loaded(model, params=params, mesh=mesh, **dict(page=16) | sizes), jax.jit(model)


def compare(episodes, forward):
  """Checks the recorded log-probabilities against a forward pass over each whole conversation."""
  for episode in episodes:
    np.testing.assert_allclose(*kit.scored(episode, forward=forward), atol=2e-5)
  assert max(len(segment.ids) for episode in episodes for segment in episode.turns) > 7
  assert max(episode.num_tokens for episode in episodes) > 50  # beyond two windows


@pytest.mark.slow  # compiles an engine of its own
@pytest.mark.parametrize("family", ["gemma3_text", *(pytest.param(x, marks=pytest.mark.long) for x in OTHERS)])
def test_recorded_logprobs_equal_a_forward_pass(family):
  made, forward = engine(family)
  played = rollout(made)
  compare(played.run(requests(2, 4), step=0), forward)
  assert played.report.engine.shared_tokens > 0
  kit.check_greedy(made, forward)


@pytest.mark.long  # compiles two engines
def test_an_expert_a_device_gives_the_tokens_of_one_device():
  mesh = mesh_lib.make(jax.devices()[:4], data=2, tensor=2)
  made, forward = engine("qwen3_moe", mesh, replicas=2)
  assert made._kv.weights.layers[0]["experts_gate"][...].addressable_shards[0].data.shape == (3, 32, 48)
  compare(rollout(made).run(requests(2, 4), step=0), forward)
