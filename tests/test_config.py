import json
import pathlib
import re

import pytest
from absl import flags
from ml_collections import config_flags
from refusals import refused

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.cli import commands, list_settings  # noqa: F401  (commands registers how flags are read)
from ragrl_jax.report import page
from ragrl_jax.run import questions
from ragrl_jax.settings import Rollout, fields, learning, playing
from ragrl_jax.settings.learning import Loss
from ragrl_jax.store import changes

GOLDEN = pathlib.Path(__file__).parent / "golden" / "default_config.json"  # the settings before they were dataclasses


def test_the_config_has_all_earlier_settings_and_equals_the_typed_ones():
  now, before = list(page.flat(config_lib.default_config().to_dict())), list(json.loads(GOLDEN.read_text()).items())
  assert now == before and [type(value) for _, value in now] == [type(value) for _, value in before]
  config = config_lib.default_config()
  assert settings.of(config) == settings.Settings()
  config.rollout.filter.metric, config.learner.row_lengths = "total", (128, 512)
  sampling = dict(temperature=0.6, top_k=7, top_p=0.8, max_new_tokens=48)
  config.rollout.update(sampling)
  with config.unlocked():
    config.model.shape.max_position, config.switches = 1024, dict(max_searches=2)
  typed = settings.of(config)
  assert (typed.rollout.filter.metric, typed.learner.row_lengths) == ("total", (128, 512))
  assert typed.model.shape.more == dict(max_position=1024) and typed.switches == dict(max_searches=2)
  assert fields.plain(typed) == config.to_dict()
  assert vars(typed.rollout.sampling) == sampling
  assert learning.Critic(clip=None).clip is None and Rollout(temperature=1).temperature == 1


@pytest.mark.parametrize("make, values, words", [
  (Rollout, dict(lanes=0), "config.rollout.lanes=0: it must be at least 1."),
  (Rollout, dict(top_p=1.5), "config.rollout.top_p=1.5: it must be above 0 and at most 1."),
  (Rollout, dict(ahead=True), "config.rollout.ahead=True: it must be 0 or 1."),
  (learning.Advantage, dict(lam=2), "config.advantage.lam=2: it must be between 0 and 1."),
  (learning.Advantage, dict(kind="grpo"), "config.advantage.kind='grpo': it must be 'group_relative', which is GRPO."),
  (Loss, dict(dual_clip=1.0), "config.loss.dual_clip=1.0: it must be None or a number above 1."),
  (Loss, dict(surrogate="cispo", dual_clip=3.0), "config.loss.dual_clip=3.0 with config.loss.surrogate="),
  (Loss, dict(llds_coef=0.2), "config.loss.llds_coef=0.2 with one optimiser step per batch"),
  (Loss, dict(kl="k3", kl_corrected=True), "config.loss.kl_corrected=True with kl='k3' in the loss"),
  (Loss, dict(importance_floor=0.5), "config.loss.importance_floor=0.5 with config.loss.importance_cap="),
  (learning.Teacher, dict(path="m", beta=0.9), "config.loss.teacher.beta=0.9 with path='m', kind='reverse': it has no"),
  (learning.Teacher, dict(path="m", tells="answer"), "no effect without path='policy'. Set that, or leave tells out."),
  (learning.Teacher, dict(path="m", final_step=9), "it has no effect without final_coef. Set that, or leave"),
  (learning.Teacher, dict(path="m", key_variable="K"), "it has no effect without a server's address as path. Set that"),
  (learning.Reward, dict(overlong_buffer=9), "config.reward.overlong_buffer=9 with config.reward.overlong_limit=0: no"),
  (Loss, dict(kl_target=0.1), "config.loss.kl_target=0.1 with config.loss.kl_coef=0.0: the controller"),
  (playing.Prompting, dict(chat=1), "config.prompting.chat=1: it must be True or False."),
  (playing.Data, dict(train=None), "config.data.train=None: it must be a text, such as ''."),
  (settings.Settings, dict(steps=2.5), "config.steps=2.5: it must be a whole number, such as 100."),
  (settings.of, dict(rollout=dict(lane=1)), "config.rollout.lane: there is no such setting"),
  (settings.of, dict(judges=dict(x=dict(kin="nli"))), "config.judges.x sets kin: use fields of config.judge"),
  (settings.of, dict(judges=dict(think_answer=dict(kind="oracle"))),
   "config.judges.think_answer.kind='oracle': it must be 'none', 'exact', 'sub_em', 'sub_em_words', 'lexical', 'nli'"),
])  # fmt: skip
def test_sections_check_themselves(make, values, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    make(values) if make is settings.of else make(**values)


# What a number's name says about its unit.
UNITS = {r"_s$": "second", "token": "token", "byte": "byte", "kl_ta": "nat", "share$|easy_floor|top_p": "share"}


def test_every_setting_has_a_meaning_and_every_number_of_things_a_unit():
  records = {"config": settings.Settings, **{name: room.Switches for name, room in recipes.RECIPES.items()}}
  seen = 0
  for where, record in records.items():
    for group in fields.groups(record):
      assert group.meaning, where
      for one in group.settings:
        seen += 1
        name = f"{where}.{group.path}.{one.name}"
        assert one.meaning and one.meaning == one.meaning.strip() and not one.meaning.endswith("."), name
        counts = re.fullmatch(r"-?\d+", one.default) and one.name != "seed"
        assert one.unit or not counts, f"{name}: a whole number counts something"
        if re.fullmatch(r"-?[\d.e-]+|None", one.default):
          unit = next((unit for words, unit in UNITS.items() if re.search(words, one.name)), "")
          assert unit in one.unit, f"{name}: its unit is {unit}"
  assert seen > 250


def test_settings_are_listed_by_section_name_or_recipe_and_a_section_by_hand():
  group = fields.Group("rollout", "How.", (fields.Setting("page", "64", "tokens per page", "tokens", "at least 1"),))
  assert fields.text(group) == "config.rollout: How.\n  page=64                   tokens per page [tokens; at least 1]"
  found = fields.find(settings.Settings, "config.rollout")
  assert [group.path for group in found] == ["rollout", "rollout.mesh", "rollout.filter"]
  assert found[0].settings[1] == ("group_size", "8", "G: samples of each prompt", "samples", "at least 1")
  for name, paths in (("rollout.top_k", ["rollout"]), ("top_k", ["retrieval", "rollout"]), ("steps", [""]), ("x", [])):
    assert [group.path for group in fields.find(settings.Settings, name)] == paths
  assert fields.find(settings.Settings, "judge.kind")[0].settings[0].allowed.startswith("none, exact, ")
  assert "\n  page=64 " in list_settings.listing("rollout.page")
  assert "config.switches: " in list_settings.listing("arena") and "bonus=10.0" in list_settings.listing("arena")
  every = list_settings.listing()
  assert all(f"config.{group.path}: " in every for group in list(fields.groups(settings.Settings))[1:])
  for name, near in (("rollout.contex", "context"), ("rolout", "rollout"), ("arenas", "arena")):
    refused(f"recipe '{name}'. Did you mean {near}", list_settings.listing, name)


def read(*words, name="search_r1:ppo"):
  name, _, variant = name.partition(":")
  file = pathlib.Path(__file__).parents[1] / "configs" / f"{name}.py"
  values, words = flags.FlagValues(), ["train", f"--config={file}:{variant}", *words]
  config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=words)
  values(words)
  return values.config


def test_a_users_questions_are_the_only_ones_read():
  named = lambda *words, name="care:smoke": questions.named(read(*words, name=name))
  mine = "--config.data.train=mine.jsonl"
  assert "hf:microsoft/ms_marco" in named() and "hf:hotpotqa" in named()
  alone = "questions: config.data.train=mine.jsonl, config.data.hard=none, config.data.evaluate=none"
  assert named(mine) == alone == named(mine, "--config.data.evaluate=")
  assert named("--config.data.evaluate=", mine) == alone
  assert "config.data.hard=hard.jsonl, config.data.evaluate=none" in named(mine, "--config.data.hard=hard.jsonl")
  both = "--config.data.hard=hf:microsoft/ms_marco/v2.1/train~100000"  # the paper's, by the user's own word
  assert "hf:microsoft/ms_marco" in named(mine, both) and "hf:microsoft/ms_marco" in named(both, mine)
  dev = named("--config.data.evaluate=dev.jsonl")
  assert "train=hf:ucinlp/drop" in dev and "hard=hf:microsoft" in dev and "evaluate=dev.jsonl" in dev
  for name in ("arena", "lear", "veritas", "when_to_search", "search_r1"):
    assert named(mine, name=name) == alone, name


def test_a_setting_that_may_be_none_can_be_set_on_the_command_line():
  config = read("--config.loss.kl_tangent=5", "--config.loss.dual_clip=3", "--config.critic.clip=None")
  assert (config.loss.kl_tangent, config.loss.dual_clip, config.critic.clip) == (5.0, 3.0, None)
  config_lib.validate(config)
  refused("much", read, "--config.loss.dual_clip=much", error=flags.IllegalFlagValueError)
  nothing = read("--config.loss.clip_low=None")
  refused("config.loss.clip_low=None: it must be a finite number", config_lib.validate, nothing)


@pytest.mark.parametrize("changes, words", [
  ({"rollout.rows": 1}, "rows=1 is less than lanes"), ({"rollout.group_size": 1}, "a group of one"),
  ({"rollout.temperature": 0.0}, "above 0"), ({"rollout.max_new_tokens": 600}, "no room for a prompt"),
  ({"learner.row_lengths": (64,)}, "the longest must hold"), ({"loss.kl_coef": 0.1}, "name an estimator"),
  ({"rollout.reserve": 512}, "reserve=512.*less than context=512"),
  ({"rollout.ahead": 1, "rollout.filter.surplus": "keep"}, "two steps stale"),
  ({"model.lora.rank": 8, "model.lora.path": "run/model"}, "the folder determines the rank"),
])  # fmt: skip
def test_relations_are_checked(changes, words):
  config = config_lib.default_config()
  config.update_from_flattened_dict(changes)
  refused(words, config_lib.validate, config)
  if "learner.row_lengths" in changes:
    config_lib.validate(config, training=False)  # an evaluation needs no rows


def test_no_more_than_a_turn_is_reserved_and_shrink_changes_only_sizes():
  of = lambda **sizes: settings.Rollout(**sizes).least_room
  assert [of(max_new_tokens=96, reserve=room) for room in (0, 5, 96, 400)] == [96, 5, 96, 96]
  config = config_lib.default_config()
  config.rollout.reserve = 60
  small = config_lib.shrink(config.copy_and_resolve_references())
  config_lib.validate(small)
  assert small.rollout.reserve == small.rollout.max_new_tokens  # at most a whole turn
  assert small.rollout.group_size < config.rollout.group_size
  for rule in ("loss", "advantage", "recipe", "preset", "switches", "optimizer"):
    assert small[rule] == config[rule]


def test_a_runs_kind_is_recorded_and_asked_for(tmp_path):
  """A model's config.json, or a run's whose kind is unknown, is no run's."""
  config = config_lib.default_config()
  changes.write(tmp_path, settings.of(config), "sft")
  assert config_lib.is_run(tmp_path) and config_lib.kind_of(tmp_path) == "sft"
  for text in ('{"model_type": "qwen2"}', config.to_json_best_effort(), "{", "[]"):
    (tmp_path / "config.json").write_text(text)
    assert not config_lib.is_run(tmp_path)
    refused("this is not a run's config.json", config_lib.kind_of, tmp_path)
