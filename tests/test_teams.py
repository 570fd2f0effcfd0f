"""One engine over several real processes draws what one process draws, and trains as one."""

import functools
import json
import pathlib

import hosts_child
import jax
import numpy as np
import pytest
import team_child
from safetensors.numpy import load_file
from test_hosts import check_runs_equal, end_all, free_port, start, start_all

from ragrl_jax.parallel import mesh as mesh_lib

pytestmark = pytest.mark.hosts  # two to four processes at a time
CHILD = pathlib.Path(team_child.__file__)


@functools.cache
def in_one_process():
  """(episodes, conversations that were swapped out) of an engine over two devices of this process."""
  return team_child.played(mesh_lib.make(jax.devices()[:2], data=1, fsdp=2), dict(tensor=2))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count, devices, mesh", [
  (2, 1, dict(tensor=2)),
  (2, 2, dict(tensor=2, replicas=2)),  # each replica within a host
  (4, 1, dict(tensor=2)),  # two engines over two hosts each
  (4, 1, dict(tensor=2, replicas=2)),  # one over four
])  # fmt: skip
def test_an_engine_over_several_hosts_draws_the_tokens_of_one_process(tmp_path, count, devices, mesh):
  port, out = free_port(), tmp_path / "drawn.json"
  commands = [(CHILD, number, count, port, devices, json.dumps(mesh), out) for number in range(count)]
  end_all(start_all(commands, tmp_path), tmp_path, 1000)
  found, swapped = json.loads(out.read_text())
  expected, swapped_here = in_one_process()
  assert swapped_here and (swapped or "replicas" in mesh or count > 2)  # conversations went to the host and came back
  assert len(found) == len(expected) == 18 and {version for *_, version in found} == {1, 2}
  for (ids, logprobs, version), (ids_here, logprobs_here, version_here) in zip(found, expected, strict=True):
    assert (ids, version) == (ids_here, version_here) and sum(map(len, ids)) == len(logprobs) > 0
    np.testing.assert_allclose(logprobs, logprobs_here, atol=1e-5)


@pytest.mark.timeout(600)
def test_a_host_that_dies_ends_the_others_of_its_engine_with_one_error(tmp_path):
  port, out = free_port(), tmp_path / "drawn.json"
  mesh = json.dumps(dict(tensor=2))
  children = start_all([(CHILD, number, 2, port, 1, mesh, out, "fails") for number in (0, 1)], tmp_path)
  try:
    assert children[1].wait(timeout=500) == 9, (tmp_path / "1.txt").read_text()[-3000:]
    assert children[0].wait(timeout=300) == 1
  finally:
    for child in children:
      child.kill()
  said = (tmp_path / "0.txt").read_text()
  assert "host 1, which runs an engine together with this host 0 (config.rollout.mesh), has ended" in said, said[-3000:]
  assert not out.exists()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count, ahead", [
  (2, 0),
  (4, 1),  # two engines, and the learner's work between their programs
])  # fmt: skip
def test_engines_over_two_hosts_train_as_one_process(world, tmp_path, count, ahead):
  mesh = dict(data=1, fsdp=count)
  for steps in (3,) if ahead else (2, 3):  # the second job resumes
    end_all(start(count, 1, mesh, world, tmp_path / "many", steps, tmp_path, ahead, engine=2), tmp_path, 1500)
  list(hosts_child.run(world, tmp_path / "one", 3, ahead, **mesh))
  check_runs_equal(tmp_path / "many", tmp_path / "one")
  many, one = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("many", "one"))
  assert many.keys() == one.keys()
  for name, array in one.items():
    np.testing.assert_allclose(many[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
