"""A hybrid in the engine: its memories are those of a whole forward pass, through sharing, forks, swaps and lanes."""

import functools

import jax
import numpy as np
import pytest
import small_engine as kit
from flax import nnx

from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder

# Heads of 32: with a few features only, the norm of a head's output enlarges rounding a hundred times.
CONFIG = DecoderConfig.from_shape(
  264, family="qwen3_5_text", d_model=32, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48,
  rope_theta=1e4, attend_every=2, rotary_dim=4, delta_key_heads=1, delta_value_heads=2, delta_key_dim=32,
  delta_value_dim=32, delta_conv=4,
)  # fmt: skip


@functools.cache
def model():
  return Decoder(CONFIG, rngs=nnx.Rngs(0))


@functools.cache
def engine(**sizes):
  graphdef, params = nnx.split(model())
  made = Engine(graphdef, kit.TOKENIZER, kit.stops(), Sizes(**kit.SIZES | sizes))
  made.load(params, version=1)
  return made


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


@pytest.mark.parametrize("sizes", [dict(), dict(pages=5), dict(prefill=8), dict(speculate=3)])
def test_logprobs_are_those_of_the_forward_pass_shared_swapped_and_alone(sizes):
  forward, asked = jax.jit(model()), kit.requests(3, 4)
  played = kit.rollout(engine(**sizes), play)
  together = played.run(asked, step=0)
  assert played.report.engine.shared_tokens > 0 and played.report.engine.swapped_rows > 0
  for episode in together:
    np.testing.assert_allclose(*kit.scored(episode, forward=forward), atol=1e-5)
  for i in (0, 5, 11):  # alone: no shared prompt, no swaps
    (alone,) = kit.rollout(engine(), play).run([asked[i]], step=0)
    assert kit.drawn(alone)[0] == kit.drawn(together[i])[0] and alone.facts == together[i].facts
    ours, theirs = (np.frombuffer(kit.drawn(e)[1], np.float32) for e in (alone, together[i]))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert kit.held(engine(**sizes)) == 0
  assert [replica.slots.free for replica in engine(**sizes)._replicas] == [engine(**sizes).sizes.slots]


def test_a_memory_returns_from_the_host_bit_for_bit():
  cache = engine()._kv
  saved = [np.random.default_rng(0).normal(size=x.shape).astype(x.dtype) for x in cache.take_memory(0, 3)]
  cache.put_memory(0, 3, saved)
  cache.copy({0: [(3, 5)]}, memory=True)
  for slot in (3, 5):
    for one, other in zip(cache.take_memory(0, slot), saved, strict=True):
      np.testing.assert_array_equal(one, other)
