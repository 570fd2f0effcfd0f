import pytest

from ragrl_jax import recipes
from ragrl_jax.run import warning_signs

CALM = dict(zero_advantage_share=0.3, searches=1.5, entropy=0.5, kl=0.01, response_tokens=100.0, mask_coverage=0.4)
CALM |= dict(mismatch=1e-6, clip_fraction=0.01, skipped=0.0)
EMPTY = {"groups/drawn": 8.0, "groups/trained": 0.0, "groups/missing": 2.0, "entropy": 0.0, "mask_coverage": 0.0}
FEW = {"groups/draws": 4.0, "groups/trained": 1.0, "groups/missing": 1.0, "entropy": 1.0}
NOTHING = dict(episodes=8.0, unscorable=8.0, failed_share=0.25, mask_coverage=0.0, response_tokens=float("nan"))


def test_a_healthy_run_gets_no_warning():
  assert warning_signs.warnings(CALM, searches_expected=True) == {}
  assert warning_signs.warnings(CALM | dict(searches=0.0)) == {}  # normal without a tool
  assert warning_signs.warnings({}, searches_expected=True) == {}
  assert warning_signs.warnings(FEW | {"groups/missing": 0.0}) == {}


@pytest.mark.parametrize("change, name, word", [
  (dict(zero_advantage_share=1.0), "no_signal", "every advantage is 0"), (dict(skipped=1.0), "skipped", "not finite"),
  (dict(zero_advantage_share=0.95), "little_signal", "95%"), (dict(searches=0.0), "no_searches", "no episode called"),
  ({"ended/budget": 0.5}, "no_room", "50% of the episodes"), (dict(mask_coverage=0.001), "little_trained", "0.1%"),
  (dict(mismatch=0.2), "mismatch", "0.200 nats"), (dict(kl=3.0), "far_from_reference", "kl_coef"),
  (dict(clip_fraction=0.5), "clipping", "50%"), (dict(old_kl=0.02), "far_update", "0.020 nats"),
  (NOTHING, "nothing_scored", "none of the 8 episodes"), (FEW, "few_groups", "4 draws found 1 groups"),
  (EMPTY, "no_groups", "none of the 8 groups"),  # nothing was trained on: its zeros mean nothing, one warning is enough
])  # fmt: skip
def test_warnings_at_once(change, name, word):
  found = warning_signs.warnings(CALM | change, searches_expected=True)
  assert list(found) == [name] and word in found[name]


def test_few_spreads_at_the_first_step():
  of = lambda row, step=1: warning_signs.of_training(row, recipes.get("search_r1"), step, 10)
  for row in (dict(zero_spread_groups=0.97), {"zero_spread_groups": 0.0, "groups/discarded_share": 0.96}):
    assert "of the groups" in of(CALM | row)["warning/few_spreads"]
  for row in (dict(zero_spread_groups=0.9), {}):  # episodes without siblings have no groups
    assert "warning/few_spreads" not in of(CALM | row)
  assert "warning/few_spreads" not in of(CALM | dict(zero_spread_groups=0.97), step=2)
  none = CALM | dict(zero_spread_groups=1.0, zero_advantage_share=1.0)
  assert "warning/no_signal" in of(none) and "warning/few_spreads" not in of(none)
  assert not of(none | dict(taught=0.2)).keys() & {"warning/no_signal", "warning/few_spreads"}  # a teacher teaches


def test_a_message_names_a_switch_only_if_the_recipe_has_it():
  for name, has in (("search_r1", True), ("care", False)):
    found = warning_signs.of_training(CALM | dict(mask_coverage=0.001), recipes.get(name), 1, 10)
    assert ("config.switches.max_passage_tokens" in found["warning/little_trained"]) == has


def test_searches_are_expected_only_of_a_policy_that_searches():
  for name, expected in (("search_r1", True), ("lear", False), ("arena", False)):  # given passages, searched for or not
    found = warning_signs.of_training(CALM | dict(searches=0.0), recipes.get(name), 1, 10)
    assert ("warning/no_searches" in found) == expected, name
