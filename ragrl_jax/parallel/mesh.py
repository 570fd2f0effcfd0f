"""The device mesh, with four named axes; an axis that is not requested has size 1."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType

AXES = ("data", "fsdp", "tensor", "sequence")


def make(
  devices: Sequence[jax.Device], *, data: int = -1, fsdp: int = 1, tensor: int = 1, sequence: int = 1
) -> jax.sharding.Mesh:
  """A mesh over these devices. Neighbouring devices are on the last axes, since tensor parallelism communicates most.

  Args:
    devices: all of them are used.
    data: shards rows and replicates weights. One of the four axes may be -1 and then takes the remaining devices.
    fsdp: shards rows and weights.
    tensor: shards heads, MLP width and vocabulary.
    sequence: shards the tokens of a row.

  Raises:
    ValueError: the product of the axes is not the number of devices.
  """
  sizes = dict(zip(AXES, (data, fsdp, tensor, sequence)))
  asked = ", ".join(f"{name}={size}" for name, size in sizes.items())
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
    raise ValueError(f"mesh {asked}: sizes must be at least 1, and one may be -1 for the other devices (config.mesh).")
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if free:
    sizes[free[0]] = len(devices) // fixed
  if math.prod(sizes.values()) != len(devices) or 0 in sizes.values():
    raise ValueError(
      f"mesh {asked} does not fit {len(devices)} devices: the sizes must multiply to their number (config.mesh)."
    )
  shape = tuple(sizes.values())
  if len({device.process_index for device in devices}) > 1 and devices[0].platform == "tpu":
    grid = host_by_host(devices, shape)
  elif devices[0].platform == "tpu":  # the torus decides which devices are neighbours
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  else:
    grid = np.asarray(devices).reshape(shape)
  return jax.sharding.Mesh(grid, AXES)


def of_engine(learner: jax.sharding.Mesh | None, *, replicas: int = 0, tensor: int = 1) -> jax.sharding.Mesh | None:
  """The mesh of this host's engine, see `engines`; None for one device."""
  every = engines(learner, replicas=replicas, tensor=tensor)
  if every is None:
    return None
  here = jax.process_index()
  return jax.sharding.Mesh(next(e for e in every.devices if any(d.process_index == here for d in e.flat)), AXES)


def engines(learner: jax.sharding.Mesh | None, *, replicas: int = 0, tensor: int = 1) -> jax.sharding.Mesh | None:
  """One mesh with all engines: axis "engine" for engines, "data" for replicas, "tensor" for a replica's devices.

  Args:
    learner: the mesh over all hosts; None for one device.
    replicas: replicas per engine; 0 takes the smallest number that fills whole hosts.
    tensor: devices per replica.

  Raises:
    ValueError: an engine would not fill whole hosts, or engines of this size do not share the hosts evenly.
  """
  if learner is None:
    engine_size(1, 1, replicas=replicas, tensor=tensor)
    return None
  devices = learner.devices.reshape(-1)
  owners = [device.process_index for device in devices]
  hosts = sorted(set(owners))
  each = len(devices) // len(hosts)
  size = engine_size(each, len(hosts), replicas=replicas, tensor=tensor)
  if owners != [host for host in hosts for _ in range(each)]:
    raise ValueError(
      f"mesh {dict(learner.shape)}: the devices of a host are not next to each other in it, so no engine can run on "
      "them; choose sizes that divide the hosts' devices evenly (config.mesh)."
    )
  # The devices stay in the learner's order, so that one program can take weights from its mesh to this one.
  return jax.sharding.Mesh(devices.reshape(-1, size // tensor, 1, tensor, 1), ("engine", *AXES))


def engine_size(each: int, hosts: int, *, replicas: int = 0, tensor: int = 1) -> int:
  """Number of devices of an engine, for `hosts` hosts with `each` devices; see `engines`."""
  size = replicas * tensor or math.lcm(tensor, each)
  if size % each or hosts % (size // each):
    says = f"config.rollout.mesh.replicas={replicas}, tensor={tensor}: they must multiply to a host's {each} " + (
      f"device{'s' * (each > 1)}"
    )
    if hosts > 1:
      says += f", or to those of several hosts whose number divides the {hosts} hosts"
    raise ValueError(f"{says}. Or set replicas to 0 and tensor to a divisor.")
  return size


def host_by_host(devices: Sequence[jax.Device], shape: Sequence[int]) -> np.ndarray:
  """Arranges TPUs of several hosts in this shape. Each host's chips form one block, in the same order on every host.

  `mesh_utils.create_hybrid_device_mesh` may order them differently on some hosts. The chips along a mesh axis then have
  another relative position on each host, and libtpu fails on such collectives on v5e:8x8.
  """
  by_host: dict[int, list[jax.Device]] = {}
  for device in devices:
    by_host.setdefault(device.process_index, []).append(device)
  place = lambda device: (*reversed(device.coords), device.core_on_chip)
  chips = [sorted(by_host[host], key=place) for host in sorted(by_host)]
  inside = within_host(shape, len(chips[0]))
  grid = np.empty(len(devices), object)
  grid[:] = [device for host in chips for device in host]
  grid = grid.reshape(*(size // part for size, part in zip(shape, inside)), *inside)
  half = len(shape)
  return grid.transpose([axis for pair in zip(range(half), range(half, 2 * half)) for axis in pair]).reshape(shape)


def within_host(shape: Sequence[int], devices: int) -> tuple[int, ...]:
  """Shape of the block of the mesh that one host's devices fill, last axes first; ValueError if they fill none."""
  parts, left = [], devices
  for size in reversed(shape):
    parts.append(math.gcd(size, left))
    left //= parts[-1]
  if left > 1:
    raise ValueError(
      f"mesh {tuple(shape)}: a host's {devices} devices fill no block of it; choose sizes that they "
      "divide (config.mesh)."
    )
  return tuple(reversed(parts))


def around() -> jax.sharding.AbstractMesh | None:
  """The mesh of the `shard_map` around the caller, if it leaves an axis to the compiler (see `free`); else None."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh if free(mesh) else None


def free(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> set[str]:
  """The axes of a mesh over which no `shard_map` around the caller has split the arrays yet."""
  return {name for name, kind in zip(mesh.axis_names, mesh.axis_types) if kind != AxisType.Manual}
