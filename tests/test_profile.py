"""--profile_steps: which steps are traced, and what the trace holds."""

import pathlib
import types

import jax
import jax.numpy as jnp
import pytest
import tiny_world
from refusals import refused

from ragrl_jax.jobs import sft, train
from ragrl_jax.run import progress


def traced(folder):
  """(numbers of the steps, all names) in the trace of a run's folder."""
  (file,) = (folder / "profile").glob("plugins/profile/*/*.xplane.pb")  # where xprof looks for it
  steps, names = [], set()
  for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
    for line in plane.lines:
      for event in line.events:
        names.add(event.name)
        if event.name == "step" and "step_num" in (stats := dict(event.stats)):
          steps.append(int(stats["step_num"]))
  return sorted(steps), names


def test_the_flag_names_steps():
  assert progress.steps_of("") is None
  assert list(progress.steps_of("5:8")) == [5, 6, 7, 8] and list(progress.steps_of("5")) == [5]
  for bad in ("0", "8:5", "a", "5:", ":5", "1:2:3", "-1"):
    refused(f"--profile_steps={bad}: name a step", progress.steps_of, bad)
  refused("step 5, and config.steps=4", progress.Profile, pathlib.Path("nowhere"), range(5, 9), of=4)


def test_a_clock_accounts_for_all_time_between_two_reports(monkeypatch):
  now = iter((0.0, 1.0, 3.0, 8.0, 8.0, 9.0, 10.0)).__next__
  monkeypatch.setattr(progress, "time", types.SimpleNamespace(perf_counter=now))
  clock = progress.Clock()
  with clock("rollout"):  # 1 to 3
    pass
  clock.move("rollout", "judge_wait", 0.5)
  clock.add("evaluate", 4.0)
  first = dict(rollout=1.5, judge_wait=0.5, evaluate=4.0, other=2.0, step=4.0)
  assert clock.report() == {f"seconds/{phase}": seconds for phase, seconds in first.items()}
  with clock("checkpoint"):  # 8 to 9
    pass
  assert clock.report() == {"seconds/checkpoint": 1.0, "seconds/other": 1.0, "seconds/step": 1.0}


def test_steps_and_phases_are_in_the_trace(tmp_path):
  clock, work = progress.Clock(), jax.jit(lambda x: jnp.sin(x @ x))
  with progress.Profile(tmp_path, range(2, 4), of=5) as profiled:
    for step in range(1, 6):
      with profiled(step), clock("rollout"):
        work(jnp.ones((64, 64))).block_until_ready()
  steps, names = traced(tmp_path)
  assert steps == [2, 3] and "rollout" in names


def test_a_run_that_fails_while_it_is_traced_leaves_its_trace(tmp_path):
  with pytest.raises(RuntimeError, match="stopped"), progress.Profile(tmp_path, range(1, 9), of=9) as profiled:
    for step in (1, 2):
      with profiled(step):
        if step == 2:
          raise RuntimeError("stopped")
  assert traced(tmp_path)[0] == [1, 2]
  with progress.Profile(tmp_path / "other", range(1, 2), of=9) as profiled, profiled(1):
    pass  # the profiler is free again
  with progress.Profile(tmp_path / "none", None, of=9) as profiled, profiled(1):
    pass
  assert not (tmp_path / "none").exists()


@pytest.mark.long  # two runs and their programs
def test_training_and_fine_tuning_are_traced(world, tmp_path):
  tuned, trained = tmp_path / "tuned", tmp_path / "trained"
  assert len(list(sft.sft(tiny_world.config(world, variant="sft"), tuned, profile=range(3, 9)))) == 3
  assert traced(tuned)[0] == [3]
  config = tiny_world.config(world)
  config.model.path, config.steps = str(tuned / "model"), 2
  assert len(list(train.train(config, trained, profile=range(2, 3)))) == 2
  steps, names = traced(trained)
  assert steps == [2] and {"weights", "rollout", "scoring", "update"} <= names
