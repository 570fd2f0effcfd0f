import dataclasses

import jax
import numpy as np
import pytest

from ragrl_jax.parallel import mesh


def test_axes_and_what_is_left():
  made = mesh.make(jax.devices(), data=-1, fsdp=2, tensor=2)
  assert dict(made.shape) == dict(data=2, fsdp=2, tensor=2, sequence=1)
  # Neighbours lie on the last axis that is longer than 1: tensor.
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


def test_every_hosts_chips_lie_in_one_order():
  # v5e:4x4 as libtpu counts it: four hosts of 2 × 2 chips. Devices come in any order.
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
