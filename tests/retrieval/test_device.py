import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax.retrieval import vectors as vectors_lib
from ragrl_jax.retrieval.device import BLOCK_ROWS, DeviceIndex


def norm(vectors):
  return float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())


def brute_force(vectors, queries, k):
  scores = (queries.astype(np.float64)[:, None, :] * vectors.astype(np.float64)[None]).sum(axis=2).astype(np.float32)
  rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  return np.take_along_axis(scores, rows, axis=1), rows


def check(index, vectors, queries, k):
  scores, rows = brute_force(vectors, queries, k)
  found = index.search(queries, k)
  np.testing.assert_array_equal(np.array([r for _, r in found]), rows)
  np.testing.assert_array_equal(np.array([s for s, _ in found]), scores)


@pytest.mark.parametrize("num_devices", [1, 8])
def test_float32_equals_brute_force(num_devices):
  draw = np.random.default_rng(0)
  vectors, queries = draw.normal(size=(203, 12)).astype(np.float32), draw.normal(size=(5, 12)).astype(np.float32)
  # 203 rows on 8 devices: 26 per device, 21 on the last, in blocks of 8 (32 places per device).
  index = DeviceIndex(vectors, max_norm=norm(vectors), devices=jax.devices()[:num_devices], block_rows=8)
  check(index, vectors, queries, 10)
  check(index, vectors, queries[:3], 12)  # other sizes, the same compiled shapes
  check(index, vectors, queries, 203)  # all rows: every device gives all it has
  assert len(index.search(queries, 1000)[0][1]) == 203


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_rounding_on_the_devices_changes_no_answer(dtype, num_devices):
  draw = np.random.default_rng(1)
  vectors, queries = draw.normal(size=(150, 16)).astype(np.float32), draw.normal(size=(4, 16)).astype(np.float32)
  index = DeviceIndex(vectors, max_norm=norm(vectors), dtype=dtype, devices=jax.devices()[:num_devices], block_rows=16)
  assert index._stored[0].dtype == dict(bfloat16=jnp.int16, int8=jnp.int8)[dtype]  # a CPU holds bfloat16's bits
  check(index, vectors, queries, 9)


def test_a_device_scores_as_many_rows_at_a_time_as_suit_its_platform():
  vectors = np.ones((5000, 2), np.float32)
  assert DeviceIndex(vectors, max_norm=2.0, devices=jax.devices()[:1])._block == BLOCK_ROWS["cpu"] == 2048


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rows_that_rounding_swaps_are_found_in_their_true_order(dtype):
  # 200 rows whose scores differ by 2^-20: on the device they are equal, so the first candidates are arbitrary ones.
  vectors = np.ones((200, 4), np.float32)
  vectors[:, 0] += np.random.default_rng(0).permutation(200).astype(np.float32) * 2.0**-20
  index = DeviceIndex(vectors, max_norm=norm(vectors), dtype=dtype, devices=jax.devices()[:1], block_rows=8)
  check(index, vectors, np.float32([[1.0, 0.5, 0.25, 0.125]]), 5)


def test_int8_finds_all_of_the_best_among_four_times_as_many_candidates():
  # Vectors around 64 centres. The candidates of the first pass are re-scored; none of the ten best is missing.
  draw = np.random.default_rng(2)
  made = draw.normal(size=(64, 96))[draw.integers(64, size=4096)] + 0.5 * draw.normal(size=(4096, 96))
  vectors = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
  queries, k = vectors[:32] + np.float32(0.02) * draw.normal(size=(32, 96)).astype(np.float32), 10
  index = DeviceIndex(vectors, max_norm=norm(vectors), dtype="int8", devices=jax.devices()[:1], block_rows=512)
  _, rows = brute_force(vectors, queries, k)
  _, rough = index._rough(queries, 4 * k)
  assert all(set(best) <= set(candidates) for best, candidates in zip(rows, rough))  # recall 1.0 after re-scoring 4k
  check(index, vectors, queries, k)


def test_an_int8_store_is_searched_as_it_is(tmp_path):
  draw = np.random.default_rng(3)
  made = draw.normal(size=(70, 8)).astype(np.float32)
  store = vectors_lib.create(tmp_path, "int8", made.shape)
  store[0:70] = made
  store.flush()
  stored = vectors_lib.mapped(tmp_path)
  index = DeviceIndex(stored, max_norm=norm(stored[:]), dtype="int8", devices=jax.devices()[:2])
  assert index._lost == 0.0
  check(index, stored[:], made[:3], 7)


def test_each_device_holds_only_its_share():
  vectors = np.arange(64, dtype=np.float32).reshape(32, 2)
  index = DeviceIndex(vectors, max_norm=norm(vectors), devices=jax.devices())
  assert [shard.data.shape for shard in index._stored[0].addressable_shards] == [(4, 2)] * 8
  np.testing.assert_array_equal(index._stored[0].addressable_shards[3].data, vectors[12:16])


def test_copies_on_several_devices_keep_the_order_of_rows():
  vectors = np.tile(np.float32([[3.0, 4.0]]), (40, 1))
  vectors[17] = [5.0, 5.0]
  index = DeviceIndex(vectors, max_norm=norm(vectors), block_rows=2)
  ((scores, rows),) = index.search(np.float32([[1.0, 1.0]]), 6)
  assert rows.tolist() == [17, 0, 1, 2, 3, 4] and scores.tolist() == [10.0] + [7.0] * 5


def test_padding_is_never_found():
  vectors = -np.ones((9, 3), np.float32)  # mostly padding, whose zeros would score 0
  index = DeviceIndex(vectors, max_norm=norm(vectors))
  ((scores, rows),) = index.search(np.ones((1, 3), np.float32), 9)
  assert rows.tolist() == list(range(9)) and (scores == -3).all()


def test_few_shapes_are_compiled():
  draw = np.random.default_rng(2)
  vectors = draw.normal(size=(100, 4)).astype(np.float32)
  index = DeviceIndex(vectors, max_norm=norm(vectors), devices=jax.devices()[:1])
  for n in range(1, 9):
    for k in (1, 3, 5, 8):
      index.search(draw.normal(size=(n, 4)).astype(np.float32), k)
  assert index._scan._cache_size() <= 4  # 1, 2, 4, 8 queries; all these k compute 16 results


def test_another_dtype_is_refused():
  with pytest.raises(ValueError, match="'bfloat16' or 'int8'"):
    DeviceIndex(np.eye(2, dtype=np.float32), max_norm=1.0, dtype="int4")
