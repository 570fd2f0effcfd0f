"""Attention over pages, compiled for TPUs by libtpu: pages are written in place, and nothing is gathered."""

import collections
import math
import re

import jax
import jax.numpy as jnp
import pytest

from ragrl_jax.models import paged_tpu
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import aot

pytestmark = pytest.mark.parity
PAGE, CONTEXT, LANES = 64, 4096, 128
PASS_ON = {"parameter", "get-tuple-element", "bitcast"}  # these instructions name an array and move nothing


def program(topology, H, KV, t, tensor):
  """(compiled text, shape of the pages on a chip) of 16 rounds that write t tokens per sequence, then attend."""
  n, N, h = LANES if t == 1 else 4, CONTEXT // PAGE, 128
  mesh = mesh_lib.make(aot.devices(topology)[:tensor], tensor=tensor)
  array = lambda shape, dtype=jnp.bfloat16, *axes: jax.ShapeDtypeStruct(
    shape, dtype, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
  )
  of_heads = lambda *shape: array(shape, jnp.bfloat16, None, None, "tensor")
  shape, new = (LANES * N, PAGE, 2 * KV, h), of_heads(n, t, KV, h)
  given = of_heads(*shape), of_heads(n, t, H, h), new, new, array((n, N), jnp.int32), array((n,), jnp.int32)

  def rounds(pages, q, k, v, table, lengths):
    def step(state):
      i, pages, q, lengths = state
      positions = lengths[:, None] + jnp.arange(t, dtype=jnp.int32)[None]
      pages = paged_tpu.write(pages, k + q[:, :, :: H // KV], v, table, positions)
      return i + 1, pages, paged_tpu.attend(q, pages, table, lengths, mesh=mesh), lengths + t

    return jax.lax.while_loop(lambda state: state[0] < 16, step, (jnp.int32(0), pages, q, lengths))

  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # JAX asks it for the kind of chip
    compiled = jax.jit(rounds, donate_argnums=0).lower(*given).compile()
  return compiled, (*shape[:2], shape[2] // tensor, h)


SHAPES = [(28, 4, 1, 1), (7, 1, 1, 1), (14, 2, 1, 1), (7, 1, 32, 1), (28, 4, 1, 4)]


@pytest.mark.parametrize(
  "topology, H, KV, t, tensor", [*(("v5e:2x2", *shape) for shape in SHAPES), ("v5p:2x2x1", *SHAPES[-1])]
)
def test_pages_stay_in_place(topology, H, KV, t, tensor):
  compiled, shape = program(topology, H, KV, t, tensor)
  text, size = compiled.as_text(), math.prod(shape)
  memory = compiled.memory_analysis()
  assert memory.alias_size_in_bytes >= 2 * size and memory.temp_size_in_bytes < size / 8
  assert not aot.collectives(text)  # a chip needs only its own heads
  made = re.findall(r"= (\S+) ([\w\-]+)\(", text)
  operations = collections.Counter(op for kind, op in made if any(count >= size for count, _ in aot.arrays(kind)))
  assert operations.pop("scatter") == operations.pop("fusion") == 1  # the write: no copy and no transpose
  assert operations.keys() <= PASS_ON


@pytest.mark.parametrize("tensor", [2, 4])
def test_replicas_exchange_nothing(tensor):
  H, KV, h, n, N = 28, 4, 128, LANES, CONTEXT // PAGE
  mesh = mesh_lib.make(aot.devices("v5e:2x4"), data=8 // tensor, tensor=tensor)
  array = lambda dtype, *shape, axes=("data",): jax.ShapeDtypeStruct(
    shape, dtype, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
  )
  of_heads = lambda *shape: array("bfloat16", *shape, axes=("data", None, "tensor"))
  pages, q, new = of_heads(n * N, PAGE, 2 * KV, h), of_heads(n, 1, H, h), of_heads(n, 1, KV, h)

  def one_replica(pages, q, k, v, table, lengths):
    lengths = lengths[:, 0]
    pages = paged_tpu.write(pages, k, v, table, lengths[:, None])
    return pages, paged_tpu.attend(q, pages, table, lengths, mesh=jax.sharding.get_abstract_mesh())

  rows = jax.sharding.PartitionSpec("data")
  step = jax.shard_map(
    one_replica, mesh=mesh, in_specs=(rows,) * 6, out_specs=(rows, rows), axis_names={"data"}, check_vma=False
  )
  lowered = jax.jit(step, donate_argnums=0).lower(pages, q, new, new, array("int32", n, N), array("int32", n, 1))
  compiled = lowered.compile()
  assert not aot.collectives(compiled.as_text())
  # A chip holds the pages of its replica and its heads, once: bfloat16 is 2 bytes.
  pages = 2 * n * N * PAGE * 2 * KV * h // 8
  memory = compiled.memory_analysis()
  assert pages <= memory.alias_size_in_bytes and memory.argument_size_in_bytes < 1.01 * pages
  assert memory.temp_size_in_bytes < pages / 8
