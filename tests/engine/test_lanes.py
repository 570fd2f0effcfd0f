"""The lane table and the chunk: records with names over one array of int32."""

import jax
import numpy as np

from ragrl_jax.engine.lanes import COLUMNS, FULL, RUNNING, Chunk, LaneTable


def test_the_lane_table_is_one_array_with_the_same_fields_on_host_and_device():
  packed = np.zeros((3, COLUMNS), np.int32)
  lanes = LaneTable.of(packed)
  values = LaneTable(1, 2, 1, 5, 6, 7, 8, key=(-9, 10), temperature=0.6, top_p=0.9)
  lanes.put(1, values)
  lanes.length[:] += 1
  assert packed[1, :7].tolist() == [1, 3, 1, 5, 6, 7, 8] and packed[1, 7:9].tolist() == [-9, 10]
  assert packed[[0, 2]].tolist() == [[0, 1] + [0] * 9] * 2  # a lane's values are its own
  # No two fields share a column, and every column has a field.
  assert sum(field[0].size for field in lanes) == COLUMNS
  inside = jax.jit(LaneTable.of)(packed)
  for ours, theirs in zip(lanes, inside, strict=True):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
  assert inside.temperature[1] == np.float32(0.6) and inside.top_p[1] == np.float32(0.9)


def test_a_chunk_comes_back_bit_for_bit():
  # Two lanes, three steps; the second ended after one.
  chunk = Chunk(
    np.array([[5, 6], [7, 0], [8, 0]], np.int32),
    np.array([[-0.1, -np.inf], [-1e-40, 0.0], [np.pi, 0.0]], np.float32),
    np.array([3, 1], np.int32),
    np.array([2, 0], np.int32),
    np.array([RUNNING, FULL], np.int32),
  )
  packed = np.asarray(jax.jit(Chunk.pack)(chunk))
  assert packed.shape == (2 * 3 + 3, 2) and packed.dtype == np.int32
  for ours, theirs in zip(chunk, Chunk.of(packed), strict=True):
    assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()
