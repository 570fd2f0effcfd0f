import json
import random
import signal
import time

import crash_child
import decoders
import hub as hub_kit
import pytest
import tiny_world
from forks import FORKS

from ragrl_jax.run import saving
from ragrl_jax.store import metrics


@pytest.mark.timeout(1200)
@pytest.mark.long  # each kill needs a new process, which traces its programs again
@pytest.mark.parametrize("ahead, steps, kills", [(0, 6, 3), (0, 10, 6), (1, 10, 3)])
def test_a_run_that_is_killed_repeatedly_ends_bit_for_bit_like_an_undisturbed_one(world, tmp_path, ahead, steps, kills):
  errors = tmp_path / "errors"

  def kill_repeatedly(workdir):
    """Number of kills; a start may reach its end before this process sees that its moment has come."""
    rng, killed = random.Random(0), 0
    while killed < kills:
      steps_before = newest(workdir)
      child = start(world, workdir, steps, ahead, errors)
      if killed % 3 == 0:  # while the episodes of a step are written beside the next one
        kill_when(child, lambda name=f"episodes/.step_*.{child.pid}.part": any(workdir.glob(name)))
      elif killed % 3 == 1:  # as soon as there is an unfinished checkpoint
        kill_when(child, lambda: tiny_world.unfinished(workdir))
      else:  # some time after it has made a step
        kill_when(child, lambda before=steps_before: newest(workdir) > before, after_s=rng.uniform(0, 0.4))
      if child.exitcode == 0:
        break
      assert child.exitcode == -signal.SIGKILL, errors.read_text()[-2000:]
      killed += 1
    return killed

  end(start(world, whole := tmp_path / "whole", steps, ahead, errors), errors)
  tries = (tmp_path / f"killed_{number}" for number in range(5))
  killed = next((workdir for workdir in tries if kill_repeatedly(workdir) == kills), None)
  assert killed, "no run was killed often enough: all reached their end before"
  end(start(world, killed, steps, ahead, errors), errors)
  assert tiny_world.assert_same(whole, killed) == steps
  returned = [{row["step"]: row.get("rollback/to") for row in metrics.read_metrics(run)} for run in (whole, killed)]
  assert returned[0] == returned[1] == {step: 2 if step == 5 + ahead else None for step in range(1, steps + 1)}
  logged = [{path.name: path.read_bytes() for path in (run / "episodes").iterdir()} for run in (whole, killed)]
  assert logged[0] == logged[1] and len(logged[0]) == steps


@pytest.mark.long  # four processes
def test_a_killed_run_on_a_hub_name_goes_on_with_its_commit(world, tmp_path):
  """Also when the branch has moved, and from the cache when the hub is gone. The KL's reference is read again, too."""
  errors, run = tmp_path / "errors", tmp_path / "run"

  def begun(workdir, *model):
    return start(world, workdir, 6, 0, errors, *model)

  first, second = (weights(world, tmp_path / str(seed), seed) for seed in (0, 1))
  end(begun(tmp_path / "whole", str(first)), errors)
  with hub_kit.Hub() as server:
    there = hub_kit.places(server.address, tmp_path / "cache")
    commit = server.serve("org/tiny", first)
    for step in (1, 2):
      kill_when(child := begun(run, "org/tiny", there), lambda step=step: newest(run) >= 2 * step)
      assert child.exitcode == -signal.SIGKILL, errors.read_text()[-2000:]
      assert json.loads((run / "config.json").read_text())["model"]["path"] == f"org/tiny@{commit}"
      assert server.serve("org/tiny", second) != commit
  end(begun(run, "org/tiny", there), errors)  # without a hub
  assert f"the commit that is stored is used, {commit}" in errors.read_text()
  assert tiny_world.assert_same(tmp_path / "whole", run) == 6
  assert (run / "model" / "tokenizer.model").read_bytes() == (first / "tokenizer.model").read_bytes()


def start(*given):
  child = FORKS.Process(target=crash_child.main, args=given)
  child.start()
  return child


def end(child, errors):
  child.join(timeout=600)
  assert child.exitcode == 0, errors.read_text()[-2000:]


def weights(world, folder, seed):
  """A folder with a new model and the world's tokenizer."""
  config = tiny_world.config(world)
  config.seed = seed
  saving.save(*decoders.made(config), folder)
  return folder


def newest(workdir) -> int:
  return max(tiny_world.checkpoints(workdir), default=0)


def kill_when(child, ready, *, after_s: float = 0.0) -> None:
  """Kills the child when `ready()` holds, unless it ends before."""
  while child.is_alive():
    if ready():
      time.sleep(after_s)
      child.kill()
      break
    time.sleep(0.002)
  child.join()
