"""Families with windows, experts and delta layers on eight devices: the logits and gradients of one device."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_kit import positions
from flax import nnx

from ragrl_jax.models import lora
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules

SHAPE = dict(d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24, rope_theta=100.0)
FAMILIES = dict(
  gemma3_text=dict(window=3, sliding=(True, False), query_scale=6.0),
  qwen3_moe=dict(num_experts=4, experts_per_token=2),
  qwen3_5_text=dict(  # the norm of a narrow head's output would enlarge rounding
    attend_every=2, delta_key_heads=2, delta_value_heads=4, delta_key_dim=32, delta_value_dim=32, delta_conv=4
  ),
)
DRAW = np.random.default_rng(0)
TOKENS = jnp.asarray(DRAW.integers(0, 32, (8, 16)), jnp.int32)
# Packed rows: two and three segments, with and without padding; in the last four rows 2 and 3 continue 1.
SEGMENTS = np.array([[1] * 7 + [2] * 9, [1] * 4 + [2] * 5 + [3] * 5 + [0] * 2] * 4, np.int32)
PREFIXES = np.where((np.arange(8) >= 4)[:, None], np.minimum(SEGMENTS, 1), SEGMENTS)
POSITIONS = positions(SEGMENTS, PREFIXES)
ENDS = np.array([[np.flatnonzero(row == one)[-1] + 1 if one else 0 for one in row] for row in SEGMENTS], np.int32)
# What others continue reaches to the end of the last of them.
UNTIL = np.where((np.arange(8) >= 4)[:, None] & (SEGMENTS == 1), ENDS.max(axis=1, keepdims=True), ENDS)


def made(family):
  """(graphdef, parameters) with norms near 1 and uneven logits, by NumPy, and LoRA adapters that have an effect."""
  config = DecoderConfig.from_shape(32, family=family, **SHAPE | FAMILIES[family])

  def make():
    model = Decoder(config, rngs=nnx.Rngs(0))
    lora.add(model, rank=2, alpha=4.0, layers="q v o", seed=0)
    return model

  graphdef, abstract = nnx.split(nnx.eval_shape(make))
  draw = np.random.default_rng(1)
  return graphdef, jax.tree.map(lambda x: jnp.asarray(draw.normal(0.3, 0.4, x.shape), jnp.float32), abstract)


@functools.cache
def alone(family):
  return logits_and_gradients(family)


def logits_and_gradients(family, sizes=None):
  graphdef, params = made(family)
  mesh = None
  if sizes is not None:
    mesh = mesh_lib.make(jax.devices()[: math.prod(sizes.values())], **sizes)
    params = rules.place(mesh, params)

  @jax.jit
  def run(params):
    def loss(params):
      model = nnx.merge(graphdef, params)
      model.mesh = mesh
      hidden = model.hidden(TOKENS, jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS), jnp.asarray(UNTIL))
      logits = jnp.einsum("btd,vd->btv", hidden, model.unembedding())
      real = jnp.asarray(SEGMENTS != 0, jnp.float32)
      return jnp.sum(jax.nn.log_softmax(logits)[..., 0] * real) / 100, logits * real[..., None]

    return jax.grad(loss, has_aux=True)(params)

  return jax.device_get(run(params))


@pytest.mark.slow  # compiles a backward pass for one device and one for eight
@pytest.mark.parametrize("family, sizes", [
  *((family, dict(data=1, fsdp=2, tensor=2, sequence=2)) for family in ("gemma3_text", "qwen3_moe")),
  ("qwen3_moe", dict(data=4, tensor=2)), ("qwen3_5_text", dict(data=1, fsdp=2, tensor=2)),
  pytest.param("qwen3_5_text", dict(data=4, fsdp=2), marks=pytest.mark.long),
  pytest.param("qwen3_5_text", dict(data=1, tensor=2), marks=pytest.mark.long),
])  # fmt: skip
def test_a_mesh_computes_what_one_device_computes(family, sizes):
  want, got = alone(family), logits_and_gradients(family, sizes)
  assert np.abs(want[1]).max() > 1
  for (path, one), two in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(two, one, atol=2e-5, rtol=2e-5, err_msg=jax.tree_util.keystr(path))


def test_a_mesh_that_does_not_divide_the_experts_is_refused():
  sizes = dict(data=1, fsdp=2, tensor=4, sequence=1)
  with pytest.raises(ValueError, match="config.mesh.tensor=4: it must divide the model's 6 experts a layer. Use 2"):
    rules.check(sizes, heads=8, kv_heads=4, experts=6)
