import ast
import functools
import json
import pathlib
import re

import pytest
from refusals import refused

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.jobs import evaluate, sft
from ragrl_jax.learner import settings as learner_settings
from ragrl_jax.run import checks
from ragrl_jax.structs import Example, Passage
from ragrl_jax.testing import scripted

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("*.py"))
WITH_SMOKE = [path for path in FILES if path.stem != "quickstart"]
VARIANTS = {  # beside the config without a variant
  "quickstart": "sft", "agent": "smoke", "tool_agent": "smoke",
  "arena": "smoke repo f1 judge judge,smoke no_bonus naive direct k3 without_2wiki naive,judge,smoke direct,judge sft "
  "sft,repo sft,direct,smoke",
  "care": "smoke repo mean no_retrieval no_retrieval,easy_only easy_only sft sft,smoke longbench original,longbench",
  "search_r1": "smoke repo format ppo ppo,format,repo ppo,r1 sft sft,smoke",
  "small": "smoke care lear search_r1 veritas when_to_search,exact,ngrams arena,sft arena,gpu",
  "released": "smoke research,given simpledeepsearcher,smoke",
  "untrained": "sure,given flare adaptive,smoke smoke closed_book cot ircot,smoke iter_retgen self_ask skr thinking "
  "no_thinking,closed_book",
  "veritas": "smoke em em_it em_ta em_format no_ramp repo reward_model",
  "when_to_search": "smoke table exact printed ngrams,exact,smoke no_search_reward no_stage_one no_stage_two "
  "no_answer_reward unified",
  "lear": "smoke sft inference vanilla rationale,sft generator,sft,smoke answers_r answers_e answers_f answers_er "
  "answers_ef study_rational,sft study_vanilla,sft filter,sft thoughts",
}  # fmt: skip
variants_of = lambda path: ("", *VARIANTS.get(path.stem, "smoke repo").split())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_is_valid_and_its_docstring_gives_command_and_expected_result(path, caplog):
  for variant in variants_of(path):
    config = config_lib.load(path, variant)
    typed = config_lib.validate(config)
    if not {"sft", "reward_model"} & {*variant.split(",")}:
      checks.unread(typed)
    assert not caplog.records, variant
    recipe = recipes.get(config.recipe, config.preset, **config.switches.to_dict())
    assert recipe.name == config.recipe and config.is_locked, variant
  story = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
  assert "Run:" in story and "Expect:" in story


EM = dict(information_think_weight=0.0, think_answer_weight=0.0, judge_information=False)


@pytest.mark.parametrize(("name", "variant", "preset", "differences"), [
  ("veritas", "no_ramp,em_it", "em_it,no_ramp", dict(ramp_start=0, ramp_end=0, think_answer_weight=0.0)),
  ("veritas", "repo,em,smoke", "em,repo", dict(action="first", **EM)),
  ("when_to_search", "exact,no_stage_one", "exact,no_stage_one", dict(correctness="exact", stage_two_from=0)),
  ("when_to_search", "exact,no_stage_two", "exact,no_stage_two", dict(correctness="exact", stage_two_from=None)),
  ("when_to_search", "unified,printed", "printed,unified", dict(answer="unified", halve=True)),
  ("search_r1", "ppo,format,repo", "ppo,format,repo", dict(format=True, action="first")),
])  # fmt: skip
def test_presets_joined_by_commas_all_take_effect(name, variant, preset, differences):
  config = config_lib.load(name, variant)
  assert config.preset == preset
  paper = recipes.get(name).switches
  assert dict(recipes.get(name, config.preset, **config.switches.to_dict()).switches) == {**paper, **differences}
  assert config.judge.kind == "none" or not {"em", "exact"} & set(variant.split(","))  # these presets need no judge


@pytest.mark.parametrize(("name", "variant"), [
  ("veritas", "em,em_it"), ("veritas", "em_it,em_ta"), ("veritas", "reward_model,em"), ("search_r1", "grpo,ppo"),
  ("when_to_search", "no_stage_one,no_stage_two"), ("when_to_search", "no_answer_reward,unified"),
  ("arena", "f1,judge"), ("arena", "naive,direct"), ("care", "sft,longbench"), ("care", "repo,easy_only"),
  ("care", "repo,mean"), ("lear", "vanilla,generator"), ("untrained", "cot,ircot"), ("quickstart", "smoke"),
])  # fmt: skip
def test_variants_that_contradict_each_other_are_refused(name, variant):
  refused("use .*sft|use (only )?one of|one of .* at most", config_lib.load, name, variant)


def test_arenas_sft_is_the_fair_one_or_the_authors(tmp_path):
  rows = tmp_path / "sft.jsonl"
  rows.write_text("".join(f'{{"id": {i}, "question": "Q?", "answers": ["a"], "turns": []}}\n' for i in range(1000)))
  for variant, most, prompt in (("sft", 0, 0.0), ("sft,repo", 1024, 1.0), ("sft,direct,repo", 1024, 1.0)):
    config = config_lib.load("arena", variant)
    config.data.train = str(rows)
    planned = sft.planned(settings.of(config))
    assert (config.sft.max_tokens, config.sft.environment_weight, config.sft.batch) == (most, prompt, 256), variant
    assert (planned.steps, planned.optimizer.warmup_steps) == (4, 0) and planned.optimizer.schedule == "linear"


@pytest.mark.parametrize(("variant", "kl", "tangent"), [("", "k2", 5.0), ("k3", "k3", None), ("naive", "k3", None)])
def test_arenas_k3_is_the_published_one(variant, kl, tangent):
  loss = learner_settings.from_config(settings.of(config_lib.load("arena", variant)))
  assert (loss.kl, loss.kl_tangent) == (kl, tangent)


@pytest.mark.parametrize(("variant", "top_p", "learning_rate"), [
  # The authors' GRPO scripts leave ppo_trainer.yaml's 0.95; those of PPO (v0.2, v0.3) set 1. v0.3's format has 5e-7 in
  # GRPO, 1e-6 in PPO.
  ("", 1.0, 1e-6), ("repo", 0.95, 1e-6), ("repo,format", 0.95, 5e-7), ("format", 1.0, 5e-7), ("ppo,repo", 1.0, 1e-6),
  ("ppo,repo,format", 1.0, 1e-6),
])  # fmt: skip
def test_search_r1_samples_and_learns_as_the_authors_scripts(variant, top_p, learning_rate):
  config = config_lib.load("search_r1", variant)
  assert (config.rollout.top_p, config.optimizer.learning_rate) == (top_p, learning_rate)


@pytest.mark.parametrize("variant", ["judge", "naive,judge", "direct,judge"])
def test_any_reply_of_arena_can_be_judged(variant):
  config = config_lib.load("arena", variant)
  recipe = recipes.get("arena", config.preset)
  assert (config.judge.kind, config.judge.prompt, recipe.switches["accuracy"]) == ("llm", "answer", "judge")
  example = Example("q", "Who?", ("Ann",), (Passage("1", "", "It was Ann Lee."),), supporting=(0,))
  reply = "<think>By [1].</think>" * ("naive" in variant) + "<answer>Ann Lee</answer>"
  episode, tape = scripted.play(recipe, example, [reply], verdicts=(1.0,))
  assert ("judge", (("Ann", "Ann Lee"),)) in tape and recipe.score(example, episode)["accuracy"] == 1.0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_whose_own_questions_are_named_reads_no_others(path):
  """Not even the paper's hard or held-out ones, unless they are named, too."""
  for variant in variants_of(path):
    hub = lambda config: [key for key, value in config.data.items() if str(value).startswith("hf:")]
    fresh = functools.partial(config_lib.load, path, variant)
    config, before = fresh(), hub(fresh())
    config.data.train = "mine.jsonl"
    assert hub(config) == [] and "hf:" not in json.dumps(config.to_dict()), variant
    for name in ("hard", "evaluate"):
      config.data[name] = f"my_{name}.jsonl"
      assert config.data[name] == f"my_{name}.jsonl" and config.data.train == "mine.jsonl"
    own = fresh()
    own.data.evaluate = "dev.jsonl"  # another held-out set leaves the training as it was
    assert own.data.train == fresh().data.train and own.data.hard == fresh().data.hard
    again = config_lib.default_config()
    again.data.update(fresh().data)
    assert again.data.to_dict() == fresh().data.to_dict() and hub(fresh()) == before


def test_no_retrieval_has_no_curriculum():
  for variant in ("no_retrieval", "no_retrieval,easy_only", "easy_only"):
    assert config_lib.load("care", variant).data.hard == ""
  assert config_lib.load("care").data.drop_unanswerable


def test_room_for_results_requires_none_for_a_whole_turn_and_a_judged_pair_is_not_longer_than_in_training():
  # A prompt of 2,048 tokens, a first turn of 7,000 and five passages: the paper's budget leaves 5,000 tokens more.
  config = config_lib.load("when_to_search")
  passages = config.retrieval.top_k * recipes.get("when_to_search").switches["max_passage_tokens"]
  assert config.rollout.context - 2048 - 7000 - passages >= (config.rollout.reserve or config.rollout.max_new_tokens)
  # The titles and numbers of the passages and the words of the question take less than 200 tokens.
  config = config_lib.load("veritas")
  passage = recipes.get("veritas").switches["max_passage_tokens"]
  assert config.judge.max_tokens >= config.retrieval.top_k * passage + config.rollout.max_new_tokens + 200


@pytest.mark.parametrize("path", WITH_SMOKE, ids=lambda path: path.stem)
def test_smoke_changes_sizes_only(path):
  full, small = config_lib.load(path), config_lib.load(path, "smoke")
  full.optimizer.warmup_steps = small.optimizer.warmup_steps  # a length, and lengths may differ
  full.loss.minibatches = small.loss.minibatches  # a smoke run has fewer prompts to divide
  for rule in ("recipe", "preset", "switches", "loss", "advantage", "optimizer", "retrieval"):
    assert full[rule] == small[rule], rule


def test_smoke_replaces_the_judges_that_the_page_names():
  replaced = {}
  for name, variant in [*((path.stem, "") for path in WITH_SMOKE), ("arena", "judge")]:
    full, small = config_lib.load(name, variant), config_lib.load(name, f"{variant},smoke".strip(","))
    if full.judge.kind != small.judge.kind:
      replaced[f"{name}:{variant}".strip(":")] = small.judge.kind
  assert replaced == {"veritas": "lexical", "when_to_search": "exact", "arena:judge": "exact"}
  page = (CONFIGS.parent / "docs" / "howto" / "model.md").read_text(encoding="utf-8")
  small = page.partition("## Try it small")[2]
  assert all(f"`{word}`" in small for pair in replaced.items() for word in pair)


def test_small_has_its_recipes_own_smoke_tests_and_warm_starts():
  for variant in ("veritas:smoke", "when_to_search:smoke", "arena:judge,smoke", "search_r1:dgpo,sft"):
    own, small = config_lib.load(variant), config_lib.load(f"small:{variant.replace(':', ',')}")
    assert (small.judge, small.loss.teacher) == (own.judge, own.loss.teacher), variant
  says = "small:areena,gpu: first the recipe .arena, care, .*configs/arena.py:areena: use"
  refused(says, config_lib.load, "small:areena,gpu")
  assert own.loss.teacher.alone and config_lib.load("small:search_r1,dgpo").loss.teacher.kind == "k1"


def test_the_authors_updates_of_search_r1():
  """Each of 256 episodes: ten a step for groups of five, two for PPO, which has no groups."""
  for variant, number, entropy in (("repo", 10, 0.001), ("repo,ppo", 2, 0.001), ("", 2, 0.0)):
    config = config_lib.load(CONFIGS / "search_r1.py", variant)
    assert (config.loss.minibatches, config.loss.entropy_coef) == (number, entropy), variant
    updates = config.steps * number
    assert config.optimizer.warmup_steps / updates == pytest.approx(0.285, abs=0.001)
    if "repo" in variant:
      assert config.rollout.prompts_per_step * config.rollout.group_size == number * 256


@pytest.mark.parametrize("name", ["arena", "search_r1", "untrained", "veritas", "when_to_search"])
def test_variants_choose_presets(name):
  assert recipes.presets(name)
  for variant in recipes.presets(name):
    for spelling in (variant, f"{variant},smoke", f"smoke,{variant}"):
      assert config_lib.load(name, spelling).preset == variant
  assert config_lib.load(name, "smoke").preset == "paper"
  refused("smoke", config_lib.load, name, "tiny")


def test_published_numbers():
  search, cite = config_lib.load("search_r1"), config_lib.load("arena")
  assert (search.rollout.prompts_per_step, search.rollout.group_size, search.retrieval.top_k) == (512, 5, 3)
  ppo = config_lib.load("veritas")
  assert (ppo.rollout.prompts_per_step, ppo.rollout.group_size, ppo.loss.minibatches) == (512, 1, 2)
  assert (ppo.advantage.kind, ppo.advantage.gamma, ppo.advantage.lam, ppo.critic.kind) == ("gae", 1.0, 1.0, "own")
  assert (ppo.loss.kl, ppo.loss.kl_in, ppo.loss.kl_coef, ppo.critic.learning_rate) == ("k1", "reward", 0.001, 1e-5)
  when = config_lib.load("when_to_search")
  assert (when.rollout.prompts_per_step, when.rollout.group_size, when.rollout.context) == (32, 32, 2048 + 16384)
  assert (when.loss.clip_high, when.loss.kl, when.rollout.filter.metric) == (0.28, "none", "total")
  assert (config_lib.load("when_to_search", "table").loss.kl_coef, when.retrieval.top_k) == (1e-4, 5)
  assert (search.optimizer.learning_rate, search.loss.kl, search.loss.kl_coef) == (1e-6, "k3", 0.001)
  assert search.optimizer.warmup_steps == search.loss.minibatches * round(0.285 * search.steps)  # it counts updates
  assert (cite.rollout.prompts_per_step, cite.rollout.group_size, cite.rollout.temperature) == (256, 7, 0.9)
  assert (cite.optimizer.learning_rate, cite.loss.kl, cite.loss.kl_coef) == (3e-6, "k2", 0.04)
  assert (cite.advantage.std, cite.advantage.eps) == ("sample", 1e-4)
  assert ppo.optimizer.learning_rate == when.optimizer.learning_rate == 1e-6
  lear, care = config_lib.load("lear"), config_lib.load("care")
  assert (lear.steps, lear.rollout.prompts_per_step, lear.rollout.group_size, lear.retrieval.top_k) == (618, 128, 8, 5)
  assert (lear.advantage.std, lear.advantage.std_floor, lear.advantage.eps) == ("population", 0.1, 0.0)
  assert (lear.optimizer.learning_rate, lear.loss.kl, lear.loss.kl_coef, lear.loss.clip_high) == (1e-6, "k3", 0.01, 0.2)
  assert (care.steps, care.rollout.prompts_per_step, care.rollout.group_size) == (350, 1024, 5)
  assert (care.loss.minibatches, care.optimizer.learning_rate, care.loss.kl, care.loss.kl_coef) == (4, 1e-6, "k3", 1e-3)
  assert {of.loss.aggregation for of in (lear, care)} == {"seq_mean_token_mean"}
  long = config_lib.load("care", "longbench").rollout
  assert (long.context - long.max_new_tokens, long.max_new_tokens) == (32_768, 4_096)


def test_arena_without_a_set_trains_on_the_two_others_and_is_measured_on_it():
  everything = config_lib.load("arena").data
  for held_out in ("without_hotpotqa", "without_2wiki", "without_musique"):
    data = config_lib.load("arena", held_out).data
    train, test = set(data.train.split(",")), set(data.evaluate.split(","))
    assert len(train) == 2 and train < set(everything.train.split(","))
    assert len(test) == 1 and test < set(everything.evaluate.split(","))
    assert not re.search(r"\[:\d+\]", data.train + data.evaluate)  # the first rows of a file may all be of one kind
    (left_out,) = set(everything.train.split(",")) - train
    assert left_out.rpartition("/")[0] == test.pop().rpartition("/")[0]


@pytest.mark.parametrize("variant, steps, warmup", [
  ("", 95, 10), ("k3", 95, 10), ("without_hotpotqa", 58, 6), ("without_2wiki", 58, 6), ("without_musique", 78, 8),
])  # fmt: skip
def test_arena_is_one_epoch_of_the_sets_in_use(variant, steps, warmup):
  config = config_lib.load("arena", variant)
  assert (config.steps, config.optimizer.warmup_steps) == (steps, warmup)


def test_supervised_runs_train_only_the_reply():
  for name in "arena:sft care:sft lear:sft lear:sft,vanilla lear:sft,generator veritas:reward_model".split():
    assert config_lib.load(name).sft.environment_weight == 0.0, name


def test_cares_command_for_longbench_starts():
  """evaluate.py accepts the README's options: the first error is the missing checkpoint."""
  readme = (pathlib.Path(recipes.__file__).parent / "care" / "README.md").read_text(encoding="utf-8")
  command = re.search(r"\| LongBench \|.*", readme)[0]
  options = {name: ast.literal_eval(value) for name, value in re.findall(r"--config\.(\S+)=(True|False)", command)}
  assert "care:longbench " in command and options == {"switches.unmarked": True}
  config = config_lib.load("care", "longbench")
  with config.unlocked():
    config.switches.update(unmarked=True)
  assert config.data.cut_middle
  refused("no model here", evaluate.evaluate, config, "nowhere", "hotpotqa.jsonl", "nowhere", error=FileNotFoundError)


@pytest.mark.parametrize("name", [path.stem for path in WITH_SMOKE if path.stem != "small"])
def test_every_recipe_can_have_a_teacher(name):
  config = config_lib.load(name, "opsd")
  assert settings.of(config).loss.teacher == settings.of(config_lib.load("search_r1", "opsd")).loss.teacher
  refused("config.loss.teacher.path is empty, but", settings.of, config_lib.load(name, "dgpo"))


def test_dgpo_is_ppo_with_a_teacher_in_the_reward_and_a_warm_start_by_distillation():
  config = config_lib.load("search_r1", "dgpo")
  config.loss.teacher.path = "TEACHER"
  loss = learner_settings.from_config(settings.of(config))
  teacher = loss.teacher
  assert (teacher.kind, teacher.episodes, teacher.coef, loss.kl) == ("k1", "failed", 0.001, "none")
  ppo = config_lib.load("search_r1", "ppo")
  assert config.critic == ppo.critic and config.optimizer == ppo.optimizer and config.rollout == ppo.rollout
  config = config_lib.load("search_r1", "dgpo,sft")
  config.loss.teacher.path = "TEACHER"
  warm = learner_settings.from_config(settings.of(config), objective="sft")
  assert warm.teacher.mixture == 0.0 and warm.teacher.alone and warm.teacher.episodes == "all"


def test_a_small_model_keeps_what_a_variant_is_about():
  of = lambda variant: config_lib.load(f"small:{variant}")
  wts = "when_to_search,exact,ngrams"
  for variant, stage_two_from in ((wts, 49), (f"{wts},no_stage_one", None), (f"{wts},no_stage_two", None)):
    assert of(variant).switches.get("stage_two_from") == stage_two_from
  assert {of(variant).loss.kl for variant in ("arena", "care", "search_r1", wts)} == {"none"}
  assert {of(variant).loss.kl for variant in ("arena,k3", "arena,naive", f"{wts},table")} == {"k3"}
  assert of("care,repo").loss.kl_coef > 0 and of("search_r1,ppo").loss.kl_coef > 0
  asked = ("search_r1", "search_r1,browse", "search_r1,r1,repo", "care,original")
  assert [of(variant).switches.get("instructions") for variant in asked] == ["short", None, None, None]
  assert of("search_r1").switches.max_searches == 2 and of("search_r1,browse").switches.get("max_searches") is None
  assert of("search_r1,r1,repo").rollout.context == of("arena").rollout.context  # it does not search
  for variant in ("arena,without_2wiki", "care,longbench"):
    refused(variant.partition(",")[2], of, variant)
