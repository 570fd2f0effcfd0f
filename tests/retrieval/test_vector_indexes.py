"""Searches in vectors, on the CPU (FAISS) and on devices, against brute force."""

import functools
import itertools
import types

import faiss
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from ragrl_jax.retrieval import device as device_lib, faiss_index, vectors as vectors_lib
from ragrl_jax.retrieval.device import DeviceIndex
from ragrl_jax.retrieval.vectors import rank_exactly, rescore


def brute_force(vectors, queries, k):
  """Every inner product in float64, rounded to float32. Best first; equal scores by row."""
  scores = (queries.astype(np.float64)[:, None, :] * vectors.astype(np.float64)[None]).sum(axis=2).astype(np.float32)
  rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  return np.take_along_axis(scores, rows, axis=1), rows


def drawn(seed, rows, queries, dim):
  """float32 vectors and queries."""
  draw = np.random.default_rng(seed)
  return (draw.normal(size=(count, dim)).astype(np.float32) for count in (rows, queries))


norm = lambda vectors: float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
flat = lambda vectors, **settings: faiss_index.Flat(vectors, max_norm=norm(vectors), **settings)


def clustered(n, dim, clusters, seed):
  """Unit vectors around `clusters` centres, like sentences around topics."""
  draw = np.random.default_rng(seed)
  centres = draw.normal(size=(clusters, dim))
  vectors = centres[draw.integers(clusters, size=n)] + 0.35 * draw.normal(size=(n, dim))
  return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def check(index, vectors, queries, k):
  scores, rows = brute_force(vectors, queries, k)
  found = index.search(queries, k)
  np.testing.assert_array_equal(np.array([r for _, r in found]), rows)
  np.testing.assert_array_equal(np.array([s for s, _ in found]), scores)


@pytest.mark.parametrize("dtype, block", [("float32", faiss_index.BLOCK), ("float16", 37)])
@pytest.mark.parametrize("num_queries", [1, 33])  # 33: FAISS uses BLAS for batches of 20 and more
def test_flat_equals_brute_force(dtype, block, num_queries, monkeypatch):
  monkeypatch.setattr(faiss_index, "BLOCK", block)
  vectors, queries = drawn(0, 500, num_queries, 24)
  check(flat(vectors.astype(dtype)), vectors.astype(dtype), queries, 10)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.data())
def test_ties_and_near_ties(data):
  """With few distinct values, most scores are equal or differ in the last bit. The order must equal brute force's."""
  values = st.sampled_from([0.0, 1.0, -1.0, 0.1, np.float32(0.1) + np.float32(2**-27), 1e-3, 3.0])
  rows, dim = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
  vector = st.lists(values, min_size=dim, max_size=dim)
  vectors = np.array(data.draw(st.lists(vector, min_size=rows, max_size=rows)), dtype=np.float32)
  query = np.array([data.draw(vector)], dtype=np.float32)
  k = data.draw(st.integers(1, 45))
  check(flat(vectors), vectors, query, k)


def test_a_whole_corpus_of_copies_is_ranked_by_row():
  # 3,000 copies: k + 8 candidates can be any of them, so the search must widen until it has seen all.
  vectors = np.tile(np.random.default_rng(2).normal(size=(1, 16)).astype(np.float32), (3000, 1))
  for count in (1, 25):
    check(flat(vectors), vectors, vectors[:count], 5)


def test_exact_widens_until_the_rough_scores_error_bound_is_met():
  # Rough scores have an error up to the bound, which hides the best passage (row 90) behind 60 others.
  draw = np.random.default_rng(3)
  vectors = np.ones((100, 4), np.float32)
  vectors[90] += np.float32(2**-22)
  slack = 2.0 * 4 * 2.0**-24 * np.linalg.norm(vectors[90]) * 2.0
  noise = draw.permutation(np.linspace(-slack / 2, 0, 100))
  noise[90] = -slack / 4

  def rough(queries, count):
    scores = vectors.astype(np.float64) @ queries[0].astype(np.float64) + noise
    rows = np.argsort(-scores)[:count]
    return scores[rows][None].astype(np.float64), rows[None]

  ((_, rows),) = rank_exactly(rough, vectors, np.ones((1, 4), np.float32), 2, max_norm=np.linalg.norm(vectors[90]))
  assert rows.tolist() == [90, 0]


@pytest.mark.parametrize("factory, options, least", [
  ("HNSW32", "efSearch=64", 0.95), ("IVF64,Flat", "nprobe=8", 0.95), ("IVF64,PQ16", "nprobe=8", 0.9),
  ("PCA24,IVF64,PQ12", "nprobe=8", 0.85), ("SQfp16", "", 0.99),
])  # fmt: skip
def test_approximate_indexes_find_nearly_everything(tmp_path, factory, options, least):
  vectors, queries = clustered(4000, 32, 64, seed=0), clustered(64, 32, 64, seed=0)
  truth = [set(rows) for _, rows in flat(vectors).search(queries, 10)]
  faiss_index.build(vectors, tmp_path / "i", factory=factory, threads=1, train_rows=2500, progress=False)
  found = faiss_index.Approximate(tmp_path / "i", vectors, options=options, oversample=4).search(queries, 10)
  recall = np.mean([len(want & set(rows)) / 10 for want, (_, rows) in zip(truth, found)])
  assert recall >= least
  for (scores, rows), query in zip(found, queries):  # passages it finds have their exact score
    np.testing.assert_array_equal(scores, rescore(vectors, query, rows))


def test_one_thread_builds_the_same_file_twice(tmp_path):
  vectors = clustered(1000, 16, 10, seed=1)
  for factory in ("HNSW16", "IVF16,PQ8x4"):
    for name in "ab":
      faiss_index.build(vectors, tmp_path / name, factory=factory, threads=1, progress=False)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_only_a_long_search_uses_several_threads(monkeypatch):
  vectors = np.eye(4, dtype=np.float32)
  faiss.omp_set_num_threads(2)
  flat(vectors, threads=3).search(vectors, 2)
  assert faiss.omp_get_max_threads() == 1  # the setting of the thread that searched
  monkeypatch.setattr(faiss_index, "LONG", 64)
  flat(vectors, threads=3).search(vectors, 2)  # 4 queries of 16 numbers
  assert faiss.omp_get_max_threads() == 3


def test_a_large_batch_is_searched_in_parts(tmp_path):
  vectors = clustered(500, 16, 20, seed=3)
  faiss_index.build(vectors, tmp_path / "i", factory="IVF20,PQ8x4", threads=1, progress=False)
  index = faiss_index.Approximate(tmp_path / "i", vectors, options="nprobe=4", threads=2)
  for query, (scores, rows) in zip(vectors[:100], index.search(vectors[:100], 5), strict=True):
    ((alone, at),) = index.search(query[None], 5)
    np.testing.assert_array_equal(rows, at)
    np.testing.assert_array_equal(scores, alone)


@pytest.mark.parametrize("factory, options, says", [
  ("HNSV32", "", "is not an index that FAISS can make"), ("IVF8,PQ7", "", "is not an index that FAISS can make"),
  ("IVF512,Flat", "", "cannot be trained on 100 vectors"), ("IVF4,Flat", "nprob=3", "do not fit this index"),
])  # fmt: skip
def test_what_faiss_cannot_do_is_refused(tmp_path, factory, options, says):
  with pytest.raises(ValueError, match=says):
    faiss_index.build(clustered(100, 16, 4, seed=0), tmp_path / "i", factory=factory, options=options, progress=False)
  assert not (tmp_path / "i").exists()


def test_an_index_of_other_vectors_is_refused(tmp_path):
  faiss_index.build(clustered(100, 16, 4, seed=0), tmp_path / "i", factory="HNSW8", progress=False)
  with pytest.raises(ValueError, match="an index of 100 vectors of 16 dimensions, but the folder has 99 vectors of 16"):
    faiss_index.Approximate(tmp_path / "i", clustered(99, 16, 4, seed=0))


def on_devices(vectors, *, devices=None, block_rows=device_lib.BLOCK_ROWS["cpu"], **settings):
  """An index on the first `devices`, by default on those of this process."""
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(device_lib, "BLOCK_ROWS", dict(cpu=block_rows))
    chosen = jax.devices()[:devices] if devices else None
    return DeviceIndex(vectors, max_norm=norm(vectors[:]), devices=chosen, **settings)


@pytest.mark.parametrize("num_devices", [1, 8])
def test_float32_equals_brute_force(num_devices):
  vectors, queries = drawn(0, 203, 5, 12)
  # 203 rows on 8 devices: 26 per device, 21 on the last, in blocks of 8 (32 places per device).
  index = on_devices(vectors, devices=num_devices, block_rows=8)
  check(index, vectors, queries, 10)
  check(index, vectors, queries[:3], 12)  # other sizes, the same compiled shapes
  check(index, vectors, queries, 203)  # all rows: every device gives all it has
  assert len(index.search(queries, 1000)[0][1]) == 203


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_rounding_on_the_devices_changes_no_answer(dtype, num_devices):
  vectors, queries = drawn(1, 150, 4, 16)
  index = on_devices(vectors, dtype=dtype, devices=num_devices, block_rows=16)
  assert index._stored[0][0].dtype == dict(bfloat16=jnp.int16, int8=jnp.int8)[dtype]  # a CPU holds bfloat16's bits
  check(index, vectors, queries, 9)


def test_a_share_is_cut_into_parts_and_blocks_with_little_padding():
  one = jax.devices()[:1]
  assert device_lib.cut(5000, one) == (1, 5088, 5088, 1696)  # three blocks of at most 2,048, in groups of 32
  assert device_lib.cut(5000, jax.devices()[:8]) == (1, 640, 640, 640) and device_lib.cut(7, one) == (1, 7, 7, 7)
  assert device_lib.cut(1_000_000, one) == (1, 16 * 31 * 2048, 31 * 2048, 2048)
  gpu = [types.SimpleNamespace(platform="gpu")]  # a part is one product
  assert device_lib.cut(21_000_000, gpu) == (21, 1_000_064, 1_000_064, 1_000_064)


@pytest.mark.parametrize("num_devices", [1, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("total", [5, 64, 130, 259])
def test_hard_cases_are_found_as_by_sorting(num_devices, total, monkeypatch):
  """A vector of one number is its score. Groups have 8 rows, blocks 16, chunks 32, parts 64: ties at every border."""
  for name, count in dict(PART_ROWS=64, CHUNK_ROWS=32, GROUPS=8).items():
    monkeypatch.setattr(device_lib, name, dict(cpu=count))
  monkeypatch.setattr(device_lib, "scan_of", functools.cache(device_lib.scan_of))  # the cases share its programs
  draw, n = np.random.default_rng(total), np.arange(total)
  borders, nothing = np.where((n % 8 == 0) | (n % 8 == 7), 1.0, 0.5), np.where(n % 3 == 0, -np.inf, -2.0)
  cases = dict(equal=np.zeros(total), borders=borders, copies=draw.integers(3, size=total) - 1.0, rising=n / 512)
  cases |= dict(one_group=np.where(n < 8, 9.0 - n, -1.0), nothing=nothing, all_lost=np.full(total, -np.inf))
  for name, scores in cases.items():
    with np.errstate(invalid="ignore"):  # -inf less itself
      index = on_devices(np.float32(scores)[:, None], devices=num_devices, block_rows=16)
    for count in (16, total):
      found, rows = index._rough(np.ones((1, 1), np.float32), count)
      order = np.argsort(-scores, kind="stable")[: min(count, total)]
      np.testing.assert_array_equal(rows[0], order, err_msg=name)
      np.testing.assert_array_equal(found[0], np.float32(scores[order]), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_many_parts_equal_brute_force(dtype, monkeypatch):
  monkeypatch.setattr(device_lib, "PART_ROWS", dict(cpu=64))
  monkeypatch.setattr(device_lib, "CHUNK_ROWS", dict(cpu=32))
  draw = np.random.default_rng(5)
  vectors = draw.integers(-2, 3, (259, 8)).astype(np.float32)  # many equal scores
  vectors[100:140] = vectors[60]
  index = on_devices(vectors, dtype=dtype, devices=2, block_rows=16)
  assert len(index._stored[0]) == 3
  check(index, vectors, np.concatenate([vectors[58:62], draw.normal(size=(1, 8)).astype(np.float32)]), 20)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rows_that_rounding_swaps_are_found_in_their_true_order(dtype):
  # 200 rows whose scores differ by 2^-20: on the device they are equal, so the first candidates are arbitrary ones.
  vectors = np.ones((200, 4), np.float32)
  vectors[:, 0] += np.random.default_rng(0).permutation(200).astype(np.float32) * 2.0**-20
  check(on_devices(vectors, dtype=dtype, devices=1, block_rows=8), vectors, np.float32([[1.0, 0.5, 0.25, 0.125]]), 5)


def test_int8_finds_all_of_the_best_among_four_times_as_many_candidates():
  # Vectors around 64 centres. The candidates of the first pass are re-scored; none of the ten best is missing.
  draw = np.random.default_rng(2)
  made = draw.normal(size=(64, 96))[draw.integers(64, size=4096)] + 0.5 * draw.normal(size=(4096, 96))
  vectors = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
  queries, k = vectors[:32] + np.float32(0.02) * draw.normal(size=(32, 96)).astype(np.float32), 10
  index = on_devices(vectors, dtype="int8", devices=1, block_rows=512)
  _, rows = brute_force(vectors, queries, k)
  _, rough = index._rough(queries, 4 * k)
  assert all(set(best) <= set(candidates) for best, candidates in zip(rows, rough))  # recall 1.0 after re-scoring 4k
  check(index, vectors, queries, k)


def test_an_int8_store_is_searched_as_it_is(tmp_path):
  made = np.random.default_rng(3).normal(size=(70, 8)).astype(np.float32)
  store = vectors_lib.create(tmp_path, "int8", made.shape)
  store[0:70] = made
  store.flush()
  stored = vectors_lib.open_mapped(tmp_path)
  index = on_devices(stored, dtype="int8", devices=2)
  assert index._lost == 0.0
  check(index, stored[:], made[:3], 7)


def test_each_device_holds_only_its_share():
  vectors = np.arange(64, dtype=np.float32).reshape(32, 2)
  index = on_devices(vectors, devices=8)
  ((stored,), scales) = index._stored
  assert [shard.data.shape for shard in stored.addressable_shards] == [(4, 2)] * 8 and scales is None
  np.testing.assert_array_equal(stored.addressable_shards[3].data, vectors[12:16])


def test_copies_on_several_devices_keep_the_order_of_rows_and_padding_is_never_found():
  vectors = np.tile(np.float32([[3.0, 4.0]]), (40, 1))
  vectors[17] = [5.0, 5.0]
  check(on_devices(vectors, block_rows=2), vectors, np.ones((1, 2), np.float32), 6)
  negative = -np.ones((9, 3), np.float32)  # mostly padding, whose zeros would score 0
  check(on_devices(negative), negative, np.ones((1, 3), np.float32), 9)


def test_few_shapes_are_compiled():
  vectors, queries = drawn(2, 100, 8, 4)
  index = on_devices(vectors, devices=1)
  for n, k in itertools.product(range(1, 9), (1, 3, 5, 8)):
    index.search(queries[:n], k)
  assert index._scan._cache_size() <= 4  # 1, 2, 4, 8 queries; all these k compute 16 results


def test_another_dtype_is_refused():
  refused("'bfloat16' or 'int8'", DeviceIndex, np.eye(2, dtype=np.float32), max_norm=1.0, dtype="int4")
