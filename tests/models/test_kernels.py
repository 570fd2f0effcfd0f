"""The kernels of GPUs (cudnn, flash) and TPUs (splash), interpreted on the CPU, against the blockwise code."""

import functools
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_kit import PREFIXES, SHARED, UNTIL, agree, arrays, in_windows, positions, run, visible
from jax.sharding import AbstractDevice, AbstractMesh
from refusals import refused

from ragrl_jax.models import attention, cache as cache_lib, cudnn, flash, kernels, splash
from ragrl_jax.parallel import mesh as mesh_lib

SHAPE = B, T, H, KV, h = 2, SHARED.shape[1], 4, 2, 8  # T is not a multiple of a block; h is below flash's
EVERY_AXIS = dict(fsdp=2, tensor=2, sequence=2)
HERE = {flash: dict(interpret=True), splash: dict(interpret=True), cudnn: dict(implementation="xla")}  # on any device


@functools.cache
def blockwise(causal, shared):
  until = jnp.asarray(UNTIL) if shared else None
  return run(functools.partial(attention.attend, until=until, causal=causal), SHAPE, SHARED)


@functools.cache
def windowed(shared, window):
  prefixes = PREFIXES if shared else SHARED
  return run(lambda q, k, v, segments: in_windows(q, k, v, SHARED, prefixes, window), SHAPE, SHARED)


@pytest.mark.slow  # the interpreter traces every step of the kernels
@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("causal, prefixes, sizes", [
  (True, PREFIXES, None), (True, PREFIXES, EVERY_AXIS), (True, None, None),
  (False, None, dict(fsdp=2, tensor=4)),  # four devices share two key heads
])  # fmt: skip
def test_a_kernel_is_blockwise_attention(kernel, causal, prefixes, sizes):
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), data=1, **sizes)
  given = () if prefixes is None else (jnp.asarray(prefixes),)
  mine = lambda *x: kernel.attend(*x, *given, causal=causal, mesh=mesh, **HERE[kernel])
  agree(mine, blockwise(causal, prefixes is not None), SHAPE, SHARED)


@pytest.mark.slow  # as above
# splash has no windows of shared prompts
@pytest.mark.parametrize("kernel, prefixes", [(flash, PREFIXES), (cudnn, PREFIXES), (splash, SHARED)])
@pytest.mark.parametrize("window, sizes", [(40, None), (7, EVERY_AXIS)])
def test_a_kernel_in_windows(kernel, prefixes, window, sizes):
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), data=1, **sizes)
  windows = kernels.Windows.from_size(jnp.asarray(positions(SHARED, prefixes)), window)
  given = () if prefixes is SHARED else (jnp.asarray(prefixes),)
  mine = lambda *x: kernel.attend(*x, *given, windows=windows, mesh=mesh, **HERE[kernel])
  agree(mine, windowed(prefixes is PREFIXES, window), SHAPE, SHARED)


@pytest.mark.slow  # as above
@pytest.mark.parametrize("heads, kv_heads, size", [
  (14, 2, 64), *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in ((28, 4, 128), (12, 2, 128), (32, 8, 64))),
])  # fmt: skip
def test_the_heads_of_real_models_in_bfloat16(heads, kv_heads, size):
  shape, segments = (1, 256, heads, kv_heads, size), SHARED[:1, :256]
  prefixes, until = (jnp.asarray(x[:1, :256]) for x in (PREFIXES, UNTIL))
  got = run(lambda *x: flash.attend(*x, prefixes, interpret=True), shape, segments, jnp.bfloat16)
  # The reference computes in float32 from the same rounded numbers.
  want = run(lambda *x: attention.attend(*x, until), shape, segments)
  for one, two in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    assert np.linalg.norm(one - two.astype(np.float32)) < 0.01 * np.linalg.norm(one)


def test_trees_of_one_level_as_segments_with_prefixes():
  segments, prefixes = kernels.segments(jnp.asarray(UNTIL))
  np.testing.assert_array_equal((segments[0], prefixes[0]), (SHARED[0], PREFIXES[0]))
  # Two trunks, each with two branches, of which the last ends with its trunk; then a sequence alone, and padding.
  row = jnp.array([[4, 4, 3, 4, 8, 8, 7, 8, 10, 10, 0]], jnp.int32)
  segments, prefixes = kernels.segments(row)
  assert segments.tolist() == [[1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 0]]
  assert prefixes.tolist() == [[1] * 4 + [4] * 4 + [7, 7, 0]]


@pytest.mark.parametrize("block_q, block_k", [(64, 32), (32, 64)])
def test_each_needed_block_is_read_once(block_q, block_k):
  segments, prefixes = (np.pad(x, ((0, 0), (0, 20))) for x in (SHARED, PREFIXES))
  rows = kernels.tokens(jnp.asarray(segments), jnp.asarray(prefixes))
  steps_of = jax.jit(lambda rows: flash._steps(*flash._needed(rows, rows, True, block_q, block_k)))
  for row, steps in enumerate(steps_of(rows)):
    for needed, one in zip(visible(segments[row], prefixes[row], block_q, block_k), steps, strict=True):
      count, block = flash._streaming(one)
      read = [int(block(step)) for step in range(count)]
      assert len(set(read)) == len(read) and set(np.flatnonzero(needed)) <= set(read)
      assert row == 1 or len(read) == needed.sum()  # with ascending ids nothing else is read


def test_which_blocks_are_read():
  # Query block 0 needs keys 1 and 2 of its prefix and 5 and 6 of its own. Block 1: overlapping runs. 2: one. 3: none.
  own = jnp.array([[[0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0] * 7]], bool)
  prefix = jnp.array([[[0, 1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0] * 7]], bool)
  read = []
  for steps in flash._steps(own, prefix)[0]:
    count, block = flash._streaming(steps)
    read.append([int(block(step)) for step in range(count)])
  assert read == [[1, 2, 5, 6], [1, 2, 3, 4], [1], []]


def test_gpus_accept_every_row(monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(cudnn, "takes", lambda q: False)
  monkeypatch.setattr(flash, "attend", lambda q, k, v, ids, prefix, *, causal, mesh: ("flash", prefix is None, causal))
  q, k, v, _ = arrays(SHAPE, jnp.bfloat16)
  ids = jnp.asarray(SHARED)
  assert attention.attend(q, k, v, ids) == ("flash", True, True)
  assert attention.attend(q, k, v, ids, jnp.asarray(UNTIL)) == ("flash", False, True)
  assert attention.attend(*arrays(SHAPE)[:3], ids, causal=False) == ("flash", True, False)
  # Blocks of wide heads fit into a smaller GPU: a row of 1 KB, of which two are held backward, and two streamed.
  wide = jax.ShapeDtypeStruct((1, 64, 1, 256), jnp.float32)
  assert [flash._blocks(sizes, wide) for sizes in (flash.FORWARD, flash.BACKWARD)] == [(32, 16), (16, 16)]


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")  # JAX 0.12
def test_the_program_for_gpus_calls_the_kernels_and_builds_no_square(monkeypatch):
  """Lowered for CUDA without a GPU, with the heads of Qwen2.5-1.5B."""
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  length = 32_768  # too long for cuDNN's mask
  shape = lambda heads: jax.ShapeDtypeStruct((1, length, heads, 128), jnp.bfloat16)
  ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
  loss = lambda q, k, v, *ids: attention.attend(q, k, v, *ids).astype(jnp.float32).sum()
  # JAX 0.11 asks for the GPU's generation when it lowers a kernel.
  h200 = AbstractMesh((1,), ("data",), abstract_device=AbstractDevice("NVIDIA H200", None, "gpu"))
  with jax.sharding.use_abstract_mesh(h200):
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(shape(12), shape(2), shape(2), ids, ids)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert all(f"{name}_kernel" in text for name in ("forward", "queries", "keys"))
  assert f"{length}x{length}" not in text and "stablehlo.while" not in text


def test_only_kernels_for_gpus_import_triton():
  modules = "ragrl_jax.jobs.train, ragrl_jax.serving.openai_server"
  asks = f"import sys, {modules}; sys.exit('jax.experimental.pallas.triton' in sys.modules)"
  subprocess.run([sys.executable, "-c", asks], check=True)


def test_a_jax_without_triton_computes_in_plain_jax(monkeypatch):
  monkeypatch.setattr(attention, "platform", lambda mesh: "gpu")
  model = types.SimpleNamespace(head_dim=64, num_layers=1, attending=1, num_kv_heads=1, window=None)
  chosen = lambda: (
    cache_lib.layout(model, 16, "float32", "gpu").kernel,
    attention._kernel(None, jax.ShapeDtypeStruct((1, 64, 1, 64), jnp.float32)),
  )
  assert chosen() == (cache_lib.TRITON, flash)
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  monkeypatch.setattr(kernels, "has_triton", functools.cache(kernels.has_triton.__wrapped__))
  with pytest.warns(UserWarning, match="has no Triton backend"):
    assert chosen() == (cache_lib.PLAIN, None)


def test_what_cudnn_takes(monkeypatch):
  row = lambda length=1024, size=128, dtype=jnp.bfloat16: jax.ShapeDtypeStruct((1, length, 2, size), dtype)
  monkeypatch.setattr(jax, "__version_info__", cudnn.OLDEST)
  assert cudnn.takes(row()) and cudnn.takes(row(cudnn.LONGEST, 64, jnp.float16))
  assert not any(map(cudnn.takes, (row(dtype=jnp.float32), row(2 * cudnn.LONGEST), row(size=68), row(size=512))))
  monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
  assert not cudnn.takes(row())


def test_a_cudnn_that_refuses_or_errs_is_not_used(monkeypatch):
  right = jax.jit(functools.partial(cudnn.attend, implementation="xla"))

  def refuse(*x):
    raise NotImplementedError("no engine")

  def agrees(there):
    monkeypatch.setattr(cudnn, "attend", lambda *x, implementation: (right if implementation == "xla" else there)(*x))
    return cudnn.agrees.__wrapped__(64, "bfloat16")

  for wrong, says in ((refuse, "fails: no engine"), (lambda *x: 1.05 * right(*x), "off. Other")):
    with pytest.warns(UserWarning, match=says):
      assert not agrees(wrong)
  assert agrees(right)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("size", [64, 128, 256])
def test_cudnn_here_agrees(size):
  assert cudnn.agrees(size, "bfloat16")


def test_blocks_before_every_window_are_skipped():
  one = jnp.ones((1, 1024), jnp.int32)
  at = jnp.arange(1024, dtype=jnp.int32)[None]
  rows = kernels.tokens(one, None, kernels.Windows.from_size(at, 100))
  needed = jax.jit(functools.partial(splash._needed, causal=True, shared=False))
  np.testing.assert_array_equal(needed(rows, rows), [[True, False], [True, True]])  # two blocks of 512
  # A device with the last 256 queries has blocks of 256. The first query, 768, reaches back to 669.
  late = kernels.Tokens(*(x[:, 768:] for x in rows[:4]), windows=jax.tree.map(lambda x: x[:, 768:], rows.windows))
  np.testing.assert_array_equal(needed(late, rows), [[False, False, True, True]])


def test_the_platform_of_the_mesh_decides(monkeypatch):
  mesh = types.SimpleNamespace(devices=np.array([types.SimpleNamespace(platform="tpu")]))
  monkeypatch.setattr(splash, "attend", lambda q, k, v, ids, prefix, *, causal, mesh: ("splash", causal, mesh))
  q, k, v, _ = arrays(SHAPE)
  assert attention.attend(q, k, v, jnp.asarray(SHARED), causal=False, mesh=mesh) == ("splash", False, mesh)
  assert attention.attend(q, k, v, jnp.asarray(SHARED)).shape == q.shape  # here the CPU's


def test_blocks_that_no_token_sees_are_skipped():
  segments, prefixes = (np.pad(x[:1], ((0, 0), (0, 84))) for x in (SHARED, PREFIXES))  # three blocks of 128
  rows = kernels.tokens(jnp.asarray(segments), jnp.asarray(prefixes))
  needed = jax.jit(functools.partial(splash._needed, causal=True, shared=True))(rows, rows)
  own, other = np.split(np.asarray(needed), 2, axis=1)
  apart = visible(segments[0], segments[0], 128, 128)
  np.testing.assert_array_equal(own, apart | np.eye(3, dtype=bool))
  np.testing.assert_array_equal(apart | other, visible(segments[0], prefixes[0], 128, 128))
  assert other.sum() == 2 < own.sum()  # blocks 0 and 1 contain tokens that continue the prompt in block 0


def test_what_the_kernel_refuses():
  q, k, v, _ = arrays(SHAPE)
  refused("must be causal", splash.attend, q, k, v, jnp.asarray(SHARED), jnp.asarray(SHARED), causal=False)
  windows = kernels.Windows.from_size(jnp.asarray(SHARED), 3)
  refused("share_prompts=False", splash.attend, q, k, v, jnp.asarray(SHARED), jnp.asarray(SHARED), windows=windows)
  long = jnp.zeros((1, 2 * splash.LONGEST_SHARED), jnp.int32)
  row = jnp.zeros((*long.shape, 1, 1))
  refused("at most 65536 tokens", splash.attend, row, row, row, long, long)
