import dataclasses
import types

import jax
import numpy as np
import pytest

from ragrl_jax.parallel import mesh


def test_the_axes_and_the_size_that_is_left_open():
  made = mesh.make(jax.devices(), data=-1, fsdp=2, tensor=2)
  assert dict(made.shape) == dict(data=2, fsdp=2, tensor=2, sequence=1)
  # Neighbouring devices are along the last axis longer than 1, here tensor.
  assert [d.id for d in made.devices[0, 0, :, 0]] == [0, 1] and made.devices[1, 0, 0, 0].id == 4


def test_one_device():
  assert dict(mesh.make(jax.devices()[:1]).shape) == dict(data=1, fsdp=1, tensor=1, sequence=1)


@pytest.mark.parametrize(
  "sizes, says",
  [
    (dict(data=3), "must multiply to their number"),
    (dict(data=-1, fsdp=3), "does not fit 8 devices"),
    (dict(data=-1, fsdp=-1), "one may be -1"),
    (dict(data=0), "at least 1"),
    (dict(fsdp=16), "does not fit 8 devices"),
  ],
)
def test_sizes_that_do_not_fit(sizes, says):
  with pytest.raises(ValueError, match=says):
    mesh.make(jax.devices(), **sizes)


@dataclasses.dataclass(frozen=True)
class Chip:
  process_index: int
  coords: tuple[int, int, int]
  core_on_chip: int = 0


def test_chips_of_every_host_are_in_one_order():
  # v5e:4x4 in libtpu's order: four hosts of 2 × 2 chips. Devices may come in any order.
  chips = [Chip(x // 2 + 2 * (y // 2), (x, y, 0)) for x in range(4) for y in range(4)]
  grid = mesh.host_by_host(chips, (1, 4, 4, 1))[0, :, :, 0]
  assert [[chip.coords[:2] for chip in host] for host in grid] == [
    [(x + a, y + b) for b in range(2) for a in range(2)] for y in (0, 2) for x in (0, 2)
  ]
  grid = mesh.host_by_host(chips, (2, 4, 2, 1))
  for host in range(4):
    places = np.argwhere(np.vectorize(lambda chip, host=host: chip.process_index == host)(grid))
    assert [len(set(axis)) for axis in places.T] == [1, 2, 2, 1]
    where = [grid[tuple(place)].coords[:2] for place in places]
    assert [(x - where[0][0], y - where[0][1]) for x, y in where] == [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(
  "each, hosts, sizes, devices",
  [
    (8, 1, dict(), 8),
    (8, 4, dict(tensor=2), 8),  # one host, as many replicas as fill it
    (4, 4, dict(replicas=2, tensor=2), 4),
    (4, 4, dict(tensor=8), 8),  # the fewest hosts that it fills
    (4, 6, dict(tensor=6), 12),  # two replicas on three hosts
    (4, 4, dict(replicas=2, tensor=8), 16),
    (1, 2, dict(tensor=2), 2),
  ],
)
def test_an_engine_takes_whole_hosts(each, hosts, sizes, devices):
  assert mesh.engine_size(each, hosts, **sizes) == devices


@pytest.mark.parametrize(
  "each, hosts, sizes",
  [
    (4, 4, dict(replicas=1, tensor=2)),  # half a host
    (4, 4, dict(replicas=3, tensor=2)),  # one and a half
    (4, 4, dict(tensor=12)),  # three of four
    (4, 2, dict(tensor=16)),  # more than there are
  ],
)
def test_an_engine_of_a_part_of_a_host_is_refused(each, hosts, sizes):
  says = rf"config\.rollout\.mesh\.replicas=.*a host's 4 devices, or to those of .* divides the {hosts} hosts"
  with pytest.raises(ValueError, match=says):
    mesh.engine_size(each, hosts, **sizes)


def test_hosts_whose_devices_are_mixed_are_refused():
  chips = [Chip(host, (0, 0, 0)) for host in (0, 1, 0, 1)]
  mixed = types.SimpleNamespace(devices=np.array(chips, object).reshape(1, 4, 1, 1), shape=dict(fsdp=4))
  with pytest.raises(ValueError, match=r"mesh \{'fsdp': 4\}: the devices of a host are not next to each other"):
    mesh.engines(mixed, tensor=2)
