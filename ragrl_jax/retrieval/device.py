"""Exact search on the accelerators: inner products with sharded vectors, block by block, then the best rows.

The devices find candidates with vectors in float32, bfloat16 or int8. The host computes the candidates' scores again
from the stored vectors. It fetches more candidates until rounding cannot hide a better row. So every dtype gives the
same answer.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.retrieval.vectors import Int8, quantise, rank_exactly

AXIS = "passages"
GROUPS = dict(cpu=32, tpu=128, gpu=128)  # rows per group, of which the best score is looked at first
DTYPES = ("float32", "bfloat16", "int8")
PART_ROWS = dict(cpu=1 << 22, tpu=1 << 18, gpu=1 << 20)  # of an array
CHUNK_ROWS = dict(cpu=1 << 16, tpu=1 << 18, gpu=1 << 20)  # whose scores are in memory at a time
BLOCK_ROWS = dict(cpu=1 << 11, tpu=1 << 14, gpu=1 << 20)  # of a matrix product: fits a CPU's cache; a part on a GPU
READ_ROWS = 1 << 16  # read from the vectors at a time
FEWEST = 16  # queries of a product on a CPU: products of int8 and bfloat16 matrices are slow for single vectors


class DeviceIndex:
  """All vectors in the devices' memory, with an equal share of the rows on each device.

  The numbers of queries and of passages are rounded up to powers of two, and each pair compiles once. The result is
  that of brute force over the stored vectors. Equal scores are ordered by row.
  """

  on_device = True

  def __init__(self, vectors: Any, *, max_norm: float, dtype: str = "float32", devices=None):
    """
    Args:
      vectors: [N, D], in memory or memory-mapped (`vectors.open_mapped`); read once, one device's share at a time.
      max_norm: the largest Euclidean norm of a vector.
      dtype: on the devices: "float32", "bfloat16" (half the memory), or "int8" with a scale for each row (a quarter).
      devices: the devices to use; by default those of this process.

    Raises:
      ValueError: the dtype is unknown.
    """
    if dtype not in DTYPES:
      raise ValueError(f"dtype={dtype!r}: it must be 'float32', 'bfloat16' or 'int8'.")
    self._dtype, self._vectors, self._max_norm = np.dtype(dtype), vectors, max_norm
    self._lost = 0.0  # largest norm of the difference between a stored vector and its rounded copy on the device
    devices = list(jax.local_devices() if devices is None else devices)
    total, dim = vectors.shape
    parts, rows, chunk, block = cut(total, devices)
    mesh = Mesh(np.array(devices), (AXIS,))
    self._everywhere = NamedSharding(mesh, PartitionSpec())
    self._stored = self._placed(mesh, parts, rows)
    self._scan = scan_of(mesh, chunk=chunk, block=block, total=total)

  def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """float32 [n, D] → n pairs (scores, rows), best first, each of min(k, N) entries."""
    queries, k = queries.astype(np.float32), min(k, len(self._vectors))
    # The error of a score is at most |q' - q| |v| + |q'| |v' - v|, where q' and v' are the rounded vectors.
    norm = lambda x: np.linalg.norm(x.astype(np.float64), axis=1)
    narrow = _seen(*self._encode(queries), len(queries))
    errors = norm(narrow - queries) * self._max_norm + norm(narrow) * self._lost
    first = _power_of_two(k + 8 if self._dtype == np.float32 else max(k + 8, 4 * k))
    return rank_exactly(self._rough, self._vectors, queries, k, max_norm=self._max_norm, errors=errors, first=first)

  def _rough(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The best rows by the devices' scores, computed in one of a few compiled shapes."""
    candidates = min(_power_of_two(count), len(self._vectors))
    padded = np.zeros((_power_of_two(len(queries)), queries.shape[1]), np.float32)
    padded[: len(queries)] = queries
    places = np.zeros(candidates, np.int32)  # its length is the number of rows that the compiled program keeps
    inputs = jax.device_put((*self._encode(padded), places), self._everywhere)
    scores, rows = self._scan(*self._stored, *inputs)
    part = slice(0, len(queries)), slice(0, count)
    return np.asarray(scores)[part], np.asarray(rows)[part].astype(np.int64)

  def _encode(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The queries for the devices: in the vectors' dtype, or for int8 as two codes and their scales.

    The second code encodes the rounding error of the first, so that little of a query is lost.
    """
    if self._dtype != np.int8:
      return queries.astype(self._dtype), None
    codes, scales = quantise(queries)
    finer, finer_scales = quantise(queries - codes * scales[:, None])
    return np.concatenate([codes, finer]), np.concatenate([scales, finer_scales])

  def _placed(self, mesh: Mesh, parts: int, rows: int) -> tuple[list[jax.Array], list[jax.Array] | None]:
    """(parts [rows · devices, D], their scales or None). Each device's share is read once."""
    bits = mesh.devices.flat[0].platform == "cpu" and self._dtype == jnp.bfloat16
    at, shape = NamedSharding(mesh, PartitionSpec(AXIS)), (rows * mesh.size, self._vectors.shape[1])
    stored, scales = [], []
    for number in range(parts):
      shards = []
      for place, device in enumerate(mesh.devices.flat):
        part, scale = self._part((place * parts + number) * rows, rows)
        # XLA on a CPU copies slices of bfloat16 ten times slower than those of its bits.
        shards.append(jax.device_put((part.view(np.int16) if bits else part, scale), device))
      part, scale = zip(*shards)
      stored.append(jax.make_array_from_single_device_arrays(shape, at, list(part)))
      if self._dtype == np.int8:
        scales.append(jax.make_array_from_single_device_arrays(shape[:1], at, list(scale)))
    return stored, scales or None

  def _part(self, start: int, size: int) -> tuple[np.ndarray, np.ndarray | None]:
    """One device's rows of a part, padded with zeros, and their scales. Updates the largest rounding error."""
    out = np.zeros((size, self._vectors.shape[1]), self._dtype)
    scales = np.zeros(size, np.float32) if self._dtype == np.int8 else None
    for at in range(0, min(size, max(len(self._vectors) - start, 0)), READ_ROWS):
      rows = slice(start + at, min(start + at + READ_ROWS, start + size, len(self._vectors)))
      place = slice(at, at + rows.stop - rows.start)
      if scales is not None and isinstance(self._vectors, Int8):
        out[place], scales[place] = self._vectors.codes[rows], self._vectors.scales[rows]
        continue
      values = np.asarray(self._vectors[rows], np.float32)
      if scales is not None:
        out[place], scales[place] = quantise(values)
        back = out[place] * scales[place, None]
      else:
        out[place] = values.astype(self._dtype)
        back = out[place].astype(np.float32)
      self._lost = max(self._lost, float(np.linalg.norm((back - values).astype(np.float64), axis=1).max()))
    return out, scales


def cut(total: int, devices: Sequence[Any]) -> tuple[int, int, int, int]:
  """(parts, rows of a part, of a chunk, of a block) of each device's share of `total` rows. Padding is small.

  A part has whole chunks, and a chunk whole blocks.
  """
  platform = devices[0].platform
  share = -(-total // len(devices))
  parts = -(-share // PART_ROWS[platform])
  part = -(-share // parts)
  chunks = -(-part // CHUNK_ROWS[platform])
  limit = BLOCK_ROWS[platform]
  blocks, unit = -(-part // (chunks * limit)), math.gcd(limit, GROUPS[platform])
  block = -(-part // (chunks * blocks))
  block = block if block < unit else -(-block // unit) * unit  # so that groups are whole ones
  return parts, chunks * blocks * block, blocks * block, block


def scan_of(mesh: Mesh, *, chunk: int, block: int, total: int):
  """The compiled search: `best_of_all` on every device of a mesh with the single axis AXIS."""
  rows, replicated, platform = PartitionSpec(AXIS), PartitionSpec(), mesh.devices.flat[0].platform
  sizes = dict(
    chunk=chunk, block=block, total=total, fewest=FEWEST if platform == "cpu" else 1, largest=GROUPS[platform]
  )
  specs = dict(in_specs=(rows, rows, replicated, replicated, replicated), out_specs=replicated)
  return jax.jit(jax.shard_map(functools.partial(best_of_all, **sizes), mesh=mesh, **specs, check_vma=False))


def best_of_all(
  parts: Sequence[jax.Array],
  scales: Sequence[jax.Array] | None,
  queries: jax.Array,
  sizes: jax.Array | None,
  places: jax.Array,
  *,
  chunk: int,
  block: int,
  total: int,
  fewest: int,
  largest: int,
):
  """The best rows of this device's share, then of all shares. Equal scores are ordered by row.

  The k best rows lie in the k groups with the highest best scores; of groups with equal ones, in the first. So only the
  scores of k groups are sorted. A part is an array of its own, because XLA on a GPU copies a slice before it multiplies
  by it.

  Args:
    parts: this device's rows [P, D], one array after the other: float32, bfloat16, the bits of bfloat16 as int16, or
      int8.
    scales: float32 [P] each, scales of int8 rows; None for other dtypes.
    queries: [n, D] in the rows' dtype; for int8 [2 n, D], see `DeviceIndex._encode`.
    sizes: float32 [2 n], scales of int8 queries; None for other dtypes.
    places: [count]; only its length is used.
    chunk: rows whose scores are in memory at a time; divides P. On a CPU large new memory takes a tenth of the time.
    block: rows scored at a time; divides `chunk`.
    total: number of rows on all devices; rows beyond it are padding.
    fewest: fewest queries of one matrix product; smaller products are padded.
    largest: most rows of a group.

  Returns:
    (float32 scores, int32 rows), both [n, count], best first.
  """
  share, count = sum(map(len, parts)), places.shape[0]
  group = math.gcd(block, largest)
  n = len(queries) // (1 if sizes is None else 2)

  def products(queries, rows, scales):
    """Scores [n, r] of queries and rows [r, D]."""
    size = len(queries)
    more = max(fewest - size, 0) if rows.dtype != jnp.float32 else 0
    rows = jax.lax.bitcast_convert_type(rows, jnp.bfloat16) if rows.dtype == jnp.int16 else rows
    precision = jax.lax.Precision.HIGHEST if rows.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    exact = jnp.float32 if scales is None else jnp.int32  # sums of int8 products
    padded = jnp.pad(queries, ((0, more), (0, 0)))
    result = jnp.einsum("nd,sd->ns", padded, rows, precision=precision, preferred_element_type=exact)[:size]
    if scales is None or sizes is None:
      return result
    result = result.astype(jnp.float32) * sizes[:, None]
    return result.reshape(2, -1, len(rows)).sum(axis=0) * scales[None]

  def of_chunk(queries, part, scales, start, first):
    """Of the best groups: best scores [n, g], first rows [n, g], and scores [n, g, group]."""

    def step(_, i):
      slice_of = lambda x: None if x is None else jax.lax.dynamic_slice_in_dim(x, start + i * block, block)
      scores = products(queries, slice_of(part), slice_of(scales))
      grouped = lambda x: x.reshape(-1, block // group, group)
      rows = first + start + i * block + jnp.arange(block, dtype=jnp.int32)
      return None, (grouped(real(scores, rows[None])).max(axis=2), grouped(scores))

    _, (tops, scores) = jax.lax.scan(step, None, jnp.arange(chunk // block, dtype=jnp.int32))
    tops, at = jax.lax.top_k(tops.transpose(1, 0, 2).reshape(n, -1), min(count, chunk // group))
    of_groups = scores[at // (block // group), jnp.arange(n)[:, None], at % (block // group)]
    return tops, first + start + at * group, of_groups

  def of_part(queries, part, scales, first):
    if len(part) == chunk:
      return of_chunk(queries, part, scales, 0, first)
    starts = jnp.arange(0, len(part), chunk, dtype=jnp.int32)
    found = jax.lax.map(lambda start: of_chunk(queries, part, scales, start, first), starts)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(n, -1, *x.shape[3:]), found)

  real = lambda scores, rows: jnp.where(rows < total, scores, -jnp.inf)
  take = lambda x, at: jnp.take_along_axis(x, at, axis=1)
  first, candidates = jax.lax.axis_index(AXIS) * share, []
  for part, scale in zip(parts, scales or [None] * len(parts)):
    # A part waits for the one before it, so that only one chunk's scores are in memory.
    best, queries = jax.lax.optimization_barrier((of_part(queries, part, scale, first), queries))
    candidates.append(best)
    first += len(part)
  tops, rows, scores = (jnp.concatenate(x, axis=1) for x in zip(*candidates))
  at = jax.lax.top_k(tops, min(count, share // group))[1]
  at = take(at, jnp.argsort(take(rows, at), axis=1))  # so that equal scores are in the order of their rows
  scores = take(scores, at[:, :, None])
  rows = take(rows, at)[:, :, None] + jnp.arange(group, dtype=jnp.int32)[None, None]
  scores, at = jax.lax.top_k(real(scores, rows).reshape(n, -1), min(count, share))
  rows = take(rows.reshape(n, -1), at)
  scores, rows = (jax.lax.all_gather(x, AXIS, axis=1, tiled=True) for x in (scores, rows))
  scores, at = jax.lax.top_k(scores, count)
  return scores, take(rows, at)


def _seen(queries: np.ndarray, sizes: np.ndarray | None, n: int) -> np.ndarray:
  """float32 [n, D]: the rounded queries that the devices use."""
  if sizes is None:
    return queries.astype(np.float32)
  scaled = queries * sizes[:, None]
  return scaled[:n] + scaled[n:]


def _power_of_two(n: int) -> int:
  return 1 << (n - 1).bit_length()
