"""What the attention kernels share: rows padded to whole blocks, and one call per device of a mesh."""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ragrl_jax.parallel import mesh as mesh_lib, rules

MULTIPROCESSORS = 148  # of the largest GPU in plan/gpus.py; an H200 has 132


@functools.cache
def has_triton() -> bool:
  """Whether this JAX has Pallas' Triton backend, which 0.12 deprecates. If not, a warning says so, once a process."""
  found = importlib.util.find_spec("jax.experimental.pallas.triton") is not None
  if not found:
    slower = "decoding, and attention that cuDNN does not compute, is plain JAX and slower. An older JAX has it"
    warnings.warn(f"JAX {jax.__version__} has no Triton backend for GPU kernels: {slower}.", stacklevel=2)
  return found


class Windows(NamedTuple):
  """How far back tokens attend; int32 [B, T] each.

  Attributes:
    positions: position of each token in its text.
    least: smallest position that the token attends to.
  """

  positions: jax.Array
  least: jax.Array

  @classmethod
  def from_size(cls, positions: jax.Array | None, window: int | jax.Array | None) -> "Windows | None":
    """The windows of tokens at these positions, if each attends to `window` tokens, itself included. None: no window.

    Raises:
      ValueError: a window without positions.
    """
    if window is None:
      return None
    if positions is None:
      raise ValueError("attention with a window needs the tokens' positions: pass positions [B, T].")
    return cls(positions, positions - window + 1)

  def reach(self, block_q: int, block_k: int) -> jax.Array:
    """Which pairs of blocks may be within a window, bool [B, queries / block_q, keys / block_k]."""
    B = self.least.shape[0]
    first, last = self.least.reshape(B, -1, block_q).min(axis=2), self.positions.reshape(B, -1, block_k).max(axis=2)
    return last[:, None, :] >= first[:, :, None]


class Seen(NamedTuple):
  """Which tokens attend to each token: those with an index of at least `first` and below `until`; int32 [B, T] each."""

  first: jax.Array
  until: jax.Array

  @classmethod
  def of(cls, segment_ids: jax.Array, *, causal: bool) -> "Seen":
    """The later tokens of its segment and itself, or its whole segment. A segment's tokens are contiguous."""
    index = jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, 1)
    edge = segment_ids[:, 1:] != segment_ids[:, :-1]
    ends = jnp.pad(edge, ((0, 0), (0, 1)), constant_values=True)
    until = jax.lax.cummin(jnp.where(ends, index + 1, index.shape[1]), axis=1, reverse=True)
    first = index if causal else tokens(segment_ids, None).first
    return cls(*(jnp.where(segment_ids == 0, x, y) for x, y in zip((index.shape[1], 0), (first, until))))

  @classmethod
  def of_tree(cls, until: jax.Array) -> "Seen":
    """Each token's subtree, from `structs.Batch.until`."""
    index = jax.lax.broadcasted_iota(jnp.int32, until.shape, 1)
    return cls(jnp.where(until == 0, index.shape[1], index), until)


def segments(until: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(segment ids, prefix ids) of rows of trees with one level of branches, from `structs.Batch.until`.

  A tree's trunk is a segment, and so is each branch, whose prefix the trunk is:

    tokens a b|c|d e|f g    until 5 5|3|5 5|7 7    segments 1 1|2|3 3|4 4    prefixes 1 1|1|1 1|4 4
  """
  index = jax.lax.broadcasted_iota(jnp.int32, until.shape, 1)
  before = jnp.pad(until, ((0, 0), (1, 0)))[:, :-1]
  starts = until != before
  ids = jnp.where(until == 0, 0, jnp.cumsum(starts, axis=1, dtype=jnp.int32))
  roots = starts & (jax.lax.cummax(before, axis=1) <= index)
  return ids, jnp.where(until == 0, 0, jax.lax.cummax(jnp.where(roots, ids, 0), axis=1))


class Tokens(NamedTuple):
  """What determines a kernel's mask, for its queries or for its keys; int32 [B, T] each.

  Attributes:
    segment_ids: 0 is padding.
    prefix_ids: the segment that a token attends to besides its own; its own if there is none.
    index: index of the token in its whole row, which several devices may hold.
    first: index of the first token of its segment.
    windows: how far back it attends; None: no windows.
    seen: `mask` without the windows, if a caller has made it; its keys are those of the whole rows.
  """

  segment_ids: jax.Array
  prefix_ids: jax.Array
  index: jax.Array
  first: jax.Array
  windows: Windows | None = None
  seen: jax.Array | None = None

  @property
  def others(self) -> jax.Array:
    """The prefix's ids where the prefix is another segment, 0 elsewhere."""
    return jnp.where(self.prefix_ids == self.segment_ids, 0, self.prefix_ids)


def tokens(segment_ids: jax.Array, prefix_ids: jax.Array | None, windows: Windows | None = None) -> Tokens:
  """The `Tokens` of rows, from ids [B, T]. A segment's tokens are contiguous. None: no prefixes, and no windows."""
  index = jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, 1)
  starts = jnp.concatenate([jnp.ones_like(segment_ids[:, :1], bool), segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1)
  first = jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
  return Tokens(segment_ids, segment_ids if prefix_ids is None else prefix_ids, index, first, windows)


def mask(queries: Tokens, keys: Tokens, causal: bool) -> jax.Array:
  """Which keys each query attends to, bool [B, queries, keys]. Padding attends to padding, so that no row is empty."""
  seen = queries.seen
  if seen is None:
    ids = keys.segment_ids[:, None]
    seen = (queries.segment_ids[..., None] == ids) | (queries.prefix_ids[..., None] == ids)
    if causal:
      seen &= queries.index[..., None] >= keys.index[:, None]
  if queries.windows is not None:
    seen &= keys.windows.positions[:, None] >= queries.windows.least[..., None]
  return seen


def per_device(
  local: Callable[..., jax.Array],
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  segment_ids: jax.Array,
  prefix_ids: jax.Array | None,
  *,
  multiple: int,
  mesh: Mesh | None,
  windows: Windows | None = None,
  seen: jax.Array | None = None,
) -> jax.Array:
  """Calls local(q, k, v, Tokens of the queries, Tokens of the keys) on each device; see `attention.attend`.

  Args:
    local: attention of a device's rows and heads, for its part of the rows' queries, to the whole rows' keys.
    multiple: rows are padded until a device's number of queries per row is a multiple of it.
    mesh: each device computes its rows and heads, for its part of the rows' queries. None means one device.
    windows: how far back the tokens attend; None: no windows.
    seen: bool [B, T, T], see `Tokens`; None: a kernel that needs a mask makes it.

  Returns:
    [B, T, H, h], without the padding.
  """
  B, T, H, _ = q.shape
  queries, stretches = PartitionSpec(None, None, None, None), 1
  if mesh is not None:
    queries = rules.activation(mesh, ("batch", "length", "heads", None), q.shape)
    stretches = rules.ways(mesh, queries[1])
    k, v = keys_for_all(k, v, H, rules.ways(mesh, queries[2]))
  if rest := -T % (multiple * stretches):
    q, k, v = (jnp.pad(x, ((0, 0), (0, rest), (0, 0), (0, 0))) for x in (q, k, v))
    ids = segment_ids, prefix_ids, windows
    segment_ids, prefix_ids, windows = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, rest))), ids)
    seen = seen if seen is None else jnp.pad(seen, ((0, 0), (0, rest), (0, rest)))
  if mesh is not None:
    rows, length, heads, _ = queries
    keys = PartitionSpec(rows, None, heads, None)
    local = jax.shard_map(
      local,
      mesh=mesh,
      in_specs=(queries, keys, keys, PartitionSpec(rows, length), PartitionSpec(rows, None)),
      out_specs=queries,
      check_vma=False,
    )
  of_row = tokens(segment_ids, prefix_ids, windows)
  return local(q, k, v, of_row._replace(seen=seen), of_row)[:, :T]


def keys_for_all(k: jax.Array, v: jax.Array, heads: int, devices: int) -> tuple[jax.Array, jax.Array]:
  """Repeats the heads of keys and values [B, T, KV, h] until `devices` divides them, with as few copies as possible."""
  KV = k.shape[2]
  if KV % devices == 0:
    return k, v
  copies = next(n for n in range(2, heads // KV + 1) if not heads // KV % n and not n * KV % devices)
  return jnp.repeat(k, copies, axis=2), jnp.repeat(v, copies, axis=2)


def overlap(queries: jax.Array, keys: jax.Array, block_q: int, block_k: int) -> jax.Array:
  """Which pairs of blocks of ids [B, T] may share one other than 0, bool [B, queries / block_q, keys / block_k].

  The ranges of the blocks' ids are compared. So the result is exact for packed rows, whose ids ascend. For other rows
  it may include pairs without a common id, but it includes all pairs that have one.
  """

  def ranges(ids, block):
    ids = ids.reshape(ids.shape[0], -1, block)
    return jnp.where(ids == 0, jnp.iinfo(ids.dtype).max, ids).min(axis=2), ids.max(axis=2)

  (low, high), (least, most) = ranges(queries, block_q), ranges(keys, block_k)
  return (low[:, :, None] <= most[:, None, :]) & (high[:, :, None] >= least[:, None, :])


def over_heads(attend: Callable, mesh: Mesh | jax.sharding.AbstractMesh | None) -> Callable:
  """Wraps attend(*split, *whole), as a function of the tuples split and whole, for the devices of a mesh.

  Each device computes the heads that it holds: the axis "tensor" splits axis 2 of the arrays of `split`, which begin
  with q [n, t, H, h] and pages, and of the results. Other axes do not split them. Inside a `jax.shard_map` over other
  axes, the mesh is `jax.sharding.get_abstract_mesh()`.

  Raises:
    ValueError: "tensor" does not divide the key-value heads.
  """
  if mesh is None:
    return lambda split, whole: attend(*split, *whole)
  heads = PartitionSpec(None, None, "tensor")

  def over(split, whole):
    q, pages, *_ = split
    if pages.shape[2] % mesh.shape["tensor"] or q.shape[2] % mesh.shape["tensor"]:
      raise ValueError(
        f"mesh: tensor = {mesh.shape['tensor']} does not divide the heads of q {q.shape} and of the pages "
        f"{pages.shape} on axis 2: choose a divisor, or repeat the key-value heads."
      )
    return jax.shard_map(
      lambda split, whole: attend(*split, *whole),
      mesh=mesh,
      in_specs=(heads, PartitionSpec()),
      out_specs=heads,
      axis_names=mesh_lib.free(mesh),
      check_vma=False,
    )(split, whole)

  return over
