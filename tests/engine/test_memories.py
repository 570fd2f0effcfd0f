"""A hybrid in the engine: its memories are those of a whole forward pass, through sharing, forks, swaps and lanes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_engine as kit
from flax import nnx

from ragrl_jax.engine.loader import Caster
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules

# Heads of 32: with a few features only, the norm of a head's output enlarges rounding a hundred times.
CONFIG = DecoderConfig.from_shape(
  264, family="qwen3_5_text", d_model=32, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48,
  rope_theta=1e4, attend_every=2, rotary_dim=4, delta_key_heads=2, delta_value_heads=4, delta_key_dim=32,
  delta_value_dim=32, delta_conv=4,
)  # fmt: skip


@functools.cache
def model():
  return Decoder(CONFIG, rngs=nnx.Rngs(0))


@functools.cache
def engine(devices=1, **sizes):
  if devices == 1:
    return kit.loaded(model(), **sizes)
  learners = mesh_lib.make(jax.devices()[:devices], data=1, fsdp=devices)
  mesh, params = mesh_lib.of_engine(learners, tensor=2), rules.place(learners, nnx.state(model()))
  return kit.loaded(model(), params=params, mesh=mesh, replicas=devices // 2, **sizes)


async def play(example, policy, tools):
  """Turns and observations; greedy forks from the newest token and from the middle of a turn."""
  talk, probes = policy.start(kit.TOKENIZER.encode(example.question)), []
  for turn in range(3):
    said = await talk.generate(stop=kit.STOPS)
    if turn == 2:
      break
    for back in (0, len(said.ids) // 2):
      probe = talk.fork(at=len(talk.tokens) - back)
      probes.append((await probe.generate(greedy=True, max_new_tokens=4)).ids)
    found = await tools.search(said.text)
    if not talk.observe(f"[{found[0].text}, {'x' * (len(said.ids) % 5)}]", query=said.text, found=found):
      break
  return talk.end(probes=tuple(probes))


LONG = [pytest.param(sizes, marks=pytest.mark.long) for sizes in (dict(), dict(prefill=8), dict(speculate=3))]


@pytest.mark.parametrize("sizes", [dict(pages=8), *LONG])
def test_logprobs_are_those_of_the_forward_pass_shared_swapped_and_alone(sizes):
  forward, asked = jax.jit(model()), kit.requests(2, 3)
  played = kit.rollout(engine(**sizes), play)
  together = played.run(asked, step=0)
  assert played.report.engine.shared_tokens > 0 and played.report.engine.swapped_rows > 0
  for episode in together:
    np.testing.assert_allclose(*kit.scored(episode, forward=forward), atol=1e-5)
  lone = kit.rollout(engine(pages=8), play)  # of other sizes than most
  for i in (0, 5):  # alone: no shared prompt, no swaps
    (alone,) = lone.run([asked[i]], step=0)
    kit.check_close(alone, together[i])
    assert lone.report.engine.shared_tokens == lone.report.engine.swapped_rows == 0
  assert kit.held(engine(**sizes)) == 0
  assert [replica.slots.free for replica in engine(**sizes)._replicas] == [engine(**sizes).sizes.slots]


@pytest.mark.long  # compiles engines for several devices
@pytest.mark.parametrize("devices, speculate", [(2, 0), (4, 3)])
def test_devices_that_share_the_heads_draw_the_tokens_of_one(devices, speculate):
  asked, made = kit.requests(3, 4), engine(devices, speculate=speculate)
  together, alone = (kit.rollout(one, play).run(asked, step=0) for one in (made, engine()))
  for one, other in zip(together, alone, strict=True):
    kit.check_close(one, other)
  mixer = made._kv.weights.layers[0]["qkv"][...]
  assert mixer.sharding.shard_shape(mixer.shape) == (32, mixer.shape[1] // 2)
  channels, state = made._kv.cache[-4], made._kv.cache[-1]  # of the first delta layer and of the second
  shard = lambda x: x.sharding.shard_shape(x.shape)
  assert shard(channels)[2] == channels.shape[2] // 2 and shard(state)[2] == state.shape[2] // 2


def test_what_the_decoder_computes_in_float32_is_not_rounded_for_the_engine():
  weights = Caster(jnp.dtype("bfloat16"), CONFIG).abstract(nnx.state(model()))
  leaves = jax.tree_util.tree_leaves_with_path(weights)
  wide = {rules.names_of(path)[-1] for path, leaf in leaves if leaf.dtype == jnp.float32}
  names = "attention_norm mlp_norm final_norm q_norm k_norm delta_norm conv log_decay step_bias"
  assert wide == set(names.split())


def test_a_memory_returns_from_the_host_bit_for_bit():
  cache = engine(pages=8)._kv
  saved = [np.random.default_rng(0).normal(size=x.shape).astype(x.dtype) for x in cache.take_memory(0, 3)]
  cache.put_memory(0, 3, saved)
  cache.copy({0: [(3, 5)]}, memory=True)
  for slot in (3, 5):
    for one, other in zip(cache.take_memory(0, slot), saved, strict=True):
      np.testing.assert_array_equal(one, other)
