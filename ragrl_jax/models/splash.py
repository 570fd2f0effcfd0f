"""Attention within segments on TPUs, by JAX's Splash kernel; each device makes one call."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import NamedSharding, PartitionSpec

from ragrl_jax.parallel import rules

LANES = 128  # block sizes are multiples of this number of tokens
BLOCKS = (512, 256, LANES)  # the largest that divides the row is used: larger blocks read keys and values less often


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  segment_ids: jax.Array,
  *,
  causal: bool = True,
  mesh: jax.sharding.Mesh | None = None,
  interpret: bool = False,
) -> jax.Array:
  """`attention.attend` without prefixes; see there for the shapes.

  Args:
    mesh: each device computes its rows and heads, for its part of the rows' queries; None means one device.
    interpret: run the kernel as plain JAX, on any device; for tests.
  """
  B, T, H, h = q.shape
  queries, heads = PartitionSpec(None, None, None, None), 1
  if mesh is not None:
    queries = rules.activation(mesh, ("batch", "length", "heads", None), q.shape)
    heads = rules.ways(mesh, queries[2])
  k, v = keys_for_all(k, v, H, heads)
  stretches = 1 if mesh is None else rules.ways(mesh, queries[1])
  if rest := -T % (LANES * stretches):
    q, k, v = (jnp.pad(x, ((0, 0), (0, rest), (0, 0), (0, 0))) for x in (q, k, v))
    segment_ids = jnp.pad(segment_ids, ((0, 0), (0, rest)))
  kernel = _kernel(H, T + rest, causal, heads, stretches, interpret)

  def local(kernel, q, k, v, ids, key_ids):
    # The kernel does not scale scores by h^-0.5, so q is scaled. It takes one row at a time, as [H, t, h].
    q = (q.astype(jnp.float32) * h**-0.5).astype(q.dtype)
    one = lambda q, k, v, ids, key_ids: kernel(
      *(x.transpose(1, 0, 2) for x in (q, k, v)), segment_ids=splash_attention.SegmentIds(ids, key_ids)
    )
    out = jax.vmap(one)(q, k, v, ids, key_ids).transpose(0, 2, 1, 3)
    return jnp.where((ids != 0)[:, :, None, None], out, jnp.zeros_like(out))  # the kernel lets padding attend to itself

  if mesh is not None:
    rows, length, kept, _ = queries
    keys = PartitionSpec(rows, None, kept, None)
    mask = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(kept, length if causal else None)))
    local = jax.shard_map(
      local,
      mesh=mesh,
      in_specs=(mask, queries, keys, keys, PartitionSpec(rows, length), PartitionSpec(rows, None)),
      out_specs=queries,
      check_vma=False,
    )
  return local(kernel, q, k, v, segment_ids, segment_ids)[:, :T]


def keys_for_all(k: jax.Array, v: jax.Array, heads: int, devices: int) -> tuple[jax.Array, jax.Array]:
  """Repeats the heads of keys and values [B, T, KV, h] until `devices` divides them, with as few copies as possible."""
  KV = k.shape[2]
  if KV % devices == 0:
    return k, v
  copies = next(n for n in range(2, heads // KV + 1) if not heads // KV % n and not n * KV % devices)
  return jnp.repeat(k, copies, axis=2), jnp.repeat(v, copies, axis=2)


def _kernel(heads: int, tokens: int, causal: bool, head_shards: int, stretches: int, interpret: bool):
  """The kernel for [heads, tokens, h]. It computes at build time which blocks the mask needs."""
  block = next(size for size in BLOCKS if tokens // stretches % size == 0)
  sizes = splash_attention.BlockSizes(
    block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
  )
  if causal:
    mask = splash_attention.CausalMask((tokens, tokens))
  else:  # the mask is the same for every part of the queries
    mask, stretches = splash_attention.FullMask((tokens // stretches, tokens)), 1
  return splash_attention.make_splash_mha(
    splash_attention.MultiHeadMask([mask] * heads),
    block_sizes=sizes,
    head_shards=head_shards,
    q_seq_shards=stretches,
    interpret=interpret,
  )
