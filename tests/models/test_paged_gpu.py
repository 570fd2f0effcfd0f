"""The Triton kernel over pages, interpreted on the CPU (or run on a GPU), against dense attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_shapes import drawn
from jax.sharding import PartitionSpec
from paged_kit import INTERPRET, dense, scattered
from refusals import refused

from ragrl_jax.models import cache as cache_lib, paged_gpu
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import mesh as mesh_lib


def attend(*arrays, **how):
  return paged_gpu.attend(*arrays, interpret=INTERPRET, **how)[0]


def quantized(k, v, pages):
  """Keys and values as int8 pages hold them, these pages and their scales."""
  k, v = (np.asarray(x, np.float32) * np.asarray(by)[..., None] for x, by in map(cache_lib.quantize, (k, v)))
  return k, v, *cache_lib.quantize(pages)


@pytest.mark.parametrize("H, KV, h, page, t, window", [
  (7, 1, 64, 64, 1, None), (7, 1, 64, 64, 8, None), (28, 4, 16, 16, 8, None), (14, 2, 128, 128, 1, None),
  (32, 8, 16, 32, 8, None), (2, 2, 256, 128, 1, None),
  *((7, 1, 16, 16, t, window) for window, t in ((1, 1), (5, 8), (20, 1), (20, 20), (70, 8), (1000, 8))),
])  # fmt: skip
def test_the_kernel_equals_plain_attention(H, KV, h, page, t, window):
  # The second sequence ends inside its second page, the third at the end of a page. The first has no earlier token, and
  # the last has some behind every window.
  lengths = np.array([0, page + 3, 2 * page - t, 100], np.int32)
  q, k, v, pages, table = scattered(H, KV, h, page, t, lengths)
  got = jax.jit(functools.partial(attend, window=window))(q, jnp.asarray(pages), table, lengths)
  np.testing.assert_allclose(got, dense(q, k, v, lengths, window or 10**9), atol=1e-5)


@pytest.mark.parametrize("dtype, t, window", [  # every pair
  ("float32", 1, None), ("float32", 5, 100), ("int8", 1, 100), ("int8", 5, None),
])  # fmt: skip
def test_parts_of_a_sequence_merge_exactly(dtype, t, window):
  # Parts without a token, with one, and at the borders of pages and tiles. Sequences share their first two pages. What
  # lies behind the tokens is no number, nor are its scales.
  more = np.random.default_rng(1).integers(128, 600, 3)
  lengths = np.array([0, 1, 63, 64, 65, 127, 128, 129, 600 - t, *more], np.int32)
  q, k, v, pages, table = scattered(4, 2, 16, 64, t, lengths)
  assert paged_gpu.splits(2 * len(lengths), table.shape[1] * 64) == 5
  for i in range(9, 12):
    table[i, :2], k[i, :128], v[i, :128] = table[8, :2], k[8, :128], v[8, :128]
  scales = None
  if dtype == "int8":
    k, v, pages, scales = quantized(k, v, pages)
  got = attend(q, pages, table, lengths, scales=scales, window=window)
  np.testing.assert_allclose(got, dense(q, k, v, lengths, window or 10**9), atol=1e-5)


@pytest.mark.parametrize("t, H, dtype, window", [
  (1, 4, "float32", None), (1, 4, "float32", 3), (5, 14, "float32", 3), (5, 14, "float32", 100),
  (16, 4, "bfloat16", None), (16, 4, "bfloat16", 100),
])  # fmt: skip
def test_the_kernel_writes_the_calls_tokens(t, H, dtype, window):
  # Tokens to an empty page, into one, across pages and to the table's end; the last sequence writes only its first.
  lengths = np.array([0, 1, 63, 64, 65, 640 - t, 300, 77], np.int32)
  q, k, v, pages, table = scattered(H, 2, 16, 64, t, lengths)
  table = table[:, :10]
  q, k, v, pages = (np.array(jnp.asarray(x, dtype), np.float32) for x in (q, k, v, pages))
  positions = lengths[:, None] + np.arange(t, dtype=np.int32)
  positions[-1, 1:] = cache_lib.DROPPED
  empty = pages.copy()
  for i, j in np.ndindex(len(lengths), t):
    empty[table[i, (lengths[i] + j) // 64], :, :, (lengths[i] + j) % 64] = np.nan
    if positions[i, j] == cache_lib.DROPPED:
      pages[table[i, (lengths[i] + j) // 64], :, :, (lengths[i] + j) % 64] = np.nan
  new = (np.stack([x[i, length : length + t] for i, length in enumerate(lengths)]) for x in (k, v))
  given = (jnp.asarray(x, dtype) for x in (q, empty))
  how = dict(new=(*(jnp.asarray(x, dtype) for x in new), positions), window=window, interpret=INTERPRET)
  out, written, _ = jax.jit(functools.partial(paged_gpu.attend, **how))(*given, table, lengths)
  np.testing.assert_array_equal(np.asarray(written, np.float32), pages)
  want = dense(q, k, v, lengths, window or 10**9)
  np.testing.assert_allclose(np.asarray(out, np.float32), want, atol=1e-5 if dtype == "float32" else 2e-2)


def test_the_numbers_of_parts_and_of_a_steps_tokens_follow_from_the_shape():
  # 128 programs become 384 on the 132 multiprocessors of an H200, 512 are enough; a part has at least 128 tokens.
  wanted = {(64 * 2, 1024): 3, (64 * 4, 1024): 2, (256 * 2, 1024): 1, (2, 1024): 8, (2, 64): 1}
  assert {shape: paged_gpu.splits(*shape) for shape in wanted} == wanted
  # 64 queries, keys and values of 256 numbers of 16 bits are 96 KB, without weights; a smaller GPU's block has 99.
  wanted = {(64, 64, 256, 2): 32, (64, 16, 256, 2): 16, (32, 64, 256, 2): 64, (16, 64, 256, 4): 32, (64, 64, 64, 2): 64}
  assert {shape: paged_gpu.tile_of(*shape) for shape in wanted} == wanted


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_sequences_in_one_part_share_pages(dtype):
  lengths = np.array([20, 20], np.int32)
  q, k, v, pages, table = scattered(4, 2, 16, 16, 8, lengths)
  assert paged_gpu.splits(2 * len(lengths), table.shape[1] * 16) == 1
  table[1, 0] = table[0, 0]  # both start with the same 16 tokens
  k[1, :16], v[1, :16], scales = k[0, :16], v[0, :16], None
  if dtype == "int8":
    k, v, pages, scales = quantized(k, v, pages)
  got = attend(q, jnp.asarray(pages), table, lengths, scales=scales)
  np.testing.assert_allclose(got, dense(q, k, v, lengths), atol=1e-5)


def test_a_group_of_heads_in_bfloat16():
  lengths = np.array([5, 40], np.int32)
  q, k, v, pages, table = scattered(7, 1, 16, 16, 12, lengths)  # 84 queries: two programs per sequence
  cut = lambda x: np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)
  got = attend(jnp.asarray(q, jnp.bfloat16), jnp.asarray(pages, jnp.bfloat16), table, lengths)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(got, np.float32), dense(cut(q), cut(k), cut(v), lengths), atol=2e-2)


@pytest.mark.skipif(not INTERPRET, reason="needs eight devices")
@pytest.mark.parametrize("nested", [False, True])
def test_devices_share_the_heads(nested):
  mesh = mesh_lib.make(jax.devices(), data=4, tensor=2)
  lengths = np.arange(8, dtype=np.int32)
  q, k, v, pages, table = scattered(4, 2, 16, 16, 1, lengths)

  def one(q, pages, table, lengths):
    within = jax.sharding.get_abstract_mesh() if nested else mesh
    return attend(q, pages, table, lengths, mesh=within)

  if nested:  # each replica has its own pages; here they are equal
    rows, whole = PartitionSpec("data"), PartitionSpec()
    specs = dict(in_specs=(rows, whole, rows, rows), out_specs=rows)
    one = jax.shard_map(one, mesh=mesh, **specs, axis_names={"data"}, check_vma=False)
  run = jax.jit(one)
  np.testing.assert_allclose(run(q, pages, table, lengths), dense(q, k, v, lengths), atol=1e-5)
  assert "all-gather" not in run.lower(q, pages, table, lengths).compile().as_text()


def test_invalid_arguments_are_refused():
  q, _, _, pages, table = scattered(4, 2, 16, 16, 1, lengths := np.array([3], np.int32))
  mesh = mesh_lib.make(jax.devices("cpu"), data=2, tensor=4)
  for given, how, says in (
    ((q, pages, table, lengths), dict(mesh=mesh, interpret=True), "does not divide"),
    ((q[:, :, :3], pages, table, lengths), {}, "KV a divisor of the 3 heads"),
    ((q, pages[..., :12, :], table, lengths), {}, "powers of two"), ((q, pages, table, lengths[:0]), {}, "1 sequences"),
    ((q, np.zeros(pages.shape, np.int8), table, lengths), {}, "scales"),
  ):  # fmt: skip
    refused(says, paged_gpu.attend, *given, **how)
  large = ((1, 1, 28, 128), "bfloat16"), ((2**16, 2, 4, 64, 128), "int8"), ((2**16, 2, 4, 64), "float32")
  attend = lambda q, pages, scales: paged_gpu.attend(q, pages, table, lengths, scales=scales)
  refused(r"4.0 GiB", jax.eval_shape, attend, *(jax.ShapeDtypeStruct(*each) for each in large))


def test_quantize():
  small, scale = cache_lib.quantize(jnp.array([[2.54, -1.27, 0.0], [0.0, 0.0, 0.0]]))
  # 1.27 / 0.02 = 63.5 rounds to even
  np.testing.assert_array_equal(small, np.int8([[127, -64, 0], [0, 0, 0]]), strict=True)
  np.testing.assert_allclose(scale, [0.02, 0.0], rtol=1e-6)


PAGE = 16


def over_pages(dtype, layer, q, k, v, carry):
  """The decoder's `attend`, with the keys and values of all tokens in pages."""
  B, T, KV, h = k.shape
  # [B, T, KV, h] with T a multiple of PAGE → [B · T / PAGE, KV, PAGE, h]
  into_pages = lambda x: x.reshape(B * T // PAGE, PAGE, KV, h).transpose(0, 2, 1, 3)
  pages, scales = jnp.stack([into_pages(k), into_pages(v)], 1), None
  if dtype == "int8":
    pages, scales = cache_lib.quantize(pages)
  pages = pages.astype(dtype)
  table = jnp.arange(B * T // PAGE, dtype=jnp.int32).reshape(B, -1)
  return attend(q, pages, table, jnp.zeros(B, jnp.int32), scales=scales), carry


@pytest.fixture(scope="module")
def model_and_tokens():
  shape = dict(d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=96, rope_theta=1e4, tied=True)
  config = DecoderConfig.from_shape(61, family="qwen3", **shape)
  # Much larger than usual initial weights, so attention is peaked and logits are uneven.
  return drawn(config, 0.4), jnp.asarray(np.random.default_rng(1).integers(0, 61, (2, 3 * PAGE)), jnp.int32)


@functools.partial(jax.jit, static_argnames="dtype")
def gap(model, tokens, dtype):
  """(mean, largest) difference of the log-probabilities of `tokens` from those of plain attention."""

  def logprobs(hidden):
    logits = jnp.einsum("btd,vd->btv", hidden, model.unembedding())
    return jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)

  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
  paged, *_ = model.run(model.embed(tokens), positions, functools.partial(over_pages, dtype), ())
  found = jnp.abs(logprobs(paged) - logprobs(model.hidden(tokens)))
  return found.mean(), found.max()


@pytest.mark.parametrize("dtype, least, mean, most", [
  ("float32", 0, 1e-5, 1e-5), ("bfloat16", 1e-5, 0.004, 0.02), ("int8", 1e-5, 0.02, 0.1),
])  # fmt: skip
def test_pages_change_nothing_and_narrower_numbers_little(model_and_tokens, dtype, least, mean, most):
  found = gap(*model_and_tokens, dtype=dtype)
  print(f"{dtype} keys and values: log-probabilities differ by {found[0]:.4f} in the mean, {found[1]:.4f} at most")
  assert least <= found[0] < mean and found[1] < most
