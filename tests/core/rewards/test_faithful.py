import pytest

from ragrl_jax.core.rewards import faithful


def test_a_pair_without_a_side_counts_nothing_and_is_not_asked_about():
  pairs = [("a", "b"), ("a", None), (None, "b"), ("a", "c")]
  assert faithful.whole(pairs) == [("a", "b"), ("a", "c")]
  assert faithful.share(pairs, (1.0, 0.5)) == pytest.approx(1.5 / 4)
  assert faithful.share(pairs[1:3], ()) == faithful.share(pairs[1:3], None) == faithful.share([], None) == 0.0


def test_what_nobody_said_is_unknown():
  assert faithful.share([("a", "b")], None) is None
  assert faithful.share([("a", "b"), ("a", "c")], (1.0, None)) is None
  with pytest.raises(ValueError, match="2 verdicts for 1"):
    faithful.share([("a", "b")], (1.0, 0.0))
  with pytest.raises(ValueError, match="from 0 to 1"):
    faithful.share([("a", "b")], (-0.1,))


def test_states():
  assert faithful.states("It is the City of Paris.", "city of paris") == 1.0
  assert faithful.states("City", "city of paris") == faithful.states("a", "the") == faithful.states("x", "") == 0.0
  assert faithful.states(None, "x") == faithful.states("x", None) == 0.0
