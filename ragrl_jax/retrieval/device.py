"""Exact search on the accelerators: inner products with sharded vectors, block by block, then the best rows."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.retrieval import ranking

AXIS = "passages"
GROUP = 128  # rows per group (at most): the first pass keeps the best score of each group


class DeviceIndex:
  """All vectors in the devices' memory, with an equal share of the rows on each device.

  The numbers of queries and of passages are rounded up to powers of two, and each pair compiles once. The result equals
  brute force over the vectors as stored on the devices: the host computes the candidates' scores again, and equal
  scores are ordered by row.
  """

  on_device = True

  def __init__(
    self, vectors: np.ndarray, *, max_norm: float, dtype: str = "float32", devices=None, block_rows: int = 1 << 14
  ):
    """
    Args:
      vectors: [N, D], memory-mapped or not; read once, one device's share at a time.
      max_norm: the largest Euclidean norm of a vector.
      dtype: "float32", or "bfloat16": half the memory, queries and vectors rounded, sums in float32.
      devices: the devices to use; by default this process's own.
      block_rows: rows that a device scores at a time; the scores take [queries, block_rows] float32.

    Raises:
      ValueError: another dtype.
    """
    if dtype not in ("float32", "bfloat16"):
      raise ValueError(f"dtype={dtype!r}: vectors on devices are 'float32' or 'bfloat16'.")
    self._dtype, self._vectors = jnp.dtype(dtype), vectors
    self._max_norm = max_norm * (1.0 if dtype == "float32" else 1.01)  # rounding to 8 bits can lengthen a vector
    devices = list(jax.local_devices() if devices is None else devices)
    total, dim = vectors.shape
    share = -(-total // len(devices))
    self._block = min(block_rows, share)
    share = -(-share // self._block) * self._block
    self._shape = share * len(devices), dim
    mesh = Mesh(np.array(devices), (AXIS,))
    self._everywhere = NamedSharding(mesh, PartitionSpec())
    self._stored = jax.make_array_from_callback(self._shape, NamedSharding(mesh, PartitionSpec(AXIS, None)), self._part)
    scan = jax.shard_map(
      functools.partial(best_of_all, block=self._block, total=total),
      mesh=mesh,
      in_specs=(PartitionSpec(AXIS, None), PartitionSpec(), PartitionSpec()),
      out_specs=PartitionSpec(),
      check_vma=False,
    )
    self._scan = jax.jit(scan)

  def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """float32 [n, D] → n pairs (scores, rows), best first, each of min(k, N) entries."""
    queries = queries.astype(self._dtype).astype(np.float32)
    k = min(k, len(self._vectors))
    return ranking.exact(self._rough, _Rounded(self._vectors, self._dtype), queries, k, max_norm=self._max_norm)

  def _rough(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The best rows by float32 sums, computed in one of a few compiled shapes."""
    wanted = min(_power_of_two(count), len(self._vectors))
    padded = np.zeros((_power_of_two(len(queries)), queries.shape[1]), self._dtype)
    padded[: len(queries)] = queries.astype(self._dtype)
    places = np.zeros(wanted, np.int32)  # its length tells the compiled program how many to keep
    scores, rows = self._scan(self._stored, *jax.device_put((padded, places), self._everywhere))
    found = slice(0, len(queries)), slice(0, count)
    return np.asarray(scores)[found], np.asarray(rows)[found].astype(np.int64)

  def _part(self, index: tuple[slice, ...]) -> np.ndarray:
    """One device's rows, with zeros after the last passage."""
    start, stop, _ = index[0].indices(self._shape[0])
    part = np.zeros((stop - start, self._shape[1]), self._dtype)
    held = np.asarray(self._vectors[start:stop])
    part[: len(held)] = held.astype(self._dtype)
    return part


class _Rounded:
  """Rows of an array, rounded to the devices' dtype."""

  def __init__(self, vectors: np.ndarray, dtype):
    self._vectors, self._dtype, self.shape = vectors, dtype, vectors.shape

  def __getitem__(self, rows: np.ndarray) -> np.ndarray:
    return self._vectors[rows].astype(self._dtype)


def best_of_all(stored: jax.Array, queries: jax.Array, places: jax.Array, *, block: int, total: int):
  """The best rows of this device's share, then of all shares. Equal scores keep the order of their rows.

  The first pass reads the whole share once and keeps the best score of each group of rows. The k best rows lie in the k
  groups with the highest best scores. The second pass scores only the rows of those groups.

  Args:
    stored: this device's rows [S, D].
    queries: [n, D].
    places: [count]; only its length is used.
    block: rows scored at a time; divides S.
    total: number of rows on all devices; rows beyond it are padding.

  Returns:
    (float32 scores, int32 rows), both [n, count], best first. The last score is at least the first-pass score of every
    row that is left out.
  """
  share, count = stored.shape[0], places.shape[0]
  keep, first = min(count, share), jax.lax.axis_index(AXIS) * share
  group = math.gcd(block, GROUP)
  precision = jax.lax.Precision.HIGHEST if stored.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
  dot = functools.partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
  real = lambda scores, rows: jnp.where(first + rows < total, scores, -jnp.inf)

  def step(_, i):
    scores = dot("nd,sd->ns", queries, jax.lax.dynamic_slice_in_dim(stored, i * block, block))
    scores = real(scores, (i * block + jnp.arange(block, dtype=jnp.int32))[None])
    return None, scores.reshape(len(queries), block // group, group).max(axis=2)

  _, tops = jax.lax.scan(step, None, jnp.arange(share // block, dtype=jnp.int32))
  tops, groups = jax.lax.top_k(tops.transpose(1, 0, 2).reshape(len(queries), -1), min(keep, share // group))
  left = tops[:, -1] if keep < share // group else jnp.full((len(queries),), -jnp.inf)

  def again(given):
    query, groups = given
    rows = (jnp.sort(groups)[:, None] * group + jnp.arange(group, dtype=jnp.int32)[None]).reshape(-1)  # sorted
    scores, at = jax.lax.top_k(real(dot("d,sd->s", query, stored[rows]), rows), keep)
    return scores, first + rows[at]

  best = jax.lax.map(again, (queries, groups))  # one query at a time, so that only its candidates are gathered
  scores, rows = (jax.lax.all_gather(x, AXIS, axis=1, tiled=True) for x in best)
  scores, at = jax.lax.top_k(scores, count)
  return scores.at[:, -1].max(jax.lax.pmax(left, AXIS)), jnp.take_along_axis(rows, at, axis=1)


def _power_of_two(n: int) -> int:
  return 1 << (n - 1).bit_length()
