import jax
import pytest

from ragrl_jax.parallel import mesh


def test_axes_and_what_is_left():
  made = mesh.make(jax.devices(), data=-1, fsdp=2, tensor=2)
  assert dict(made.shape) == dict(data=2, fsdp=2, tensor=2, sequence=1)
  # Neighbours lie on the last axis that is longer than 1: tensor.
  assert [d.id for d in made.devices[0, 0, :, 0]] == [0, 1] and made.devices[1, 0, 0, 0].id == 4


def test_one_device():
  assert dict(mesh.make(jax.devices()[:1]).shape) == dict(data=1, fsdp=1, tensor=1, sequence=1)


@pytest.mark.parametrize("sizes, says", [
  (dict(data=3), "must multiply to their number"), (dict(data=-1, fsdp=3), "does not fit 8 devices"),
  (dict(data=-1, fsdp=-1), "one may be -1"), (dict(data=0), "at least 1"), (dict(fsdp=16), "does not fit 8 devices"),
])
def test_sizes_that_do_not_fit(sizes, says):
  with pytest.raises(ValueError, match=says):
    mesh.make(jax.devices(), **sizes)
