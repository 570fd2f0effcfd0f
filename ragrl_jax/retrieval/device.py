"""Exact search on the accelerators: inner products with sharded vectors, block by block, then the best rows.

The devices find candidates with vectors in float32, bfloat16 or int8. The host computes the candidates' scores again
from the stored vectors. It fetches more candidates until rounding cannot hide a better row. So every dtype gives the
same answer.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.retrieval.vectors import Int8, quantise, rank_exactly

AXIS = "passages"
GROUPS = dict(cpu=32, tpu=128, gpu=128)  # rows per group: the first pass keeps the best score of each group
DTYPES = ("float32", "bfloat16", "int8")
TOGETHER = 8  # queries whose candidates are gathered at a time; on a CPU 1
BLOCK_ROWS = dict(cpu=1 << 11, tpu=1 << 14, gpu=1 << 17)  # scored at a time: fits a CPU's cache; few launches on a GPU
FEWEST = 16  # queries of a product on a CPU: products of int8 and bfloat16 matrices are slow for single vectors


class DeviceIndex:
  """All vectors in the devices' memory, with an equal share of the rows on each device.

  The numbers of queries and of passages are rounded up to powers of two, and each pair compiles once. The result is
  that of brute force over the stored vectors. Equal scores are ordered by row.
  """

  on_device = True

  def __init__(self, vectors: Any, *, max_norm: float, dtype: str = "float32", devices=None, block_rows: int = 0):
    """
    Args:
      vectors: [N, D], in memory or memory-mapped (`vectors.open_mapped`); read once, one device's share at a time.
      max_norm: the largest Euclidean norm of a vector.
      dtype: on the devices: "float32", "bfloat16" (half the memory), or "int8" with a scale for each row (a quarter).
      devices: the devices to use; by default those of this process.
      block_rows: most rows that a device scores at a time; 0 for BLOCK_ROWS. The scores take [queries, block_rows]
        float32.

    Raises:
      ValueError: the dtype is unknown.
    """
    if dtype not in DTYPES:
      raise ValueError(f"dtype={dtype!r}: it must be 'float32', 'bfloat16' or 'int8'.")
    self._dtype, self._vectors, self._max_norm = np.dtype(dtype), vectors, max_norm
    self._lost = 0.0  # largest norm of the difference between a stored vector and its rounded copy on the device
    devices = list(jax.local_devices() if devices is None else devices)
    total, dim = vectors.shape
    share = -(-total // len(devices))
    self._block = min(block_rows or BLOCK_ROWS[devices[0].platform], share)
    share = -(-share // self._block) * self._block
    self._shape = share * len(devices), dim
    mesh = Mesh(np.array(devices), (AXIS,))
    self._everywhere = NamedSharding(mesh, PartitionSpec())
    self._stored = self._placed(mesh, share)
    self._scan = scan_of(mesh, block=self._block, total=total)

  def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """float32 [n, D] → n pairs (scores, rows), best first, each of min(k, N) entries."""
    queries, k = queries.astype(np.float32), min(k, len(self._vectors))
    # The error of a score is at most |q' - q| |v| + |q'| |v' - v|, where q' and v' are the rounded vectors.
    norm = lambda x: np.linalg.norm(x.astype(np.float64), axis=1)
    narrow = _seen(*self._asked(queries), len(queries))
    errors = norm(narrow - queries) * self._max_norm + norm(narrow) * self._lost
    first = _power_of_two(k + 8 if self._dtype == np.float32 else max(k + 8, 4 * k))
    return rank_exactly(self._rough, self._vectors, queries, k, max_norm=self._max_norm, errors=errors, first=first)

  def _rough(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The best rows by the devices' scores, computed in one of a few compiled shapes."""
    wanted = min(_power_of_two(count), len(self._vectors))
    padded = np.zeros((_power_of_two(len(queries)), queries.shape[1]), np.float32)
    padded[: len(queries)] = queries
    places = np.zeros(wanted, np.int32)  # its length is the number of rows that the compiled program keeps
    given = jax.device_put((*self._asked(padded), places), self._everywhere)
    scores, rows = self._scan(*self._stored, *given)
    found = slice(0, len(queries)), slice(0, count)
    return np.asarray(scores)[found], np.asarray(rows)[found].astype(np.int64)

  def _asked(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The queries for the devices: in the vectors' dtype, or for int8 as two codes and their scales.

    The second code encodes the rounding error of the first, so that little of a query is lost.
    """
    if self._dtype != np.int8:
      return queries.astype(self._dtype), None
    codes, scales = quantise(queries)
    finer, finer_scales = quantise(queries - codes * scales[:, None])
    return np.concatenate([codes, finer]), np.concatenate([scales, finer_scales])

  def _placed(self, mesh: Mesh, share: int) -> tuple[jax.Array, jax.Array | None]:
    """(rows [S · devices, D], their scales or None). Each device's share is read once."""
    rows, scales = [], []
    for place, device in enumerate(mesh.devices.flat):
      part, scale = self._part(place * share, share)
      if device.platform == "cpu" and self._dtype == jnp.bfloat16:
        part = part.view(np.int16)  # XLA on a CPU copies slices of bfloat16 ten times slower
      rows.append(jax.device_put(part, device))
      if scale is not None:
        scales.append(jax.device_put(scale, device))
    at = lambda *axes: NamedSharding(mesh, PartitionSpec(AXIS, *axes))
    whole = jax.make_array_from_single_device_arrays(self._shape, at(None), rows)
    return whole, jax.make_array_from_single_device_arrays(self._shape[:1], at(), scales) if scales else None

  def _part(self, start: int, share: int) -> tuple[np.ndarray, np.ndarray | None]:
    """One device's rows, padded with zeros, and their scales. Updates the largest rounding error."""
    out = np.zeros((share, self._shape[1]), self._dtype)
    scales = np.zeros(share, np.float32) if self._dtype == np.int8 else None
    for at in range(0, min(share, max(len(self._vectors) - start, 0)), self._block):
      rows = slice(start + at, min(start + at + self._block, start + share, len(self._vectors)))
      here = slice(at, at + rows.stop - rows.start)
      if scales is not None and isinstance(self._vectors, Int8):
        out[here], scales[here] = self._vectors.codes[rows], self._vectors.scales[rows]
        continue
      held = np.asarray(self._vectors[rows], np.float32)
      if scales is not None:
        out[here], scales[here] = quantise(held)
        back = out[here] * scales[here, None]
      else:
        out[here] = held.astype(self._dtype)
        back = out[here].astype(np.float32)
      self._lost = max(self._lost, float(np.linalg.norm((back - held).astype(np.float64), axis=1).max()))
    return out, scales


def scan_of(mesh: Mesh, *, block: int, total: int):
  """The compiled search: `best_of_all` on every device of a mesh with the single axis AXIS."""
  rows, whole, platform = PartitionSpec(AXIS), PartitionSpec(), mesh.devices.flat[0].platform
  best = functools.partial(best_of_all, fewest=FEWEST if platform == "cpu" else 1, largest=GROUPS[platform])
  return jax.jit(
    jax.shard_map(
      functools.partial(best, block=block, total=total),
      mesh=mesh,
      in_specs=(rows, rows, whole, whole, whole),
      out_specs=whole,
      check_vma=False,
    )
  )


def best_of_all(
  stored: jax.Array,
  scales: jax.Array | None,
  queries: jax.Array,
  sizes: jax.Array | None,
  places: jax.Array,
  *,
  block: int,
  total: int,
  fewest: int,
  largest: int,
):
  """The best rows of this device's share, then of all shares. Equal scores are ordered by row.

  The first pass reads the whole share once and keeps the best score of each group of rows. The k best rows lie in the k
  groups with the highest best scores. The second pass scores only the rows of those groups.

  Args:
    stored: this device's rows [S, D]: float32, bfloat16, the bits of bfloat16 as int16, or int8.
    scales: float32 [S], scales of int8 rows; None for other dtypes.
    queries: [n, D] in the rows' dtype; for int8 [2 n, D], see `DeviceIndex._asked`.
    sizes: float32 [2 n], scales of int8 queries; None for other dtypes.
    places: [count]; only its length is used.
    block: rows scored at a time; divides S.
    total: number of rows on all devices; rows beyond it are padding.
    fewest: fewest queries of one matrix product; smaller products are padded.
    largest: most rows of a group.

  Returns:
    (float32 scores, int32 rows), both [n, count], best first. No other row has a higher first-pass score than the last
    one.
  """
  share, count = stored.shape[0], places.shape[0]
  keep, first = min(count, share), jax.lax.axis_index(AXIS) * share
  group, halves = math.gcd(block, largest), 1 if sizes is None else 2
  n = len(queries) // halves
  real = lambda scores, rows: jnp.where(first + rows < total, scores, -jnp.inf)

  def products(queries, sizes, rows, scales):
    """Scores [m, r] of queries [halves · m, D] and rows [r, D]."""
    asked = len(queries)
    queries = jnp.pad(queries, ((0, max(fewest - asked, 0)), (0, 0))) if rows.dtype != jnp.float32 else queries
    rows = jax.lax.bitcast_convert_type(rows, jnp.bfloat16) if rows.dtype == jnp.int16 else rows
    precision = jax.lax.Precision.HIGHEST if rows.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    exact = jnp.float32 if scales is None else jnp.int32  # sums of int8 products
    made = jnp.einsum("nd,sd->ns", queries, rows, precision=precision, preferred_element_type=exact)[:asked]
    if scales is None:
      return made
    made = made.astype(jnp.float32) * sizes[:, None]
    return made.reshape(2, -1, len(rows)).sum(axis=0) * scales[None]

  def step(_, i):
    cut = lambda x: None if x is None else jax.lax.dynamic_slice_in_dim(x, i * block, block)
    scores = products(queries, sizes, cut(stored), cut(scales))
    scores = real(scores, (i * block + jnp.arange(block, dtype=jnp.int32))[None])
    return None, scores.reshape(n, block // group, group).max(axis=2)

  _, tops = jax.lax.scan(step, None, jnp.arange(share // block, dtype=jnp.int32))
  tops, groups = _highest(tops.transpose(1, 0, 2), min(keep, share // group))
  left = tops[:, -1] if keep < share // group else jnp.full((n,), -jnp.inf)

  def again(given):
    query, size, groups = given  # [halves, D], [halves] or None, [keep]
    groups = jnp.sort(groups)  # so that equal scores keep the order of their rows
    cut = lambda x: None if x is None else x.reshape(-1, group, *x.shape[1:])[groups].reshape(-1, *x.shape[1:])
    rows = (groups[:, None] * group + jnp.arange(group, dtype=jnp.int32)[None]).reshape(-1)
    scores = products(query, size, cut(stored), cut(scales))[0]
    scores, at = jax.lax.top_k(real(scores, rows), keep)
    return scores, first + rows[at]

  # A few queries at a time, so that the gathered candidates fit into memory.
  each = lambda x: None if x is None else jnp.moveaxis(x.reshape(halves, n, *x.shape[1:]), 0, 1)
  together = min(TOGETHER, n) if fewest == 1 else None
  best = jax.lax.map(again, (each(queries), each(sizes), groups), batch_size=together)
  scores, rows = (jax.lax.all_gather(x, AXIS, axis=1, tiled=True) for x in best)
  scores, at = jax.lax.top_k(scores, count)
  return scores.at[:, -1].max(jax.lax.pmax(left, AXIS)), jnp.take_along_axis(rows, at, axis=1)


def _seen(queries: np.ndarray, sizes: np.ndarray | None, n: int) -> np.ndarray:
  """float32 [n, D]: the rounded queries that the devices use."""
  if sizes is None:
    return queries.astype(np.float32)
  both = queries * sizes[:, None]
  return both[:n] + both[n:]


def _highest(tops: jax.Array, keep: int) -> tuple[jax.Array, jax.Array]:
  """The `keep` highest values per query and their positions, both [n, keep]; `tops` is [n, blocks, groups].

  They lie in the `keep` blocks with the highest maxima. So only these blocks are sorted.
  """
  n, blocks, groups = tops.shape
  _, chosen = jax.lax.top_k(tops.max(axis=2), min(keep, blocks))
  inside = jnp.take_along_axis(tops, chosen[:, :, None], axis=1).reshape(n, -1)
  values, at = jax.lax.top_k(inside, keep)
  return values, jnp.take_along_axis(chosen, at // groups, axis=1) * groups + at % groups


def _power_of_two(n: int) -> int:
  return 1 << (n - 1).bit_length()
