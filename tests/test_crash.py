"""A run that is killed at any moment resumes as if nothing had happened."""

import random
import signal
import time

import crash_child
import pytest
from forks import FORKS

from ragrl_jax.testing import tiny_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  folder = tmp_path_factory.mktemp("world")
  tiny_world.make(folder)
  return folder


@pytest.mark.timeout(1200)
@pytest.mark.slow  # each kill needs a new process, which traces its programs again
@pytest.mark.parametrize(
  "ahead, steps, kills",
  [(0, 6, 2), pytest.param(0, 10, 4, marks=pytest.mark.long), pytest.param(1, 10, 2, marks=pytest.mark.long)],
)
def test_a_run_that_is_killed_repeatedly_ends_bit_for_bit_like_an_undisturbed_one(world, tmp_path, ahead, steps, kills):
  errors = tmp_path / "errors"

  def start(workdir):
    child = FORKS.Process(target=crash_child.main, args=(world, workdir, steps, ahead, errors))
    child.start()
    return child

  def end(child):
    child.join(timeout=600)
    assert child.exitcode == 0, errors.read_text()[-2000:]

  def kill_repeatedly(workdir):
    """Number of kills; a start may reach its end before this process sees that its moment has come."""
    rng, killed = random.Random(0), 0
    while killed < kills:
      steps_before = newest(workdir)
      child = start(workdir)
      if killed % 2:  # as soon as there is an unfinished checkpoint
        kill_when(child, lambda: unfinished(workdir))
      else:  # some time after it has made a step
        kill_when(child, lambda before=steps_before: newest(workdir) > before, after_s=rng.uniform(0, 0.4))
      if child.exitcode == 0:
        break
      assert child.exitcode == -signal.SIGKILL, errors.read_text()[-2000:]
      killed += 1
    return killed

  end(start(tmp_path / "whole"))
  tries = (tmp_path / f"killed_{number}" for number in range(5))
  killed = next((workdir for workdir in tries if kill_repeatedly(workdir) == kills), None)
  assert killed, "no run was killed often enough: all reached their end before"
  end(start(killed))
  assert tiny_world.assert_same(tmp_path / "whole", killed) == steps


def newest(workdir) -> int:
  return max((int(p.name) for p in (workdir / "checkpoints").glob("*") if p.name.isdigit()), default=0)


def unfinished(workdir) -> bool:
  return any("tmp" in p.name for p in (workdir / "checkpoints").glob("*"))


def kill_when(child, ready, *, after_s: float = 0.0) -> None:
  """Kills the child when `ready()` holds, unless it ends before."""
  while child.is_alive():
    if ready():
      time.sleep(after_s)
      child.kill()
      break
    time.sleep(0.002)
  child.join()
