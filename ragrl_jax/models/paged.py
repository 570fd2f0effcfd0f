"""What the kernels for attention over pages share: heads split over devices, and int8 keys and values."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ragrl_jax.parallel import mesh as mesh_lib


def over_heads(attend: Callable, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None) -> Callable:
  """Wraps attend(q, pages, table, lengths, scales) so that each device of a mesh computes the heads that it holds.

  The axis "tensor" splits the heads: axis 2 of q [n, t, H, h] and of the pages and scales. Other axes do not split the
  arrays. Inside a `jax.shard_map` over other axes, the mesh is `jax.sharding.get_abstract_mesh()`.

  Raises:
    ValueError: "tensor" does not divide the key-value heads.
  """
  if mesh is None:
    return attend
  heads = PartitionSpec(None, None, "tensor")

  def split(q, pages, table, lengths, scales):
    if pages.shape[2] % mesh.shape["tensor"] or q.shape[2] % mesh.shape["tensor"]:
      raise ValueError(
        f"mesh: tensor = {mesh.shape['tensor']} does not divide the heads of q {q.shape} and of the pages "
        f"{pages.shape} on axis 2: choose a divisor, or repeat the key-value heads."
      )
    return jax.shard_map(
      attend,
      mesh=mesh,
      in_specs=(heads, heads, PartitionSpec(), PartitionSpec(), None if scales is None else heads),
      out_specs=heads,
      axis_names=mesh_lib.free(mesh),
      check_vma=False,
    )(q, pages, table, lengths, scales)

  return split


def quantize(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Keys or values [..., h] as int8, with one float32 scale per token and head: x ≈ int8 · scale.

  Returns:
    (int8 [..., h], scales [...]). The largest magnitude of each vector becomes 127; zeros stay zeros.
  """
  x = jnp.asarray(x, jnp.float32)
  scale = jnp.abs(x).max(axis=-1) / 127
  return jnp.round(x / jnp.where(scale == 0, 1.0, scale)[..., None]).astype(jnp.int8), scale


def pair(k: jax.Array, v: jax.Array) -> jax.Array:
  """int8 keys and values of one shape as uint16: the key's byte is the low one."""
  k, v = (x.astype(jnp.uint8).astype(jnp.uint16) for x in (k, v))
  return k | v << 8


def unpair(pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(keys, values) of `pair`, as int32."""
  wide = pairs.astype(jnp.int32)
  return wide << 24 >> 24, wide << 16 >> 24  # signed: the highest bit of a byte fills those above it
