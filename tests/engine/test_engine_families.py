"""The engine with sliding windows and with experts: what it records is what a forward pass computes."""

import jax
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from small_engine import requests, rollout

from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.parallel import rules

SHAPE = dict(d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=48, rope_theta=1e4)
# Windows shorter than the prompts of about 10 tokens, than an extension, and than a page of 16.
FAMILIES = dict(
  mistral=dict(window=20),
  gemma3_text=dict(window=7, sliding=(True, False), query_scale=20.0),
  qwen3_moe=dict(num_experts=6, experts_per_token=2),
)


def engine(family, mesh=None, **sizes):
  """(engine, model): a model with random weights, and an engine that has them."""
  config = DecoderConfig.from_shape(264, family=family, **SHAPE | FAMILIES[family])
  model = Decoder(config, rngs=nnx.Rngs(0))
  graphdef, params = nnx.split(model)
  made = Engine(graphdef, kit.TOKENIZER, kit.stops(), Sizes(**kit.SIZES | dict(page=16) | sizes), mesh=mesh)
  if mesh is not None:
    params = rules.place(mesh, params)
  made.load(params, version=1)
  return made, model


def compare(episodes, model):
  """Checks the recorded log-probabilities against a forward pass over each whole conversation."""
  forward = jax.jit(model)
  for episode in episodes:
    ours, theirs = kit.scored(episode, forward=forward)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
  assert max(len(segment.ids) for episode in episodes for segment in episode.turns) > 7
  assert max(episode.num_tokens for episode in episodes) > 50  # beyond two windows


@pytest.mark.slow  # compiles an engine of its own
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_logprobs_equal_a_forward_pass(family):
  made, model = engine(family)
  played = rollout(made)
  compare(played.run(requests(2, 4), step=0), model)
  assert played.report.engine.shared_tokens > 0


@pytest.mark.slow  # compiles two engines
def test_an_expert_a_device_gives_the_tokens_of_one_device():
  mesh = mesh_lib.make(jax.devices()[:4], data=2, tensor=2)
  made, model = engine("qwen3_moe", mesh, replicas=2)
  assert made._kv.weights.layers[0]["experts_gate"][...].addressable_shards[0].data.shape == (3, 32, 48)
  compare(rollout(made).run(requests(2, 4), step=0), model)
