"""The fingerprint of weights covers every value, name, shape and dtype, and no path."""

import shutil

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from ragrl_jax.models import tensors

A, B = np.arange(4096, dtype=np.float32).reshape(64, 64), np.ones((3, 5), np.float32)


def write(folder, a=A, b=B, names=("a", "b"), **how):
  folder.mkdir()
  entries = [(name, x.shape, lambda x=x: x) for name, x in zip(names, (a, b))]
  tensors.write(folder, entries, **{"dtype": np.float32, "shard_bytes": 2**40} | how)
  return tensors.TensorFolder(folder).fingerprint()


def changed(row, column):
  other = A.copy()
  other[row, column] += 1
  return other


def test_every_value_counts_wherever_it_is(tmp_path):
  mark = write(tmp_path / "one")
  # The first 64 bytes are the values 0 to 15 of row 0; here the middle, the last value, and the other tensor change.
  others = [dict(a=changed(31, 40)), dict(a=changed(63, 63)), dict(b=B * 2), dict(names=("a", "c"))]
  others += [dict(a=A.reshape(32, 128)), dict(dtype=ml_dtypes.bfloat16), dict(a=A[:, ::-1])]
  marks = [write(tmp_path / f"other{i}", **how) for i, how in enumerate(others)]
  assert len({mark, *marks}) == 1 + len(others)


def test_a_moved_folder_and_other_shards_are_the_same_weights(tmp_path):
  mark = write(tmp_path / "one")
  assert mark == write(tmp_path / "shards", shard_bytes=A.nbytes)
  shutil.move(tmp_path / "one", tmp_path / "moved")
  assert tensors.TensorFolder(tmp_path / "moved").fingerprint() == mark


@pytest.mark.parametrize("piece", [1, 1000, 2**28])
def test_arrays_of_a_device_are_hashed_whole(piece, monkeypatch):
  for bound in ("PIECE", "WHOLE"):
    monkeypatch.setattr(tensors, bound, piece)
  held = {"a": jnp.asarray(A), "scalar": jnp.float32(3), "none": jnp.zeros((0, 4))}
  mark = tensors.fingerprint(held)
  assert mark == tensors.fingerprint({name: np.asarray(x) for name, x in held.items()})
  assert mark != tensors.fingerprint(held | {"a": held["a"].at[33, 7].add(1e-3)})
  assert mark != tensors.fingerprint(held | {"scalar": jnp.float32(4)})
