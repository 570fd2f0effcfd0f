"""Writing to pages, and attention over pages, against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paged_kit import dense, scattered

from ragrl_jax.models import cache as cache_lib

PAGES, KV, PAGE, H, TABLE = 7, 2, 4, 4, 3
NOWHERE = cache_lib.DROPPED
filled = lambda seed, *shape: np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_where_tokens_are_written():
  for table, positions in [
    ([[3, 0, 5], [1, 2, 4]], [[0, 1, 2], [5, 6, 7]]),  # all tokens count, and one row starts inside a page
    ([[3, 0, 5], [1, 2, 4]], [[3, 4, 5], [11, 12, 13]]),  # across a page boundary; past the end of the table
    ([[6, 0, 0], [1, 6, 4]], [[2, NOWHERE, NOWHERE], [NOWHERE] * 3]),  # some tokens count, or none
  ]:
    pages, k, v = filled(0, PAGES, 2, KV, PAGE, H), filled(1, 2, 3, KV, H), filled(2, 2, 3, KV, H)
    want = pages.copy()
    for i in range(2):
      for j, place in enumerate(positions[i]):
        if place < TABLE * PAGE:
          want[table[i][place // PAGE], :, :, place % PAGE] = k[i, j], v[i, j]
    got = jax.jit(cache_lib._write)(pages, k, v, jnp.asarray(table), jnp.asarray(positions, jnp.int32))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("window", [None, 1, 4, 6])
def test_attention_over_pages_is_attention_over_the_conversation(window):
  # Two sequences share their first page. G = 2 query heads share a key-value head.
  lengths, t = np.array([5, 9], np.int32), 3
  q, keys, values, pages, table = scattered(2 * KV, KV, H, PAGE, t, lengths)
  table[1, 0], keys[1, :PAGE], values[1, :PAGE] = table[0, 0], keys[0, :PAGE], values[0, :PAGE]
  positions = lengths[:, None] + np.arange(t, dtype=np.int32)
  new = [np.take_along_axis(x, positions[..., None, None], axis=1) for x in (keys, values)]
  for i, j in np.ndindex(2, t):  # these the call writes
    pages[table[i, positions[i, j] // PAGE], :, :, positions[i, j] % PAGE] = np.nan
  pages = np.nan_to_num(pages, nan=7.0)
  layout = cache_lib.Layout(cache_lib.PLAIN, 1, KV, H, PAGE, jnp.float32, (window,))
  attend = layout.attention(jnp.asarray(table), jnp.asarray(lengths), jnp.asarray(positions))
  got, (after,) = jax.jit(lambda *x: attend(0, *x))(q, *new, (jnp.asarray(pages),))
  np.testing.assert_allclose(got, dense(q, keys, values, lengths, window or 99), rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(after[table[0, 0]], pages[table[0, 0]])  # the shared page was not written to


def test_pages_are_copied_taken_and_restored():
  cache = tuple(jnp.asarray(filled(seed, PAGES, 2, KV, PAGE, H)) for seed in range(2))
  nowhere = PAGES
  copied = cache_lib.copy(cache, jnp.array([1, 3, 0]), jnp.array([5, 6, nowhere]))
  want = [np.array(x) for x in cache]
  for x in want:
    x[5], x[6] = x[1], x[3]
  np.testing.assert_array_equal(np.stack(copied), np.stack(want))
  taken = cache_lib.take(cache, jnp.array([4, 2]))
  assert taken.shape == (2, 2, 2, KV, PAGE, H)
  emptied = tuple(jnp.zeros_like(x) for x in cache)
  back = cache_lib.put(emptied, jnp.array([0, nowhere]), taken)
  np.testing.assert_array_equal(np.stack(back)[:, 0], np.stack(cache)[:, 4])
  assert not np.stack(back)[:, 1:].any()
