"""One of several hosts that save or restore a checkpoint of known arrays, on four devices in all:

python tests/checkpoint_child.py NUMBER COUNT PORT save|restore FOLDER …
"""

import pathlib
import sys

import jax
import numpy as np

from ragrl_jax.parallel import hosts, mesh as mesh_lib, rules
from ragrl_jax.store import checkpoint

DEVICES = 4
MESHES = {1: dict(data=1, fsdp=4), 2: dict(data=2, tensor=2), 4: dict(data=1, fsdp=2, tensor=2)}  # by hosts
SHAPES = dict(
  embedding=((32, 16), np.float32), step=((), np.int32),
  layers=dict(q=((2, 16, 8), np.float32), q_norm=((2, 8), np.float32)),
)  # fmt: skip


def values(shape, dtype):
  return (np.arange(np.prod(shape)).reshape(shape) * 3 + 1).astype(dtype)


def tree(make):
  """`make(shape, dtype, sharding)` for every array of the state, on a mesh of this number of hosts."""
  mesh = mesh_lib.make(jax.devices(), **MESHES[hosts.count()])
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(*x), SHAPES, is_leaf=lambda x: isinstance(x, tuple))
  return jax.tree.map(lambda x, at: make(x.shape, x.dtype, at), shapes, rules.shardings(mesh, shapes))


def save(folder):
  arrays = tree(lambda shape, dtype, at: jax.make_array_from_callback(shape, at, lambda i: values(shape, dtype)[i]))
  checkpoint.Checkpoints(folder, keep=1).save(1, arrays, dict(hosts=hosts.count()))


def restore(folder):
  like = tree(lambda shape, dtype, at: jax.ShapeDtypeStruct(shape, dtype, sharding=at))
  found, host = checkpoint.Checkpoints(folder, keep=1).restore(like)
  assert host == dict(hosts=int(folder.name))
  for x, (shape, dtype) in zip(jax.tree.leaves(found), jax.tree.leaves(SHAPES, is_leaf=lambda x: isinstance(x, tuple))):
    for part in x.addressable_shards:
      np.testing.assert_array_equal(part.data, values(shape, dtype)[part.index])


if __name__ == "__main__":
  number, count, port = map(int, sys.argv[1:4])
  jax.config.update("jax_num_cpu_devices", DEVICES // count)
  alone = () if count == 1 else (f"127.0.0.1:{port}", count, number)
  with hosts.Joined(*alone, wait_s=120, heartbeat_s=60):
    for folder in map(pathlib.Path, sys.argv[5:]):
      dict(save=save, restore=restore)[sys.argv[4]](folder)
