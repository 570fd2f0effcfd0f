"""Attention on NVIDIA GPUs: cuDNN's fused kernel through `jax.nn.dot_product_attention`, for rows of one segment.

The kernel supports row lengths but no segments. A segment mask would need an array [B, H, T, T], which is too large. So
rows with several segments, and prefixes, use the blockwise code of `attention`.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ragrl_jax.models import splash
from ragrl_jax.parallel import rules

DTYPES = (jnp.bfloat16, jnp.float16)  # the kernel has no float32
WIDEST = 128  # largest head_dim that all architectures from Ampere on support; it must be a multiple of 8


def takes(q: jax.Array, mesh: jax.sharding.Mesh | None = None) -> bool:
  """Whether the kernel supports q's dtype and head size, and each device holds whole rows. q: [B, T, H, h]."""
  whole = mesh is None or mesh.shape["sequence"] == 1
  return q.dtype in DTYPES and q.shape[3] % 8 == 0 and q.shape[3] <= WIDEST and whole


def single(segment_ids: jax.Array) -> jax.Array:
  """Scalar bool: whether every row of [B, T] is one segment from its first token on, then padding, or only padding."""
  index = jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, 1)
  lengths = (segment_ids != 0).sum(axis=1, dtype=jnp.int32)[:, None]
  return (segment_ids == jnp.where(index < lengths, segment_ids[:, :1], jnp.zeros_like(segment_ids))).all()


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  segment_ids: jax.Array,
  *,
  causal: bool = True,
  mesh: jax.sharding.Mesh | None = None,
  implementation: str = "cudnn",
) -> jax.Array:
  """`attention.attend` (see there for the shapes) for rows that are `single`.

  Args:
    mesh: each device computes its rows and heads; None means one device.
    implementation: "xla" computes the same on any device, with [T, T] scores; for tests.
  """

  def local(q, k, v, ids):
    real = (ids != 0)[:, :, None, None]
    # The kernel's output at padding is set to 0, forward and backward. A row of padding gets length 1.
    only = lambda x: jnp.where(real, x, jnp.zeros_like(x))
    lengths = jnp.maximum((ids != 0).sum(axis=1, dtype=jnp.int32), 1)
    return only(
      jax.nn.dot_product_attention(
        only(q),
        only(k),
        only(v),
        is_causal=causal,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation=implementation,
      )
    )

  if mesh is None:
    return local(q, k, v, segment_ids)
  rows, _, heads, _ = queries = rules.activation(mesh, ("batch", None, "heads", None), q.shape)
  k, v = splash.keys_for_all(k, v, q.shape[2], rules.ways(mesh, heads))
  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(queries, queries, queries, PartitionSpec(rows, None)),
    out_specs=queries,
    check_vma=False,
  )(q, k, v, segment_ids)
