from ragrl_jax.core import stopping


def test_a_level_holds_when_it_is_measured_twice():
  # A single measurement may be luck, and the level must hold at the end.
  curves = [], [0.98], [0.5, 0.98], [0.98, 0.5], [0.5, 0.97, 0.98]
  assert [stopping.holds(curve, 0.97) for curve in curves] == [False] * 4 + [True]


def test_a_curve_has_stopped_rising():
  stopped = lambda curve: stopping.stopped_rising(curve, patience=2, rise=0.005)
  # Neither of the last two is above the third last, by the required rise. Two values are too few.
  assert all(map(stopped, ([0.4, 0.4, 0.4], [0.4, 0.96, 0.95, 0.94], [0.4, 0.96, 0.95, 0.9601])))
  rising = [], [0.4, 0.4], [0.4, 0.9, 0.95], [0.4, 0.9, 0.95, 0.96], [0.4, 0.96, 0.95, 0.98]
  assert not any(map(stopped, rising))


def test_a_curve_that_has_not_begun_to_rise_has_not_stopped_rising():
  flat = [0.4, 0.4, 0.41, 0.4]
  assert stopping.stopped_rising(flat, patience=3, rise=0.02)
  assert not stopping.stopped_rising(flat, patience=3, rise=0.02, gain=0.05)
  assert stopping.stopped_rising([*flat, 0.5, 0.5, 0.5, 0.5], patience=3, rise=0.02, gain=0.05)
