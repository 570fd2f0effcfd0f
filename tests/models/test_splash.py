"""The TPU kernel, interpreted on the CPU, against the blockwise code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_kit import PREFIXES, SHARED, agree, arrays, in_windows, positions, visible

from ragrl_jax.models import attention, kernels, splash
from ragrl_jax.parallel import mesh as mesh_lib

SHAPE = B, T, H, KV, h = 2, 160, 4, 2, 8  # T is not a multiple of the kernel's 128
SEGMENTS = np.array([[1] * 50 + [2] * 70 + [3] * 10 + [0] * 30, [0] * 160], np.int32)


@pytest.mark.slow  # the interpreter traces every step of the kernel
@pytest.mark.parametrize(
  "causal, prefixes, sizes",
  [
    (True, PREFIXES, None),
    (True, PREFIXES, dict(fsdp=2, tensor=2, sequence=2)),
    (True, None, None),
    (False, None, dict(fsdp=2, tensor=4)),  # four devices share two key heads
  ],
)
def test_splash_is_blockwise_attention(causal, prefixes, sizes):
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), data=1, **sizes)
  mine = functools.partial(splash.attend, causal=causal, mesh=mesh, interpret=True)
  # three blocks per row
  agree(mine, functools.partial(attention.attend, causal=causal), (B, SHARED.shape[1], H, KV, h), SHARED, prefixes)


@pytest.mark.slow  # as above
@pytest.mark.parametrize("window, sizes", [(40, None), (7, dict(fsdp=2, tensor=2, sequence=2))])
def test_splash_in_windows(window, sizes):
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), data=1, **sizes)
  windows = kernels.Windows.of(jnp.asarray(positions(SHARED, SHARED)), window)
  mine = lambda *x: splash.attend(*x, windows=windows, mesh=mesh, interpret=True)
  want = lambda q, k, v, segments: in_windows(q, k, v, SHARED, SHARED, window)
  agree(mine, want, (B, SHARED.shape[1], H, KV, h), SHARED)


def test_blocks_before_every_window_are_skipped():
  one = jnp.ones((1, 1024), jnp.int32)
  at = jnp.arange(1024, dtype=jnp.int32)[None]
  rows = kernels.tokens(one, None, kernels.Windows.of(at, 100))
  needed = splash._needed(rows, rows, True, shared=False)  # two blocks of 512
  np.testing.assert_array_equal(needed, [[True, False], [True, True]])
  # A device with the last 256 queries has blocks of 256. The first query, 768, reaches back to 669.
  late = kernels.Tokens(*(x[:, 768:] for x in rows[:4]), windows=jax.tree.map(lambda x: x[:, 768:], rows.windows))
  np.testing.assert_array_equal(splash._needed(late, rows, True, shared=False), [[False, False, True, True]])


def test_the_platform_of_the_mesh_decides(monkeypatch):
  class Tpu:
    platform = "tpu"

  class Mesh:
    devices = np.array([Tpu()])

  monkeypatch.setattr(splash, "attend", lambda q, k, v, ids, prefix, *, causal, mesh: ("splash", causal, mesh))
  q, k, v, _ = arrays(SHAPE)
  mesh = Mesh()
  assert attention.attend(q, k, v, jnp.asarray(SEGMENTS), causal=False, mesh=mesh) == ("splash", False, mesh)
  assert attention.attend(q, k, v, jnp.asarray(SEGMENTS)).shape == q.shape  # here the CPU's


def test_blocks_that_no_token_sees_are_skipped():
  segments, prefixes = (np.pad(x[:1], ((0, 0), (0, 84))) for x in (SHARED, PREFIXES))  # three blocks of 128
  rows = kernels.tokens(jnp.asarray(segments), jnp.asarray(prefixes))
  own, other = np.split(np.asarray(splash._needed(rows, rows, True, shared=True)), 2, axis=1)
  apart = visible(segments[0], segments[0], 128, 128)
  np.testing.assert_array_equal(own, apart | np.eye(3, dtype=bool))
  np.testing.assert_array_equal(apart | other, visible(segments[0], prefixes[0], 128, 128))
  assert other.sum() == 2 < own.sum()  # blocks 0 and 1 contain tokens that continue the prompt in block 0


def test_what_the_kernel_refuses():
  q, k, v, _ = arrays(SHAPE)
  with pytest.raises(ValueError, match="must be causal"):
    splash.attend(q, k, v, jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS), causal=False)
  windows = kernels.Windows.of(jnp.asarray(SEGMENTS), 3)
  with pytest.raises(ValueError, match="share_prompts=False"):
    splash.attend(q, k, v, jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS), windows=windows)
  long = jnp.zeros((1, 2 * splash.LONGEST_SHARED), jnp.int32)
  row = jnp.zeros((*long.shape, 1, 1))
  with pytest.raises(ValueError, match="at most 65536 tokens"):
    splash.attend(row, row, row, long, long)
