import math

import pytest

from ragrl_jax.learner import advantages


def test_unscorable_episodes_leave_their_group():
  # Group 5: (1, 0, None, 0): mean 1/3 of the three scored, not 1/4; sample std sqrt(2/3 / 2) = .577.
  got = advantages.of_episodes([1.0, 0.0, None, 0.0, 1.0, 1.0], [5, 5, 5, 5, 2, 2], eps=0.0)
  assert got[2] is None
  assert got[:2] + got[3:] == pytest.approx([2 / 3 / 3**-0.5, -(3**0.5) / 3, -(3**0.5) / 3, 0.0, 0.0], rel=1e-5)


def test_whoever_is_left_alone_gets_zero():
  assert advantages.of_episodes([1.0, None], [0, 0]) == [0.0, None]
  assert advantages.of_episodes([None], [0]) == [None]


def test_leave_one_out():
  got = advantages.of_episodes([1.0, 0.0, 0.0, 0.0], [0] * 4, kind="leave_one_out")
  assert got == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], rel=1e-5)


def test_what_is_refused():
  with pytest.raises(ValueError, match="reward 1 is nan"):
    advantages.of_episodes([0.0, math.nan], [0, 0])
  with pytest.raises(ValueError, match="config.advantage.kind='gae'"):
    advantages.of_episodes([0.0], [0], kind="gae")
