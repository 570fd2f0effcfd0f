import pytest
from refusals import refused

from ragrl_jax.core.rewards import faithful


def test_a_pair_with_an_empty_side_scores_zero_and_is_not_judged_and_a_missing_verdict_is_unknown():
  pairs = [("a", "b"), ("a", None), (None, "b"), ("a", "c")]
  assert faithful.whole(pairs) == [("a", "b"), ("a", "c")]
  assert faithful.share(pairs, (1.0, 0.5)) == pytest.approx(1.5 / 4)
  assert faithful.share(pairs[1:3], ()) == faithful.share(pairs[1:3], None) == faithful.share([], None) == 0.0
  assert faithful.share([("a", "b")], None) is None
  assert faithful.share([("a", "b"), ("a", "c")], (1.0, None)) is None
  for verdicts, says in (((1.0, 0.0), "2 verdicts for 1"), ((-0.1,), "from 0 to 1")):
    refused(says, faithful.share, [("a", "b")], verdicts)


def test_states_by_letters_and_by_whole_words():
  assert faithful.states("It is the City of Paris.", "city of paris") == 1.0
  assert faithful.states("City", "city of paris") == faithful.states("a", "the") == faithful.states("x", "") == 0.0
  assert faithful.states(None, "x") == faithful.states("x", None) == 0.0
  # The letters of "no" stand in "Norwegian" and in "know": the paper's rule pays for that.
  thought = "Both films are Norwegian, I know now."
  assert faithful.states(thought, "no") == 1.0 and faithful.states(thought, "no", words=True) == 0.0
  assert faithful.states("So: no!", "No.", words=True) == faithful.states("no", "no", words=True) == 1.0
  assert faithful.states("the City of Paris it is", "city of paris", words=True) == 1.0
  assert faithful.states("x", "", words=True) == faithful.states("a", "the", words=True) == 0.0


def test_pooled_counts_pairs_and_not_episodes():
  two, none = [("a", "b"), ("a", "c"), ("a", None)], []
  assert faithful.pooled(two, (1.0, 0.0)) == (1.0, 3) and faithful.pooled(none, None) == (0.0, 0)
  # What is not known is left out: nobody was asked, or no answer came.
  # An unknown verdict is not a 0, and without its pair the incomplete one would lower the mean.
  assert faithful.pooled(two, (1.0, None)) == faithful.pooled(two, None) == (0.0, 0)
  refused("1 verdicts for 2", faithful.pooled, two, (1.0,))


def test_copied():
  found = "Doc 1(Title: Oslo) Harald III founded it."
  assert faithful.copied(found, "Harald III founded it!") and faithful.copied(found, "oslo harald")
  assert faithful.copied("by the O’Neill–Lee line", "the O'Neill-Lee line")
  assert not faithful.copied(found, "Oslo was founded by Harald III.") and not faithful.copied(found, ".")
