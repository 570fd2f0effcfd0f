from refusals import refused

from ragrl_jax.core import schedules


def test_ramp_stage_and_decay_by_hand():
  # From step 10 to step 20 the value goes from 0 to 1, so it is 0.5 at step 15.
  assert [schedules.ramp(s, 10, 20) for s in (0, 10, 15, 20, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]
  assert schedules.ramp(15, 10, 20, low=2.0, high=1.0) == 1.5
  assert schedules.ramp(5, 5, 5) == 1.0 and schedules.ramp(4, 5, 5) == 0.0  # a jump
  refused("must not end before", schedules.ramp, 0, 2, 1)
  assert [schedules.stage(s, (100, 200)) for s in (0, 99, 100, 199, 200)] == [0, 0, 1, 1, 2]
  assert schedules.stage(7, ()) == 0
  refused("must rise", schedules.stage, 0, (5, 5))
  # CARE: T 350, eta 1: half the questions are easy at step 175, none at the end. The code keeps at least half easy.
  assert [schedules.decay(step, 350) for step in (175, 350, 400)] == [0.5, 0.0, 0.0]
  assert schedules.decay(300, 350, floor=0.5) == 0.5


def test_a_level_holds_when_it_is_measured_twice_and_a_curve_has_stopped_rising():
  # A single measurement may be luck, and the level must hold at the end.
  curves = [], [0.98], [0.5, 0.98], [0.98, 0.5], [0.5, 0.97, 0.98]
  assert [schedules.holds(curve, 0.97) for curve in curves] == [False] * 4 + [True]
  stopped = lambda curve: schedules.stopped_rising(curve, patience=2, rise=0.005)
  # Neither of the last two is above the third last, by the required rise. Two values are too few.
  assert all(map(stopped, ([0.4, 0.4, 0.4], [0.4, 0.96, 0.95, 0.94], [0.4, 0.96, 0.95, 0.9601])))
  rising = [], [0.4, 0.4], [0.4, 0.9, 0.95], [0.4, 0.9, 0.95, 0.96], [0.4, 0.96, 0.95, 0.98]
  assert not any(map(stopped, rising))
  # A curve that has not begun to rise has not stopped rising.
  flat = [0.4, 0.4, 0.41, 0.4]
  assert schedules.stopped_rising(flat, patience=3, rise=0.02)
  assert not schedules.stopped_rising(flat, patience=3, rise=0.02, gain=0.05)
  assert schedules.stopped_rising([*flat, 0.5, 0.5, 0.5, 0.5], patience=3, rise=0.02, gain=0.05)
