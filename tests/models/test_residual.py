"""The residual stream of decoding on GPUs, interpreted on the CPU (or run on a GPU), against plain additions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_shapes import drawn
from flax import nnx
from paged_kit import INTERPRET

from ragrl_jax.engine.loader import Caster
from ragrl_jax.models import attention, layers, lora, residual
from ragrl_jax.models.config import DecoderConfig

SHAPE = dict(d_model=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=768, rope_theta=1e4)
DELTA = dict(attend_every=2, delta_key_heads=1, delta_value_heads=2, delta_key_dim=16, delta_value_dim=16, delta_conv=4)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
  monkeypatch.setattr(residual.Stream, "interpret", INTERPRET)


def normal(*shape, dtype="float32"):
  return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), dtype)


@pytest.mark.parametrize("dtype, D, parts", [("float32", 48, 3), ("bfloat16", 64, 8), ("float32", 1000, 1)])
def test_the_kernel_adds_and_norms(dtype, D, parts):
  x, more, gain = normal(3, 2, D, dtype=dtype), normal(parts, 3, 2, D), normal(D, dtype=dtype)
  summed = jax.jit(
    lambda x, more, gain: (made := residual.Stream(x) + more, layers.rms_norm(made, gain, 1e-6), made.x)[1:]
  )
  out, now = summed(x, more, gain)
  want = x + more.sum(axis=0).astype(dtype)
  assert out.dtype == now.dtype == x.dtype
  near = dict(rtol=1e-5, atol=1e-5) if dtype == "float32" else dict(rtol=1e-2, atol=1e-2)
  np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (now, want)), **near)
  np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (out, layers.rms_norm(want, gain, 1e-6))), **near)


@pytest.mark.parametrize("rows, size, columns, parts", [
  (64, 1536, 1536, 4), (64, 8960, 1536, 8), (64, 18944, 3584, 8), (256, 8960, 1536, 4), (64, 128, 64, 1),
  (1, 770, 64, 2),
])  # fmt: skip
def test_parts_add_up_to_the_product(rows, size, columns, parts):
  shapes = jax.ShapeDtypeStruct((rows, 1, size), "bfloat16"), jax.ShapeDtypeStruct((size, columns), "bfloat16")
  found = jax.eval_shape(residual.parts, *shapes)
  assert found.shape == (parts, rows, 1, columns) and found.dtype == jnp.float32
  if size < 1000:
    x, weight = normal(rows, 1, size), normal(size, columns)
    np.testing.assert_allclose(residual.parts(x, weight).sum(axis=0), x @ weight, atol=1e-4)


@pytest.mark.parametrize("family, more", [
  ("qwen2", dict(attention_bias=True)), ("qwen3", dict(adapters="o down")), ("gemma3_text", {}),
  pytest.param("qwen3_moe", dict(num_experts=4, experts_per_token=2), marks=pytest.mark.long),
  pytest.param("qwen3_5_text", DELTA, marks=pytest.mark.long),
])  # fmt: skip
def test_a_decoder_gives_the_same(family, more):
  adapters = more.pop("adapters", "")
  config = DecoderConfig.from_shape(29, family=family, **SHAPE | more)
  model = drawn(config)
  if adapters:
    lora.add(model, rank=2, alpha=4.0, layers=adapters, seed=0)
  separate = Caster(jnp.dtype("float32"), config)(nnx.state(model)).layers
  positions = jnp.broadcast_to(jnp.arange(3, dtype=jnp.int32), (2, 3))
  attend = lambda layer, q, k, v, carry: (attention.attend(q, k, v, jnp.ones((2, 3), jnp.int32)), carry)

  @jax.jit
  def hidden(x):
    run = lambda x: model.run(x, positions, attend, (), separate, recur=lambda layer, mix, carry: (mix()[0], carry))[0]
    return run(x), run(residual.Stream(x))

  plain, streamed = hidden(normal(2, 3, 48))
  np.testing.assert_allclose(streamed, plain, atol=1e-5)
