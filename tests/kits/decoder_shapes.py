"""Tiny shapes of decoders, what each family has besides, and weights for them."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import mapping
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.hf import YarnScaling

MORE = dict(  # besides SHAPE: windows shorter than the texts, and layers of both kinds
  qwen3_moe=dict(num_experts=5, experts_per_token=2),
  mistral=dict(window=5),
  smollm3=dict(nope=(True, False)),
  ministral3=dict(rope_scaling=YarnScaling(4.0, 4, llama_4_scaling_beta=0.5)),
  gemma3_text=dict(window=3, sliding=(True, False), local_rope_theta=10.0, query_scale=6.0),
  qwen3_5_text=dict(
    attend_every=2, delta_key_heads=2, delta_value_heads=4, delta_key_dim=8, delta_value_dim=6, delta_conv=3,
    rotary_dim=4,
  ),
)  # fmt: skip
SHAPE = dict(d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24, rope_theta=100.0, tied=True)
V = 29


def drawn(config, deviation=0.5, seed=0, **how):
  """A decoder with weights drawn by NumPy, which needs no compilation. Its logits are uneven, so that a leak shows."""
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), **how)))
  draw = np.random.default_rng(seed)
  values = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, deviation, x.shape), x.dtype), abstract)
  return nnx.merge(graphdef, values)


def random_model(config, seed):
  """As `drawn`, with norms near 1."""
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
  draw = np.random.default_rng(seed)
  near = lambda name: "norm" in name and (not config.traits.zero_norms or "delta_norm" in name)
  some = lambda name, leaf: jnp.asarray(draw.normal(float(near(name)), 0.3, leaf.shape), jnp.float32)
  leaves = [some(name, leaf) for name, leaf in mapping.named(abstract)]
  return nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(abstract), leaves))


def equal(one, two):
  """Checks that two models have the same parameters."""
  for (name, a), (other, b) in zip(*(mapping.named(nnx.split(model)[1]) for model in (one, two)), strict=True):
    assert name == other
    np.testing.assert_array_equal(a, b, err_msg=name)
