"""Pages on TPUs: JAX's kernel, interpreted on the CPU, against dense attention; writing against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import literals
from jax.experimental import pallas as pl
from paged_kit import dense, scattered

from ragrl_jax.models import paged_tpu
from ragrl_jax.parallel import mesh as mesh_lib


def side_by_side(pages):
  """[P, 2, KV, page, h] → [P, page, 2 · KV, h]."""
  P, _, KV, page, h = pages.shape
  return pages.transpose(0, 3, 2, 1, 4).reshape(P, page, 2 * KV, h)


@pytest.fixture
def interpreted(monkeypatch):
  """Replaces JAX's kernel call, which has no `interpret`, and whose interpreter fails on plain numbers as indices."""
  monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))
  monkeypatch.setattr(literals.TypedInt, "shape", (), raising=False)


@pytest.mark.slow  # the interpreter traces every step of the kernel
@pytest.mark.parametrize("H, KV, t, window", [
  (7, 1, 1, None), (7, 1, 8, None), (14, 2, 1, None), (28, 4, 8, None), (14, 2, 1, 5), (14, 2, 8, 20),
])  # fmt: skip
def test_the_kernel_is_plain_attention(interpreted, H, KV, t, window):
  lengths = np.array([0, 19, (60 if window else 32) - t], np.int32)
  q, k, v, pages, table = scattered(H, KV, 128, 16, t, lengths)
  pages = jnp.asarray(side_by_side(pages))
  assert paged_tpu.takes(q, pages)
  got = paged_tpu.attend(jnp.asarray(q), pages, jnp.asarray(table), jnp.asarray(lengths), window=window)
  np.testing.assert_allclose(got, dense(q, k, v, lengths, window or 10**9), atol=1e-5)


@pytest.mark.parametrize("t", [1, 5])
def test_tokens_are_written_where_the_table_says(t):
  P, page, KV, h, N = 7, 4, 2, 8, 3
  draw = np.random.default_rng(0)
  pages = draw.normal(size=(P, page, 2 * KV, h)).astype(np.float32)
  k, v = (draw.normal(size=(3, t, KV, h)).astype(np.float32) for _ in range(2))
  table = np.array([[5, 0, 1], [2, 6, 6], [3, 4, 4]], np.int32)
  # The second sequence fills its first page and continues. The third exceeds its table, or writes nothing.
  positions = np.array([[0], [3], [N * page - (t > 1)]], np.int32) + np.arange(t, dtype=np.int32)
  table[1:, 2] = [6, 0 if t == 1 else 4]
  want = pages.copy()
  for i, j in np.ndindex(3, t):
    if (at := positions[i, j]) < N * page:
      want[table[i, at // page], at % page] = np.stack((k[i, j], v[i, j]), 1).reshape(2 * KV, h)
  got = jax.jit(paged_tpu.write)(pages, k, v, table, positions)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("KV, h, dtype, tensor, fits", [
  (1, 128, "bfloat16", 1, True), (4, 128, "bfloat16", 4, True), (1, 256, "bfloat16", 1, True),
  (2, 256, "bfloat16", 1, False),  # strided words of 256 lanes, as in Qwen3.5
  (2, 64, "bfloat16", 1, False),  # half of a TPU's 128 lanes
  (3, 128, "bfloat16", 1, False),  # three words of 32 bits per token
  (3, 128, "float32", 1, False), (4, 128, "int8", 1, False),
  (2, 128, "float32", 4, False),  # half of the devices would hold only keys
])  # fmt: skip
def test_what_the_kernel_accepts(KV, h, dtype, tensor, fits):
  mesh = mesh_lib.make(jax.devices()[:tensor], tensor=tensor)
  q = jax.ShapeDtypeStruct((2, 1, 4 * KV, h), "bfloat16" if dtype == "int8" else dtype)
  pages = jax.ShapeDtypeStruct((8, 64, 2 * KV, h), dtype)
  assert paged_tpu.takes(q, pages, mesh) == fits
  if not fits:
    with pytest.raises(ValueError, match="paged_tpu.takes"):
      paged_tpu.attend(q, pages, None, None, mesh=mesh)
