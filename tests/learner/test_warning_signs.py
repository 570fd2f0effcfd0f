import numpy as np
import pytest

from ragrl_jax import recipes
from ragrl_jax.run import warning_signs

CALM = dict(zero_advantage_share=0.3, searches=1.5, entropy=0.5, kl=0.01, response_tokens=100.0, mask_coverage=0.4)
CALM |= dict(mismatch=1e-6, clip_fraction=0.01, skipped=0.0)


def test_a_healthy_run_gets_no_warning():
  assert warning_signs.warnings([CALM] * 20, searches_expected=True) == {}
  assert warning_signs.warnings([CALM | dict(searches=0.0)]) == {}  # normal without a tool
  assert warning_signs.warnings([]) == {} and warning_signs.warnings([{}] * 9, searches_expected=True) == {}


@pytest.mark.parametrize(
  "change, name, word",
  [
    (dict(zero_advantage_share=1.0), "no_signal", "every advantage is 0"),
    (dict(zero_advantage_share=0.95), "little_signal", "95%"),
    (dict(searches=0.0), "no_searches", "no episode called"),
    (dict(mask_coverage=0.001), "little_trained", "0.1%"),
    (dict(mismatch=0.2), "mismatch", "0.200 nats"),
    (dict(kl=3.0), "far_from_reference", "kl_coef"),
    (dict(clip_fraction=0.5), "clipping", "50%"),
    (dict(skipped=1.0), "skipped", "not finite"),
  ],
)
def test_warnings_at_once(change, name, word):
  found = warning_signs.warnings([CALM | change], searches_expected=True)
  assert list(found) == [name] and word in found[name]


@pytest.mark.parametrize(
  "change, name",
  [
    (dict(entropy=0.005), "entropy_collapse"),
    (dict(entropy=0.09), "entropy_collapse"),
    (dict(entropy=3.0), "entropy_explosion"),
    (dict(response_tokens=20.0), "length"),
    (dict(response_tokens=900.0), "length"),
    (dict(searches=0.1), "searches_vanish"),
  ],
)
def test_warnings_relative_to_the_first_steps(change, name):
  assert list(warning_signs.warnings([CALM] * 5 + [CALM | change])) == [name]
  assert warning_signs.warnings([CALM] * 4 + [CALM | change]) == {}  # too early to know what is normal


def test_a_trick_that_spreads_is_told_early():
  """ARENA's analysis died in a real run (docs/real_model.md): its shares, step by step, and those of the run before."""
  died = [
    0.008,
    0.0,
    0.002,
    0.004,
    0.004,
    0.01,
    0.002,
    0.004,
    0.01,
    0.043,
    0.068,
    0.113,
    0.25,
    0.33,
    0.391,
    0.531,
    0.809,
  ]
  lived = [0.006, 0.008, 0.012, 0.006, 0.004, 0.006, 0.004, 0.008, 0.012, 0.033, 0.008, 0.006, 0.008, 0.014, 0.021]
  falls = [0.459, 0.482, 0.447, 0.463, 0.408, 0.434, 0.402, 0.445, 0.484, 0.516, 0.533, 0.508, 0.441, 0.4, 0.463]

  def first(**shares):
    history = []
    for step, values in enumerate(zip(*shares.values()), 1):
      row = CALM | {f"unearned/{name}": value for name, value in zip(shares, values)}
      history = warning_signs.kept(history, row)
      if found := warning_signs.warnings(history):
        return step, found
    return None

  step, found = first(no_reasoning=died)
  assert step == 13 and list(found) == ["unearned"]
  assert "no_reasoning rose from 0% to 25% of the replies" in found["unearned"]
  assert first(no_reasoning=lived, shape_alone=falls) is None


def test_few_spreads_at_the_first_step():
  of = lambda row: warning_signs.of_training([row], recipes.get("search_r1"), 10)
  for row in (dict(zero_spread_groups=0.97), {"zero_spread_groups": 0.0, "groups/discarded_share": 0.96}):
    assert "of the groups" in of(CALM | row)["warning/few_spreads"]
  for row in (dict(zero_spread_groups=0.9), {}):  # episodes without siblings have no groups
    assert "warning/few_spreads" not in of(CALM | row)
  assert "warning/few_spreads" not in warning_signs.of_training([CALM] * 2, recipes.get("search_r1"), 10)
  found = of(CALM | dict(zero_spread_groups=1.0, zero_advantage_share=1.0))
  assert "warning/no_signal" in found and "warning/few_spreads" not in found


def test_a_message_names_a_switch_only_if_the_recipe_has_it():
  for name, has in (("search_r1", True), ("care", False)):
    found = warning_signs.of_training([CALM | dict(mask_coverage=0.001)], recipes.get(name), 10)
    assert ("config.switches.max_passage_tokens" in found["warning/little_trained"]) == has


def test_steps_that_train_no_policy_do_not_count_as_the_start():
  """As while only the critic learns, or while a draw finds no group with a spread."""
  empty = {name: value for name, value in CALM.items() if name != "entropy"}
  history = []
  for row in [empty] * 4 + [dict(CALM, **{"groups/trained": 0.0})] * 3 + [CALM] * 5 + [CALM | dict(entropy=0.001)]:
    history = warning_signs.kept(history, row)
  assert len(history) == 6 and list(warning_signs.warnings(history)) == ["entropy_collapse"]
  assert len(warning_signs.kept(warning_signs.kept([], empty), empty)) == 2  # the first step is told from later ones


def test_a_resumed_run_is_compared_with_the_first_steps_of_the_run():
  rows = [dict(step=0, **{"evaluation/em": 0.2}), *(dict(CALM, step=step, kl=None) for step in range(1, 9))]
  history = warning_signs.kept(warning_signs.start(rows), CALM | dict(entropy=0.05))
  assert len(history) == 6 and "kl" not in history[0]
  assert list(warning_signs.warnings(history)) == ["entropy_collapse"]
  assert warning_signs.start([]) == []


def test_a_step_without_a_score_says_so_and_nothing_else():
  nothing = CALM | dict(
    episodes=8.0, unscorable=8.0, failed_share=0.25, mask_coverage=0.0, response_tokens=float("nan")
  )
  found = warning_signs.warnings([CALM] * 5 + [nothing])
  assert list(found) == ["nothing_scored"] and "none of the 8 episodes" in found["nothing_scored"]


def test_dynamic_sampling_that_finds_too_few_groups_is_warned_about():
  empty = {"groups/drawn": 8.0, "groups/trained": 0.0, "groups/missing": 2.0, "entropy": 0.0, "mask_coverage": 0.0}
  # Nothing was trained on, so its zeros mean nothing and one warning is enough.
  assert list(warning_signs.warnings([empty] * 9)) == ["no_groups"]
  few = {"groups/draws": 4.0, "groups/trained": 1.0, "groups/missing": 1.0, "entropy": 1.0}
  assert list(warning_signs.warnings([empty] * 2 + [few] * 9)) == ["few_groups"]
  assert warning_signs.warnings([few | {"groups/missing": 0.0}]) == {}


def test_the_kept_history_stays_short_and_warns_like_the_whole():
  rng, whole, kept = np.random.default_rng(0), [], []
  for _ in range(40):
    metrics = {name: value * rng.choice([0.1, 1.0, 10.0]) for name, value in CALM.items()}
    whole, kept = [*whole, metrics], warning_signs.kept(kept, metrics)
    assert warning_signs.warnings(kept, searches_expected=True) == warning_signs.warnings(whole, searches_expected=True)
  assert len(kept) == 6  # the five steps that define the start, and the last one
