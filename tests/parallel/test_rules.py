"""One table gives the sharding of every parameter and activation."""

import dataclasses
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from refusals import refused

import ragrl_jax
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules

SHAPE = dict(d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24, rope_theta=100.0)


def decoder(family="qwen3", tied=True, mesh=None, vocab=32):
  """(graphdef, parameters), drawn by NumPy, which needs no compilation."""
  config = DecoderConfig.from_shape(vocab, family=family, tied=tied, **SHAPE)
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), mesh=mesh)))
  draw = np.random.default_rng(0)
  return graphdef, jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.3, x.shape), jnp.float32), abstract)


@pytest.fixture(scope="module")
def mesh():
  return mesh_lib.make(jax.devices(), data=2, fsdp=2, tensor=2)


def specs(mesh, tree):
  return {
    "/".join(rules.names_of(path)): sharding.spec
    for path, sharding in jax.tree_util.tree_leaves_with_path(rules.shardings(mesh, tree))
  }


def test_placing_shapes_without_arrays(mesh):
  real = {"final_norm": jnp.ones(16), "embedding": jnp.ones((32, 16))}
  placed, promised = rules.place(mesh, real), rules.place(mesh, jax.eval_shape(lambda: real))
  for name, array in placed.items():
    shape = promised[name]
    assert isinstance(shape, jax.ShapeDtypeStruct)
    assert (shape.shape, shape.dtype, shape.sharding) == (array.shape, array.dtype, array.sharding)
    np.testing.assert_array_equal(array, real[name])


def test_the_sharding_of_parameters(mesh):
  found = specs(mesh, decoder("qwen2", tied=False)[1])
  assert found["embedding"] == found["lm_head"] == P("tensor", "fsdp")
  assert found["layers/q"] == found["layers/up"] == P(None, "fsdp", "tensor")
  assert found["layers/o"] == found["layers/down"] == P(None, "tensor", "fsdp")
  assert found["layers/q_bias"] == P(None, "tensor")
  assert found["final_norm"] == P(None) and found["layers/mlp_norm"] == P(None, None)


@pytest.mark.parametrize("make", [optax.adamw, optax.contrib.muon])
def test_moments_are_sharded_as_their_parameters(mesh, make):
  params = decoder()[1]
  of_params, of_moments = specs(mesh, params), specs(mesh, make(1e-3).init(params))
  matched = {name: spec for name, spec in of_moments.items() for own in of_params if name.endswith(own)}
  assert len(matched) >= len(of_params)
  for name, spec in matched.items():
    assert spec in [of_params[own] for own in of_params if name.endswith(own)], name


def test_a_parameter_without_a_rule_is_refused(mesh):
  with pytest.raises(ValueError, match=r"parameter layers/convolution has no sharding rule.*PARAMETERS"):
    rules.shardings(mesh, {"layers": {"convolution": jnp.zeros((2, 3, 4))}})
  assert rules.shardings(mesh, {"count": jnp.int32(3)})["count"].spec == P()  # a scalar has no axes to shard


def test_sizes_the_mesh_does_not_divide():
  eight = mesh_lib.make(jax.devices(), data=1, tensor=8)
  odd = decoder(vocab=33)[1]
  assert specs(eight, {"embedding": odd["embedding"]})["embedding"] == P(None, "fsdp")  # an encoder's may stay whole
  with pytest.raises(ValueError, match=r"layers/gate: its axis 'ff' of size 20 cannot be cut into 8.*config.mesh"):
    rules.shardings(eight, {"layers": {"gate": jnp.zeros((2, 16, 20))}})
  refused("names 3 axes", rules.shardings, eight, {"layers": {"gate": jnp.zeros((16, 24))}})


SIZES = dict(data=1, fsdp=1, tensor=1, sequence=1)


@pytest.mark.parametrize("sizes, given, message", [
  (dict(tensor=8), dict(), r"config.mesh.tensor=8: .* 4 key-value heads and its 28 heads.* Use 4, and"),
  (dict(tensor=4), dict(heads=6, kv_heads=2), r"config.mesh.tensor=4: .* 2 key-value heads.* Use 2, and"),
  (dict(tensor=3), dict(), r"config.mesh.tensor=3: .* Use 1, and"),
  (dict(tensor=4), dict(vocab=50_258), r"config.mesh.tensor=4: .* 50258 rows of the model's embedding.* Use 2, or"),
  (dict(tensor=4), dict(delta_heads=6), r"config.mesh.tensor=4: .* 6 key heads of a delta layer. Use 2"),
  (dict(data=2, fsdp=4), dict(micro_rows=12), r"config.learner.micro_rows=12: .*multiple of .*fsdp, which is 8"),
  (dict(sequence=4), dict(row_lengths=(64, 30)), r"row_lengths=\(64, 30\): .*config.mesh.sequence=4; 30 is not"),
])  # fmt: skip
def test_a_mesh_that_would_silently_repeat_work_is_refused(sizes, given, message):
  refused(message, rules.check, SIZES | sizes, **dict(heads=28, kv_heads=4) | given)


def test_meshes_that_divide_everything_are_accepted():
  for sizes in (dict(tensor=4), dict(tensor=2, fsdp=4), dict(data=2, sequence=2)):
    rules.check(SIZES | sizes, heads=28, kv_heads=4, micro_rows=8, row_lengths=(64, 128))
    rules.check(SIZES | sizes, heads=28, kv_heads=4, vocab=152_064)


def test_activations_of_any_size(mesh):
  constrain = jax.jit(lambda x: rules.constrain(x, mesh, ("batch", "length", None)))
  assert constrain(jnp.zeros((8, 4, 2))).sharding.spec == P(("data", "fsdp"))
  np.testing.assert_array_equal(constrain(jnp.ones((3, 4, 2))), 1.0)  # three rows stay whole
  assert rules.constrain(3, None, ("batch",)) == 3  # no-op without a mesh


@pytest.mark.parametrize("room", ["core", "models", "learner", "rollout", "parallel"])
def test_no_global_list_of_devices_is_asked(room):
  """The caller passes its mesh; the library does not ask JAX for all devices."""
  files = sorted((pathlib.Path(ragrl_jax.__file__).parent / room).rglob("*.py"))
  assert files
  for file in files:
    assert not re.search(r"\b(local_)?devices\(\)|device_count\(", file.read_text()), file


def test_the_axes_and_the_size_that_is_left_open():
  made = mesh_lib.make(jax.devices(), data=-1, fsdp=2, tensor=2)
  assert dict(made.shape) == dict(data=2, fsdp=2, tensor=2, sequence=1)
  # Neighbouring devices are along the last axis longer than 1, here tensor.
  assert [d.id for d in made.devices[0, 0, :, 0]] == [0, 1] and made.devices[1, 0, 0, 0].id == 4
  assert dict(mesh_lib.make(jax.devices()[:1]).shape) == SIZES  # of one device


@pytest.mark.parametrize("sizes, says", [
  (dict(data=3), "must multiply to their number"), (dict(data=-1, fsdp=3), "does not fit 8 devices"),
  (dict(data=-1, fsdp=-1), "one may be -1"), (dict(data=0), "at least 1"), (dict(fsdp=16), "does not fit 8 devices"),
])  # fmt: skip
def test_sizes_that_do_not_fit(sizes, says):
  refused(says, mesh_lib.make, jax.devices(), **sizes)


@dataclasses.dataclass(frozen=True)
class Chip:
  process_index: int
  coords: tuple[int, int, int]
  core_on_chip: int = 0


def test_chips_of_every_host_are_in_one_order():
  # v5e:4x4 in libtpu's order: four hosts of 2 × 2 chips. Devices may come in any order.
  chips = [Chip(x // 2 + 2 * (y // 2), (x, y, 0)) for x in range(4) for y in range(4)]
  grid = mesh_lib.host_by_host(chips, (1, 4, 4, 1))[0, :, :, 0]
  each = [[(x + a, y + b) for b in range(2) for a in range(2)] for y in (0, 2) for x in (0, 2)]
  assert [[chip.coords[:2] for chip in host] for host in grid] == each
  grid = mesh_lib.host_by_host(chips, (2, 4, 2, 1))
  for host in range(4):
    places = np.argwhere(np.vectorize(lambda chip, host=host: chip.process_index == host)(grid))
    assert [len(set(axis)) for axis in places.T] == [1, 2, 2, 1]
    where = [grid[tuple(place)].coords[:2] for place in places]
    assert [(x - where[0][0], y - where[0][1]) for x, y in where] == [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize("each, hosts, sizes, devices", [
  (8, 1, dict(), 8), (4, 4, dict(replicas=2, tensor=2), 4),
  (8, 4, dict(tensor=2), 8),  # one host, as many replicas as fill it
  (4, 4, dict(tensor=8), 8),  # the fewest hosts that it fills
  (4, 6, dict(tensor=6), 12),  # two replicas on three hosts
  (4, 4, dict(replicas=2, tensor=8), 16), (1, 2, dict(tensor=2), 2),
])  # fmt: skip
def test_an_engine_takes_whole_hosts(each, hosts, sizes, devices):
  assert mesh_lib.engine_size(each, hosts, **sizes) == devices


@pytest.mark.parametrize("each, hosts, sizes", [
  (4, 4, dict(replicas=1, tensor=2)),  # half a host
  (4, 4, dict(replicas=3, tensor=2)),  # one and a half
  (4, 4, dict(tensor=12)),  # three of four
  (4, 2, dict(tensor=16)),  # more than there are
])  # fmt: skip
def test_an_engine_of_a_part_of_a_host_is_refused(each, hosts, sizes):
  says = rf"config\.rollout\.mesh\.replicas=.*a host's 4 devices, or to those of .* divides the {hosts} hosts"
  refused(says, mesh_lib.engine_size, each, hosts, **sizes)


def test_hosts_whose_devices_are_mixed_are_refused():
  chips = [Chip(host, (0, 0, 0)) for host in (0, 1, 0, 1)]
  mixed = types.SimpleNamespace(devices=np.array(chips, object).reshape(1, 4, 1, 1), shape=dict(fsdp=4))
  refused(r"mesh \{'fsdp': 4\}: the devices of a host are not next to each other", mesh_lib.engines, mixed, tensor=2)
