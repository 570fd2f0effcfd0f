import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import pytest
import small_learner as small

from ragrl_jax.parallel import mesh as mesh_lib

ROOT = pathlib.Path(__file__).parents[2]


def hosts(count, out):
  """What the first of `count` processes with 4 / count devices each writes."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  environment = os.environ | dict(
    PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=str(ROOT / ".cache" / "jax"))
  child = str(pathlib.Path(__file__).with_name("host_child.py"))
  children = [
    subprocess.Popen([sys.executable, child, *map(str, (i, count, port, out))], env=environment, text=True,
                     stderr=subprocess.PIPE) for i in range(count)]
  for process in children:
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
  return json.loads(out.read_text())


@pytest.mark.slow  # two fresh Pythons that compile the step
def test_two_hosts_with_unequal_work_take_one_hosts_step(tmp_path):
  """The host with fewer blocks adds empty ones; the denominators are both hosts'."""
  found = hosts(2, tmp_path / "found.json")
  assert found["blocks"] > 1
  learner = small.learner(small.HOSTS_SETTINGS, mesh=mesh_lib.make(jax.devices()[:4], data=2, fsdp=2))
  state, batches = learner.init(0), small.packed(small.items(14), rows=4, lengths=(14, 9))
  for row in found["rows"]:  # the second row sees what the first step did to the parameters
    state, want = learner.update(state, batches)
    for name in ("loss", "entropy", "grad_norm", "tokens", "sequences", "mask_coverage", "flops"):
      assert row[name] == pytest.approx(want[name], rel=2e-4, abs=1e-7), name
