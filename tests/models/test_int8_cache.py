"""Keys and values in int8: every way of attending to them gives what the numbers that they stand for would give."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paged_kit import INTERPRET, dense

from ragrl_jax.models import cache as cache_lib, paged_gpu
from ragrl_jax.models.config import DecoderConfig

H, KV, SIZE, PAGE = 4, 2, 16, 16
LENGTHS = np.array([20, 33, 5])  # tokens of the first call; the last of the second one are at positions 26, 39, 11
MORE = 7
TABLE = np.array([[5, 0, 6], [1, 2, 3], [4, 8, 7]], np.int32)  # page 7 holds nobody's tokens
NOWHERE = cache_lib.DROPPED
layout = lambda kernel, layers=2: cache_lib.Layout(kernel, layers, KV, SIZE, PAGE, jnp.dtype(jnp.int8))


def drawn():
  """(q, k, v) of the three conversations, [3, 40, heads, SIZE]; keys of some tokens are ten times larger."""
  draw = np.random.default_rng(0)
  q, k, v = (draw.normal(size=(3, 40, heads, SIZE)).astype(np.float32) for heads in (H, KV, KV))
  k[:, ::5] *= 10
  return q, k, v


@functools.partial(jax.jit, static_argnums=0)
def call(kernel, cache, q, k, v, lengths, positions):
  return layout(kernel).attention(jnp.asarray(TABLE), lengths, positions)(1, q, k, v, cache)


def called(kernel, given=None):
  """(attention of the second call's tokens, the cache): two calls on the second of two layers."""
  given = given or drawn()
  index = np.arange(33)[None]
  first = np.where(index < LENGTHS[:, None], index, NOWHERE).astype(np.int32)
  _, cache = call(kernel, layout(kernel).allocate(9), *(x[:, :33] for x in given), np.zeros(3, np.int32), first)
  places = LENGTHS[:, None] + np.arange(MORE)[None]
  new = (np.take_along_axis(x, places[..., None, None], axis=1) for x in given)
  return call(kernel, cache, *new, LENGTHS.astype(np.int32), places.astype(np.int32))


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
  monkeypatch.setattr(paged_gpu, "attend", functools.partial(paged_gpu.attend, interpret=INTERPRET))


@pytest.fixture(params=[cache_lib.PLAIN, cache_lib.TRITON])
def kernel(request):
  return request.param


def stands_for(x):
  """What is kept of keys or values."""
  small, scale = map(np.asarray, jax.jit(cache_lib.quantize)(x))
  return small.astype(np.float32) * scale[..., None]


def test_attention_is_that_of_the_numbers_that_int8_stands_for(kernel):
  q, k, v = drawn()
  new = np.take_along_axis(q, (LENGTHS[:, None] + np.arange(MORE))[..., None, None], axis=1)
  got, cache = called(kernel)
  np.testing.assert_allclose(got, dense(new, stands_for(k), stands_for(v), LENGTHS), atol=1e-5)
  # Half of int8's step, at most, lies between a number and what is kept of it.
  assert (np.abs(stands_for(k) - k).max(axis=-1) <= 1.001 * np.abs(k).max(axis=-1) / 254).all()
  assert not any(np.asarray(x).any() for x in cache[::2])  # the first layer's pages and scales
  assert cache[1].dtype == (jnp.uint16 if kernel == cache_lib.PLAIN else jnp.int8)
  assert cache[3].dtype == jnp.float32 and not np.asarray(cache[3][7]).any()


def test_a_rows_numbers_depend_on_that_row_alone(kernel):
  together, _ = called(kernel)
  others = [np.where((np.arange(3) == 1)[:, None, None, None], x, x[::-1] * 3 + 1) for x in drawn()]
  among_others, _ = called(kernel, others)
  np.testing.assert_array_equal(together[1], among_others[1])
  assert np.abs(np.asarray(together[0] - among_others[0])).max() > 1e-3


def test_the_paths_agree():
  (plain, one), (kernel, two) = (called(kernel) for kernel in (cache_lib.PLAIN, cache_lib.TRITON))
  np.testing.assert_allclose(plain, kernel, atol=1e-5)
  # The same numbers in both caches: pairs [P, page, KV, h] and their scales, beside int8 [P, 2, KV, page, h].
  pairs = np.stack(cache_lib.unpair(one[1]), axis=1).transpose(0, 1, 3, 2, 4)
  np.testing.assert_array_equal(pairs, two[1])
  scales = np.asarray(one[3]).reshape(9, KV, 2, PAGE).transpose(0, 2, 1, 3)
  np.testing.assert_array_equal(scales, two[3])


def test_pairs_are_two_numbers():
  k, v = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
  pairs = cache_lib.pair(jnp.asarray(k, jnp.int8), jnp.asarray(v, jnp.int8))
  assert pairs.dtype == jnp.uint16 and len(np.unique(np.asarray(pairs))) == 2**16
  np.testing.assert_array_equal(cache_lib.unpair(pairs), (k, v))


def test_pages_go_to_the_host_and_come_back_bit_for_bit(kernel):
  _, cache = called(kernel)
  taken = jax.jit(cache_lib.take)(cache, jnp.array([5, 1, 8]))
  assert taken.dtype == jnp.uint8 and taken.shape == (3, 2, 2 * KV * PAGE * (SIZE + 4))
  elsewhere = jax.jit(cache_lib.put)(layout(kernel).allocate(9), jnp.array([2, 9, 0]), np.asarray(taken))
  for x, y in zip(cache, elsewhere, strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(y[2], x[5])
    np.testing.assert_array_equal(y[0], x[8])  # page 9 does not exist, and nothing else was written
    assert not np.asarray(y)[[1, *range(3, 9)]].any()
  copied = cache_lib.copy(cache, jnp.array([5]), jnp.array([7]))
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(y[7], x[5]), cache, copied)


SHAPE = DecoderConfig(
  vocab_size=16, d_model=512, num_layers=3, num_heads=8, num_kv_heads=4, head_dim=128, d_ff=64, rope_theta=1e4
)


@pytest.mark.parametrize("platform, kv_dtype, kernel, dtype, passes", [
  ("cpu", "model", cache_lib.PLAIN, "bfloat16", 3), ("cpu", "int8", cache_lib.PLAIN, "int8", 8),
  ("gpu", "int8", cache_lib.TRITON, "int8", 1), ("tpu", "model", cache_lib.RAGGED, "bfloat16", 1),
  ("tpu", "bfloat16", cache_lib.RAGGED, "bfloat16", 1),
  ("tpu", "int8", cache_lib.PLAIN, "int8", 8),  # JAX's kernel takes one scale for all tokens
])  # fmt: skip
def test_which_way_is_taken(platform, kv_dtype, kernel, dtype, passes):
  made = cache_lib.layout(SHAPE, 64, "bfloat16", platform, 2, kv_dtype=kv_dtype)
  assert (made.kernel, made.dtype) == (kernel, dtype)
  cache = jax.eval_shape(lambda: made.allocate(5))
  assert made.token_bytes * 5 * 64 == sum(x.size * x.dtype.itemsize for x in cache)
  assert made.passes == passes


def test_what_kernels_do_not_take_is_plain_or_refused():
  assert cache_lib.layout(SHAPE, 64, "float32", "tpu", kv_dtype="bfloat16").kernel == cache_lib.PLAIN
  made = cache_lib.layout(SHAPE, 64, "bfloat16", "gpu", kv_dtype="int8")
  most = 2**31 // (2 * 4 * 64 * 128)  # pages of 64 tokens in 2 GiB
  made.check(most)
  with pytest.raises(ValueError, match=rf"config\.rollout\.kv_dtype='int8' with 32,769 pages.*at most {most:,}"):
    made.check(most + 1)
  made.check(most + 1, tensor=2)
  made.check(2 * most + 1)  # above 4 GiB offsets have 64 bits
  cache_lib.layout(SHAPE, 64, "bfloat16", "gpu").check(most + 1)
