import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forks import FORKS
from jax.sharding import NamedSharding, PartitionSpec
from refusals import refused

from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.store import checkpoint, sums


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """Like a TrainState: nested, several dtypes, with scalars."""

  params: dict
  step: jax.Array
  rng: jax.Array


def state(scale=1.0):
  draw = np.random.default_rng(0)
  a, b = jnp.asarray(draw.normal(size=(8, 4)) * scale, jnp.float32), jnp.asarray(draw.normal(size=3), jnp.bfloat16)
  return State(params=dict(a=a, b=[b]), step=jnp.int32(7), rng=jax.random.key_data(jax.random.key(3)))


def same(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
  return jax.tree.structure(a) == jax.tree.structure(b)


HOST = {"cursor": 17, "share": 0.1 + 0.2, "text": "ü \u2028", "groups": [[1, None, True], {"x": -1e-30}]}


def test_what_is_saved_is_restored_and_nothing_is_pickled(tmp_path, monkeypatch):
  on_disk, fsync = set(), os.fsync
  monkeypatch.setattr(os, "fsync", lambda handle: on_disk.add(os.fstat(handle).st_ino) or fsync(handle))
  checkpoints = checkpoint.Checkpoints(tmp_path / "c", keep=2)
  assert checkpoints.latest() is None
  path = checkpoints.save(3, state(), HOST)
  assert path == tmp_path / "c" / "3" and path.is_dir()
  got, host = checkpoints.restore(state(0.0))
  assert same(got, state()) and host == HOST
  again = checkpoint.Checkpoints(tmp_path / "c", keep=2)  # as another process would
  assert again.latest() == 3 and again.host() == HOST == json.loads((path / "host.json").read_text())
  files = [p for p in path.rglob("*") if p.is_file()]
  assert {p.stat().st_ino for p in files} <= on_disk
  assert not [p for p in files if p.suffix in (".pkl", ".pickle", ".npy", ".npz", ".pt")]
  assert not [p for p in files if p.read_bytes()[:2] in (b"\x80\x03", b"\x80\x04", b"\x80\x05")]


def test_only_the_newest_are_kept(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
  for step in (1, 5, 9):
    checkpoints.save(step, state(step), dict(step=step))
  assert checkpoints.steps() == [5, 9] and checkpoints.latest() == 9
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["5", "9"]
  got, host = checkpoints.restore(state(), step=5)
  assert host == dict(step=5) and same(got, state(5))


def test_a_spared_one_is_kept_and_later_ones_can_be_deleted(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  for step, spared in ((1, ()), (2, (1,)), (3, (1, 7)), (4, (1, 3)), (5, (3,))):
    checkpoints.spared = spared
    checkpoints.save(step, state(step), dict(step=step))
  assert checkpoints.steps() == [3, 5]
  checkpoints.delete_after(3)
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["3"]
  checkpoints.save(5, state(6), {})  # the step can be saved again
  assert same(checkpoints.restore(state())[0], state(6))


def test_restored_onto_another_mesh(tmp_path):
  mesh = lambda **axes: mesh_lib.make(jax.devices(), **axes)
  spread = lambda m: jax.device_put(state(), NamedSharding(m, PartitionSpec()))
  put = lambda m, spec: jax.device_put(state().params["a"], NamedSharding(m, spec))
  cut = lambda m, spec: dataclasses.replace(spread(m), params=state().params | dict(a=put(m, spec)))
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  checkpoints.save(1, cut(mesh(data=2, fsdp=4), PartitionSpec("fsdp")), {})
  like = cut(mesh(data=4, tensor=2), PartitionSpec(None, "tensor"))
  got, _ = checkpoints.restore(like)
  assert same(got, state()) and got.params["a"].sharding == like.params["a"].sharding
  # Shapes are sufficient.
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
  assert same(checkpoints.restore(shapes)[0], state())


def test_invalid_calls_are_refused_and_only_json_is_saved_beside_the_arrays(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  refused("no checkpoint at all", checkpoints.restore, state(), error=FileNotFoundError)
  checkpoints.save(1, state(), {})
  refused("exists", checkpoints.save, 1, state(), {})
  refused(r"no checkpoint 2 in .*\[1\]", checkpoints.restore, state(), step=2, error=FileNotFoundError)
  other = dataclasses.replace(state(), params=dict(a=jnp.zeros((9, 4)), b=state().params["b"]))
  refused(r"params/a has shape \(8, 4\) in the checkpoint and \(9, 4\)", checkpoints.restore, other)
  for value, word in (
    ([1, {"b": np.float32(1)}], r"host\.a\[1\]\.b is a float32"), (float("nan"), "host.a=nan"), ({1: 2}, "key 1"),
    ({1, 2}, "is a set"),
  ):  # fmt: skip
    refused(word, checkpoints.save, 2, state(), {"a": value})
  assert checkpoints.latest() == 1


def test_unfinished_checkpoints_are_ignored_and_removed(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=3)
  checkpoints.save(1, state(), dict(step=1))
  checkpoints.save(2, state(2.0), dict(step=2))
  checkpoints.close()
  (tmp_path / "2").rename(tmp_path / "3.tmp")  # the state after a kill before the last rename
  again = checkpoint.Checkpoints(tmp_path, keep=3)
  assert again.steps() == [1] and again.restore(state())[1] == dict(step=1)
  again.save(3, state(3.0), dict(step=3))
  assert again.latest() == 3
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["1", "3"]


def test_a_reader_does_not_disturb_a_running_save(tmp_path):
  writer = checkpoint.Checkpoints(tmp_path, keep=3)
  writer.save(1, state(), dict(step=1))
  (tmp_path / "2.tmp").mkdir()  # being written
  reader = checkpoint.Checkpoints(tmp_path, keep=1, read_only=True)
  assert reader.latest() == 1 and same(reader.restore(state())[0], state())
  reader.close()
  assert (tmp_path / "2.tmp").exists()
  refused("read-only", reader.save, 2, state(), {})
  refused("checkpoints/", checkpoint.Checkpoints, tmp_path / "none", keep=1, read_only=True, error=FileNotFoundError)


def flip(path):
  """Flips one bit in the middle."""
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def test_any_damage_to_any_file_is_detected(tmp_path):
  stored = checkpoint.Checkpoints(tmp_path, keep=1)
  stored.save(1, state(), HOST)
  folder = tmp_path / "1"
  files = [path for path in folder.rglob("*") if path.is_file() and path.name != sums.FILE]
  assert len(files) > 8 and sums.damage(folder) == ""
  tool = ["sha256sum"] if shutil.which("sha256sum") else ["shasum", "--algorithm=256"]  # the second on macOS
  subprocess.run([*tool, "--check", sums.FILE], cwd=folder, check=True)
  for path in files:
    whole, name = path.read_bytes(), path.name
    for harm in (flip, lambda path: os.truncate(path, path.stat().st_size - 1), pathlib.Path.unlink):
      harm(path)
      found = sums.damage(folder)
      assert name in found, (name, found)
      refused(name, stored.part, {}, 1, error=checkpoint.Damaged)
      path.write_bytes(whole)
  whole = (folder / sums.FILE).read_bytes()
  for content in (b"", whole[:-1].rpartition(b"\n")[0], whole.replace(b"  state", b" state"), b"\xff" + whole):
    (folder / sums.FILE).write_bytes(content)
    assert sums.damage(folder), content


def test_a_damaged_checkpoint_is_replaced_by_the_newest_undamaged_one_with_a_warning(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=3)
  for step in (1, 2, 3):
    checkpoints.save(step, state(step), dict(step=step))
  arrays = (path for path in (tmp_path / "3" / "state").rglob("*") if path.is_file())
  flip(max(arrays, key=lambda path: path.stat().st_size))
  (tmp_path / "2" / "host.json").unlink()
  with pytest.raises(checkpoint.Damaged, match=r"checkpoints?.*3: .*SHA-256 differs\. Others: \[1, 2\]"):
    checkpoints.restore(state(), step=3)  # a step that is named is not replaced
  reader = checkpoint.Checkpoints(tmp_path, keep=1, read_only=True)
  with pytest.warns(UserWarning, match="Step 1 is undamaged"):
    assert reader.restore(state())[1] == dict(step=1)
  assert reader.steps() == [1, 2, 3]
  with pytest.warns(UserWarning, match=r"3: state/.*differs; .*2: host\.json is missing\. Step 1 is undamaged") as said:
    got, host = checkpoints.restore(state())
  assert len(said) == 1 and host == dict(step=1) and same(got, state(1))
  assert checkpoints.steps() == [1] and (tmp_path / "3.damaged").is_dir()
  checkpoints.save(3, state(3.0), dict(step=3))  # the step is made again
  assert checkpoints.restore(state())[1] == dict(step=3)
  for step in (1, 3):
    flip(tmp_path / str(step) / sums.FILE)
  with pytest.raises(checkpoint.Damaged, match="no undamaged checkpoint.*new workdir") as error:
    checkpoints.restore(state())
  assert "\n" not in str(error.value) and checkpoints.steps() == [1, 3]


def test_a_full_disk_is_a_one_line_error_and_the_older_checkpoint_stays(tmp_path, caplog, capfd):
  big = dict(x=jnp.asarray(np.random.default_rng(0).normal(size=40_000), jnp.float32))
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
  checkpoints.save(1, big, dict(step=1))
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # no file above 50 kB, as on a full disk
  try:
    with pytest.raises(OSError, match="checkpoint 2 could not be written: File too large.*on from step 1") as error:
      checkpoints.save(2, big, dict(step=2))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert error.value.__suppress_context__ and not caplog.records and not "".join(capfd.readouterr())
  assert [path.name for path in tmp_path.iterdir()] == ["1"]
  checkpoints.save(2, big, dict(step=2))
  assert same(checkpoints.restore(big)[0], big)


def save_for_ever(folder, said):
  """Saves one step after the other, and says each one that is saved."""
  made = checkpoint.Checkpoints(folder, keep=2)
  step = (made.latest() or 0) + 1
  said.send(0)
  while True:
    made.save(step, dict(x=jnp.full((400_000,), float(step)), y=jnp.full((3, 5), float(step))), dict(step=step))
    said.send(step)
    step += 1


def rest_of(pipe):
  """What a process that has ended said last."""
  with contextlib.suppress(EOFError):
    while True:
      yield pipe.recv()


@pytest.mark.slow  # ten processes, each with a JAX of its own
def test_sigkill_at_any_moment_leaves_whole_checkpoints(tmp_path):
  """Ten kills at random moments, most of them during a save. Each restart continues from a complete checkpoint."""
  draw, promised = np.random.default_rng(0), 0
  for _ in range(10):
    pipe, said = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=save_for_ever, args=(tmp_path, said))
    process.start()
    said.close()
    assert pipe.recv() == 0
    started = time.perf_counter()
    saved = [pipe.recv()]  # one save is done, the next is running
    time.sleep(float(draw.uniform(0, 2)) * (time.perf_counter() - started))
    process.kill()
    process.join()
    promised = max([promised, *saved, *rest_of(pipe)])
    made = checkpoint.Checkpoints(tmp_path, keep=2)
    assert made.latest() >= promised  # a save that returned is complete
    for step in made.steps():
      got, host = made.restore(dict(x=jnp.zeros(400_000), y=jnp.zeros((3, 5))), step=step)
      assert host == dict(step=step) and (got["x"] == step).all() and (got["y"] == step).all()
    made.close()
  assert promised >= 10
  made = checkpoint.Checkpoints(tmp_path, keep=2)
  made.save(promised + 2, dict(x=jnp.zeros(400_000), y=jnp.zeros((3, 5))), dict(step=promised + 2))
  assert not [p for p in tmp_path.iterdir() if p.is_dir() and not p.name.isdigit()]
