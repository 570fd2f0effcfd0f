"""Schedules of sampling and learning, on the simulated clock of benchmarks/schedule.py."""

import dataclasses

import schedule
from refusals import refused

SMALL = schedule.Setting("small", prompts=8, group_size=4, lanes=32, limit=2048, steps=8)
clock = lambda setting, name: schedule.simulate(setting, name)[0]


def test_sampling_two_steps_together_takes_two_thirds_of_the_time():
  before, after = schedule.simulate(SMALL, "before"), schedule.simulate(SMALL, "ahead=1")
  assert before[0] >= 1.5 * after[0] and before[1] < after[1]
  assert after == schedule.simulate(SMALL, "ahead=1")  # the simulation does not depend on the machine
  assert before == schedule.simulate(SMALL, "ahead=0")


def test_drawing_only_missing_groups_saves_time_without_sampling_ahead_too():
  half = dataclasses.replace(SMALL, kept=0.5, steps=4)
  assert clock(half, "before") >= 1.25 * clock(half, "ahead=0")


def test_a_setting_that_draws_too_few_groups_is_refused():
  refused("too few groups", clock, dataclasses.replace(SMALL, kept=0.01), "ahead=0")
