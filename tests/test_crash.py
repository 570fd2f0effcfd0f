"""A run that is killed at any moment resumes as if nothing had happened."""

import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from ragrl_jax.testing import tiny_world

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  folder = tmp_path_factory.mktemp("world")
  tiny_world.make(folder)
  return folder


@pytest.mark.timeout(1200)
@pytest.mark.slow  # each kill needs a new process, 3 to 5 seconds
@pytest.mark.parametrize(
  "ahead, steps, kills",
  [(0, 6, 2), pytest.param(0, 10, 4, marks=pytest.mark.long), pytest.param(1, 10, 2, marks=pytest.mark.long)],
)
def test_a_run_that_is_killed_repeatedly_ends_bit_for_bit_like_an_undisturbed_one(world, tmp_path, ahead, steps, kills):
  def start(workdir, errors):
    return subprocess.Popen(
      [sys.executable, str(ROOT / "tests" / "crash_child.py"), str(world), str(workdir), str(steps), str(ahead)],
      stdout=subprocess.DEVNULL,
      stderr=errors,
    )

  with open(tmp_path / "errors", "w+") as errors:
    assert start(tmp_path / "whole", errors).wait(timeout=600) == 0, (tmp_path / "errors").read_text()[-2000:]
    rng, killed, mid_checkpoint = random.Random(0), 0, 0
    while killed < kills:
      child = start(tmp_path / "killed", errors)
      steps_before = newest(tmp_path / "killed")
      if killed % 2:  # as soon as there is an unfinished checkpoint
        mid_checkpoint += kill_when(child, lambda: unfinished(tmp_path / "killed"))
      else:  # some time after it has made a step
        kill_when(child, lambda before=steps_before: newest(tmp_path / "killed") > before, after_s=rng.uniform(0, 0.4))
      if child.returncode == 0:
        break
      assert child.returncode == -signal.SIGKILL, (tmp_path / "errors").read_text()[-2000:]
      killed += 1
    assert start(tmp_path / "killed", errors).wait(timeout=600) == 0, (tmp_path / "errors").read_text()[-2000:]
  assert killed == kills and mid_checkpoint >= kills // 3, (killed, mid_checkpoint)
  assert tiny_world.assert_same(tmp_path / "whole", tmp_path / "killed") == steps


def newest(workdir) -> int:
  return max((int(p.name) for p in (workdir / "checkpoints").glob("*") if p.name.isdigit()), default=0)


def unfinished(workdir) -> bool:
  return any("tmp" in p.name for p in (workdir / "checkpoints").glob("*"))


def kill_when(child, ready, *, after_s: float = 0.0) -> bool:
  """Kills the child when `ready()` holds. False if the child ended before."""
  while child.poll() is None:
    if ready():
      time.sleep(after_s)
      child.send_signal(signal.SIGKILL)
      child.wait()
      return True
    time.sleep(0.002)
  return False
