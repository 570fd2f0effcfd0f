"""The lane table and the chunk: records with named fields over one int32 array."""

import jax
import numpy as np

from ragrl_jax.engine.lanes import COLUMNS, FULL, NOTHING, RUNNING, TAIL, Chunk, LaneTable


def test_the_lane_table_is_one_array_with_the_same_fields_on_host_and_device():
  packed = np.zeros((3, COLUMNS + 4), np.int32)
  lanes = LaneTable.unpack(packed)
  values = LaneTable(1, 2, 1, 5, 6, 7, 8, key=(-9, 10), temperature=0.6, top_p=0.9, slot=3, ids=[20, 21])
  lanes.put(1, values)
  lanes.length[:] += 1
  assert packed[1, :7].tolist() == [1, 3, 1, 5, 6, 7, 8] and packed[1, 7:9].tolist() == [-9, 10]
  assert packed[1, COLUMNS:].tolist() == [20, 21, 0, 0]
  assert packed[[0, 2]].tolist() == [[0, 1] + [0] * 14] * 2  # a lane's values are its own
  # No two fields share a column, and every column has a field.
  assert sum(field[0].size for field in lanes) == COLUMNS + 4
  inside = jax.jit(LaneTable.unpack)(packed)
  for ours, theirs in zip(lanes, inside, strict=True):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
  assert inside.temperature[1] == np.float32(0.6) and inside.top_p[1] == np.float32(0.9)


def test_a_chunk_comes_back_bit_for_bit():
  # Two lanes, two steps of two places; the first lane kept one place of its first step, the second drew in one step.
  chunk = Chunk(
    np.array([[5, 6], [NOTHING, 4], [7, NOTHING], [8, NOTHING]], np.int32),
    np.array([[-0.1, -np.inf], [3.0, -1.0], [-1e-40, 0.0], [np.pi, 0.0]], np.float32),
    *np.array([[3, 2], [2, 1], [2, 1], [1, 1], [2, 0], [RUNNING, FULL]], np.int32),
  )
  packed = np.asarray(jax.jit(Chunk.pack)(chunk))
  assert packed.shape == (2 * 4 + TAIL, 2) and packed.dtype == np.int32
  there = Chunk.unpack(packed)
  assert there.tokens.tolist() == [[5, 6], [7, 4], [8, NOTHING], [NOTHING, NOTHING]]
  assert there.logprobs[:3, 0].tobytes() == chunk.logprobs[[0, 2, 3], 0].tobytes()
  assert there.logprobs[:2, 1].tobytes() == chunk.logprobs[:2, 1].tobytes()
  assert there.routes is None  # a model without experts
  for ours, theirs in zip(chunk[2:-1], there[2:-1], strict=True):
    assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()
  assert (there.count.tolist(), there.steps.tolist(), there.stop.tolist()) == ([3, 2], [2, 1], [RUNNING, FULL])
