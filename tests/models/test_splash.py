"""The TPU kernel, run step by step on the CPU, against the blockwise code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_kit import arrays, run

from ragrl_jax.models import attention, splash
from ragrl_jax.parallel import mesh as mesh_lib

SHAPE = B, T, H, KV, h = 2, 160, 4, 2, 8  # T is no multiple of the kernel's 128
SEGMENTS = np.array([[1] * 50 + [2] * 70 + [3] * 10 + [0] * 30, [0] * 160], np.int32)


@pytest.mark.slow  # the interpreter traces every step of the kernel
@pytest.mark.parametrize(
  "causal, sizes",
  [
    (True, None),
    (True, dict(fsdp=2, tensor=2, sequence=2)),
    (False, dict(fsdp=2, tensor=4)),  # four devices share two key heads
  ],
)
def test_splash_is_blockwise_attention(causal, sizes):
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), data=1, **sizes)
  want = run(functools.partial(attention.attend, causal=causal), SHAPE, SEGMENTS)
  got = run(functools.partial(splash.attend, causal=causal, mesh=mesh, interpret=True), SHAPE, SEGMENTS)
  for one, two in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(one, two, atol=1e-5)
  np.testing.assert_array_equal(got[0][SEGMENTS == 0], 0.0)


def test_the_mesh_decides(monkeypatch):
  class Tpu:
    platform = "tpu"

  class Mesh:
    devices = np.array([Tpu()])

  monkeypatch.setattr(splash, "attend", lambda q, k, v, ids, *, causal, mesh: ("splash", causal, mesh))
  q, k, v, _ = arrays(SHAPE)
  mesh = Mesh()
  assert attention.attend(q, k, v, jnp.asarray(SEGMENTS), causal=False, mesh=mesh) == ("splash", False, mesh)
  assert attention.attend(q, k, v, jnp.asarray(SEGMENTS)).shape == q.shape  # here: the CPU's
