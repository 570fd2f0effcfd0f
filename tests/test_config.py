"""Settings: locked names, relations between fields, and the miniature of a run."""

import pytest

from ragrl_jax import config as config_lib


def test_defaults_are_valid():
  config_lib.validate(config_lib.default_config())


def test_a_misspelt_field_says_which_was_meant():
  with pytest.raises(AttributeError, match="Did you mean"):
    config_lib.default_config().rollout.group_sise = 3


@pytest.mark.parametrize(
  "path, value, words",
  [
    ("rollout.rows", 1, "rows=1 is less than lanes"),
    ("rollout.group_size", 1, "a group of one"),
    ("rollout.temperature", 0.0, "above 0"),
    ("rollout.max_new_tokens", 600, "no room for a prompt"),
    ("learner.row_lengths", (64,), "the longest must hold"),
    ("loss.kl_coef", 0.1, "name an estimator"),
    ("rollout.chunk", 0, "at least 1"),
    ("rollout.reserve", 512, "reserve=512.*less than context=512"),
    ("rollout.ahead", 2, "0 or 1"),
    ("model.lora.rank", -1, "rank must be at least 0"),
    ("rollout.filter.metric", "reward", "'none', 'outcome' or 'total'"),
    ("rollout.filter.surplus", "save", "'discard' or 'keep'"),
    ("rollout.filter.max_draws", 0, "at least 1"),
    ("rollout.filter.tolerance", -1e-6, "at least 0"),
  ],
)
def test_relations_are_checked(path, value, words):
  config = config_lib.default_config()
  config.update_from_flattened_dict({path: value})
  with pytest.raises(ValueError, match=words):
    config_lib.validate(config)


def test_evaluation_packs_no_rows():
  config = config_lib.default_config()
  config.learner.row_lengths = (64,)
  config_lib.validate(config, training=False)


def test_what_is_sampled_ahead_is_not_kept_any_longer():
  config = config_lib.default_config()
  config.rollout.ahead, config.rollout.filter.surplus = 1, "keep"
  with pytest.raises(ValueError, match="two steps stale"):
    config_lib.validate(config)


def test_a_folder_of_adapters_says_their_rank():
  config = config_lib.default_config()
  config.model.lora.update(dict(rank=8, path="run/model"))
  with pytest.raises(ValueError, match="the folder says the rank"):
    config_lib.validate(config)


@pytest.mark.parametrize("value", [None, True])
def test_none_and_bool_are_no_ints(value):
  config = config_lib.default_config()
  config.rollout.group_size = value
  with pytest.raises(ValueError, match="config.rollout.group_size"):
    config_lib.validate(config)


def test_shrink_changes_sizes_and_no_rule():
  config = config_lib.default_config()
  config.rollout.reserve = 60
  small = config_lib.shrink(config.copy_and_resolve_references())
  config_lib.validate(small)
  assert small.rollout.reserve == small.rollout.max_new_tokens  # a whole turn at most
  assert small.rollout.group_size < config.rollout.group_size
  for rule in ("loss", "advantage", "recipe", "preset", "switches", "optimizer"):
    assert small[rule] == config[rule]
