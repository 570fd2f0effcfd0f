"""The GPU's attention: when it is chosen, and that it computes what the blockwise code does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_kit import arrays, run
from jax._src.cudnn import fused_attention_stablehlo

from ragrl_jax.models import attention, cudnn
from ragrl_jax.parallel import mesh as mesh_lib

SHAPE = B, T, H, KV, h = 4, 40, 4, 2, 8
SINGLE = np.array([[1] * 40, [3] * 17 + [0] * 23, [1] + [0] * 39, [0] * 40], np.int32)
PACKED = np.where(np.arange(T) < 9, 1, SINGLE + 1).astype(np.int32)


@pytest.mark.parametrize("causal, sizes", [(True, None), (False, dict(fsdp=2, tensor=4))])  # four share two key heads
def test_cudnn_is_asked_for_what_blockwise_attention_computes(causal, sizes):
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), data=1, **sizes)
  want = run(functools.partial(attention.attend, causal=causal), SHAPE, SINGLE)
  got = run(functools.partial(cudnn.attend, causal=causal, mesh=mesh, implementation="xla"), SHAPE, SINGLE)
  for one, two in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(one, two, atol=1e-5)
    np.testing.assert_array_equal(two[SINGLE == 0], 0.0)


def test_single():
  assert cudnn.single(jnp.asarray(SINGLE))
  for row in ([1, 1, 2, 0], [0, 1, 1, 1], [1, 0, 1, 0]):  # two segments; padding in front; and in between
    assert not cudnn.single(jnp.asarray([[1] * 4, row], jnp.int32))


def test_what_is_chosen(monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(cudnn, "attend", lambda q, k, v, ids, *, causal, mesh: jnp.full_like(q, 7))
  fused = lambda q, k, v, *ids: bool((attention.attend(q, k, v, *map(jnp.asarray, ids)) == 7).all())
  q, k, v, _ = arrays(SHAPE, jnp.bfloat16)
  assert fused(q, k, v, SINGLE) and not fused(q, k, v, PACKED) and not fused(q, k, v, SINGLE, SINGLE)
  assert not fused(*arrays(SHAPE)[:3], SINGLE)
  assert not cudnn.takes(q, mesh_lib.make(jax.devices(), data=4, sequence=2))
  heads = lambda size: jnp.zeros((1, 1, 1, size), jnp.float16)
  assert cudnn.takes(heads(128)) and not cudnn.takes(heads(136)) and not cudnn.takes(heads(60))


def test_the_program_for_gpus_calls_cudnn_and_builds_no_square(monkeypatch):
  """Lowered for CUDA without a GPU; only cuDNN's version is made up."""
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
  length = 32_768
  shape = lambda heads: jax.ShapeDtypeStruct((1, length, heads, 128), jnp.bfloat16)
  loss = lambda q, k, v, ids: attention.attend(q, k, v, ids).astype(jnp.float32).sum()
  traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(
    shape(12), shape(2), shape(2), jax.ShapeDtypeStruct((1, length), jnp.int32)
  )
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert "__cudnn$fmhaSoftmax" in text and "__cudnn$fmhaSoftmaxBackward" in text
  assert f"{length}x{length}" not in text
