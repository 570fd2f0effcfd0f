"""Both ways of writing to the cache and the way of reading it, against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.models import cache as cache_lib

L, R, KV, T, H = 2, 5, 2, 12, 4
PAST = np.iinfo(np.int32).max


def filled(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_what_is_written_where():
  for way in [cache_lib._scatter, cache_lib._one_by_one]:
    for rows, first, counts in [
      ([3, 0], [0, 5], [4, 4]),  # all tokens count
      ([1, 4], [7, 10], [2, 1]),  # some; the second would reach past the end
      ([2, 5], [8, 3], [4, 4]),  # up to the end; the second row does not exist
      ([0, 1], [3, 12], [0, 0]),  # none; a full row
    ]:
      cache = cache_lib.Cache(filled(0, L, R, KV, T, H), filled(1, L, R, KV, T, H))
      new = cache_lib.Fresh(filled(2, L, 2, KV, 4, H), filled(3, L, 2, KV, 4, H))
      index = np.arange(4)[None]
      positions = np.where(index < np.asarray(counts)[:, None], np.asarray(first)[:, None] + index, PAST).astype(
        np.int32
      )
      want = [np.array(x) for x in cache]
      for x, y in zip(want, new):
        for i, (row, start, count) in enumerate(zip(rows, first, counts)):
          if row < R:
            x[:, row, :, start : start + count] = y[:, i, :, :count]
      got = jax.jit(way)(cache, new, jnp.asarray(rows, jnp.int32), jnp.asarray(positions))
      for x, y in zip(got, want):
        np.testing.assert_array_equal(x, y)


def test_a_block_of_each_row():
  x = filled(0, L, R, KV, T, H)
  got = cache_lib._block(x, 1, jnp.asarray([4, 0, R]), 2, 4)  # a row that does not exist reads the last one
  np.testing.assert_array_equal(got, np.stack([x[1, row, :, 8:12] for row in (4, 0, 4)]))
