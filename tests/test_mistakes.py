"""A newcomer's mistakes are refused with the setting's name, before weights and index are loaded."""

import ast
import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
import types
from unittest import mock

import jax
import ml_collections
import pytest
import small_tokenizers
from refusals import refused

from ragrl_jax import config as config_lib, recipes, retrieval, settings, structs
from ragrl_jax.cli import export_hf
from ragrl_jax.data import readers, writers
from ragrl_jax.jobs import checkpoints, evaluate, sft, train
from ragrl_jax.models import weights
from ragrl_jax.models.families import FAMILIES
from ragrl_jax.prompting import tokenizer as tokenizer_lib
from ragrl_jax.run import checks, environment_tools, player as player_lib, prepared, questions, rollback
from ragrl_jax.store import changes

ROOT = pathlib.Path(__file__).parents[1]


def bad_values(section, prefix=""):
  """(path, invalid value) for every field that allows only certain names, a range, or True and False."""
  for field in dataclasses.fields(section):
    path, value = prefix + field.name, getattr(section, field.name)
    if dataclasses.is_dataclass(value):
      yield from bad_values(value, f"{path}.")
    elif choices := field.metadata.get("choices"):
      yield path, "nonsense" if isinstance(choices[0], str) else len(choices)
    else:
      for bound, limit in field.metadata.get("bounds", {}).items():
        yield path, type(limit if value is None else value)(limit + dict(least=-1, most=1).get(bound, 0))
      if isinstance(value, bool | int | str):
        yield path, None


BAD = [
  *bad_values(settings.Settings()), ("model.lora.rank", -1), ("rollout.top_p", 1.5), ("learner.row_lengths", (0,)),
  ("learner.row_lengths", (64, 64)), ("reward.overlong_limit", 30),  # without a buffer
  ("loss.dual_clip", 0.5), ("loss.importance_cap", -1.0), ("mesh.data", 0), ("rollout.temperature", float("nan")),
  ("rollout.prefill", 1024), ("optimizer.learning_rate", float("inf")), ("optimizer.learning_rate", 1.0),
]  # fmt: skip


@pytest.fixture
def nothing_loads(monkeypatch):
  for room, name in (
    (weights, "load_pretrained"), (retrieval, "load_index"), (tokenizer_lib, "load_tokenizer"),
    (readers, "read_examples"), (player_lib, "Decoder"),
  ):  # fmt: skip
    loads = mock.Mock(side_effect=AssertionError("loaded before the settings were checked"))
    monkeypatch.setattr(room, name, loads)


def test_allowed_names_equal_those_of_the_rooms_that_read_them():
  assert sorted(settings.FAMILIES) == sorted(FAMILIES)


def test_bad_values_are_refused_before_anything_is_loaded(nothing_loads, tmp_path):
  assert len(BAD) >= 40 and len({path for path, _ in BAD}) >= 100
  for path, value in BAD:
    config = config_lib.default_config()
    config.update_from_flattened_dict({path: value})
    field = path if path != "mesh.data" or value is None else "mesh"
    for run in (
      config_lib.validate, lambda c: list(train.train(c, tmp_path)), lambda c: list(sft.sft(c, tmp_path)),
      lambda c: evaluate.evaluate(c, tmp_path, "none.jsonl", tmp_path / "out"),
    ):  # fmt: skip
      refused(rf"config\.{field.rpartition('.')[0]}.*{field.rpartition('.')[2]}", run, config)


def test_a_judge_of_a_term_that_nobody_asks_for_is_refused():
  config = config_lib.load("veritas", "em,smoke")
  config.retrieval.index, config.mesh.data = "http://a:1", 1
  check = lambda: environment_tools.check_judges(settings.of(config), recipes.get("veritas", "em").judged)
  check()  # this arm asks no judge, but `ragrl faithfulness` may
  with config.unlocked():
    config.judges.information_thinks = dict(kind="exact")
  says = "config.judges.information_thinks: no judge is asked for this term.*think_answer"
  refused(says, check)


def test_a_judge_of_a_term_that_training_does_not_ask_about_is_said(caplog):
  config = config_lib.load("veritas", "smoke")
  config.judges.think_answer.kind = "nli"
  said = "config.judges.think_answer: training asks no judge about this term: veritas with these switches asks about"
  for asked in (False, True):
    caplog.clear()
    checks.trainable(settings.of(config), recipes.get("veritas", judge_answer=asked))
    assert (said in caplog.text) is not asked


def test_settings_that_change_what_another_one_means_are_said(monkeypatch, caplog):
  config = config_lib.load("arena")
  config.advantage.credit = "turn"
  for recipe, said in ((recipes.get("search_r1"), True), (recipes.get("veritas", turn_credit=True), False)):
    caplog.clear()
    checks.trainable(settings.of(config), recipe)
    assert ("config.advantage.credit='turn': search_r1 with these switches pays at an" in caplog.text) is said
  config.advantage.credit = "episode"
  config.loss.update(dict(kl="k1", kl_in="reward"))
  for floor, said in ((0.1, False), (0.0, True)):
    config.advantage.std_floor = floor
    checks.trainable(settings.of(config), recipes.get("arena"))
    assert ("config.advantage.std='sample' with a penalty in the reward" in caplog.text) is said
  most = config.rollout.max_new_tokens
  for recipe, limit, said in (("arena", most, False), ("arena", most + 1, True), ("search_r1", most + 1, False)):
    caplog.clear()
    config.reward.update(dict(overlong_limit=limit, overlong_buffer=1))
    checks.trainable(settings.of(config), recipes.get(recipe))
    assert (f"with at most {most} (config.rollout.max_new_tokens), never gets it" in caplog.text) is said
  config.retrieval.update(dict(index="http://me:secret@a:1", query_encoder=str(ROOT)))
  checks.tools(settings.of(config), recipes.get("arena"))
  assert "config.retrieval.query_encoder: arena with these switches compares no queries" in caplog.text
  assert "retrieval.index='http://a:1': arena with these switches never searches" in caplog.text
  config.optimizer.kind, config.model.lora.rank = "muon", 4
  checks.learner(settings.of(config), "sft")
  assert "config.optimizer.kind='muon' with adapters" in caplog.text
  monkeypatch.setenv("NPROC", "8")
  prepared.mesh(settings.of(config_lib.default_config()))
  assert "8 simulated CPU devices with 8 XLA threads" in caplog.text


def test_a_setting_that_nothing_reads_is_said(caplog):
  config = config_lib.default_config()
  for kind, said in (("group_relative", True), ("gae", False)):
    caplog.clear()
    config.advantage.update(dict(kind=kind, lam=0.9))
    checks.unread(settings.of(config))
    assert ("config.advantage.lam=0.9 has no effect with config.advantage.kind='group_relat" in caplog.text) is said


@pytest.mark.parametrize(("recipe", "preset", "switches", "unread", "decides"), [
  ("veritas", "paper", dict(judge_answer=True, sub_em="words"), "sub_em='words'", "switches.judge_answer=True"),
  ("veritas", "no_ramp", dict(ramp_end_epochs=2.0), "ramp_end_epochs=2.0", "switches.ramp_start=0"),
  ("veritas", "em", dict(turn_credit=True), "turn_credit=True", "switches.information_think_weight=0.0"),
  ("veritas", "paper", dict(sub_em="words", ramp_end_epochs=2.0, turn_credit=True), "", ""),
  ("when_to_search", "paper", dict(settle_patience=1), "settle_patience=1", "switches.settle_metric=''"),
  ("when_to_search", "unified", dict(stage_two_from=9), "stage_two_from=9", "switches.answer='unified'"),
  ("when_to_search", "unified,no_stage_two", {}, "", ""),  # a preset's own values are not said
  ("care", "repo", dict(quote_words=3), "quote_words=3", "switches.retrieval='repo'"),
  ("care", "paper", dict(easy_steps=9), "easy_steps=9", "data.hard=''"),
  ("lear", "answers_f", dict(probe_tokens=9), "probe_tokens=9", "switches.answers='f'"),
  ("lear", "vanilla", dict(tau=0.4, omega=0.8), "tau=0.4", "switches.reply='vanilla'"),
  ("arena", "naive", dict(bonus=1.0), "bonus=1.0", "switches.reply='thought'"),
])  # fmt: skip
def test_a_switch_that_nothing_reads_is_said(caplog, recipe, preset, switches, unread, decides):
  checks.unread(dataclasses.replace(checks.DEFAULTS, recipe=recipe, preset=preset, switches=switches))
  said = [f"config.switches.{unread} has no effect with config.{decides}."] if unread else []
  assert [record.getMessage() for record in caplog.records] == said


def test_a_stage_cannot_wait_for_what_is_measured_at_the_end_only_or_never(tmp_path, caplog):
  config = config_lib.default_config()
  config.recipe, config.switches = "when_to_search", dict(settle_metric="evaluation/em", similarity="ngrams")
  config.judge.kind = "exact"
  words = "when_to_search' with these switches waits for evaluation/em: .*Set config.data.evaluate and config.eval"
  refused(words, evaluate.evaluator, config)
  config.retrieval.index = "http://a:1"
  config.prompting.update(tokenizer="bytes", chat=False)
  refused("waits for evaluation/em: no held-out questions are measured", next, train.train(config, tmp_path / "run"))
  for metric, said in (("reward", False), ("evaluation/emm", True)):
    rollback.say_unmeasured(metric, [{"step": 0, "evaluation/em": 0.1}, {"step": 1, "reward": 0.0}])
    assert ("'evaluation/emm', which no step has had so far" in caplog.text) is said
  assert "did you mean evaluation/em?" in caplog.text


def test_what_only_the_rooms_can_check_is_refused_before_weights_are_read(nothing_loads, tmp_path):
  (tmp_path / "config.json").write_text("{}")  # enough of a model folder to be found
  (tmp_path / "model.safetensors").write_bytes(b"")
  training = lambda config: list(train.train(config, tmp_path / "run"))
  tuning = lambda config: list(sft.sft(config, tmp_path / "run"))
  evaluating = lambda config: evaluate.evaluate(config, tmp_path, "none.jsonl", tmp_path / "out")
  every, learning = (training, tuning, evaluating), (training, tuning)
  playing, alone = (training, evaluating), (training,)
  care, judge = {"recipe": "care"}, {"recipe": "care", "judge.kind": "reward_model"}
  asks = {"recipe": "arena", "switches": dict(accuracy="judge")}
  hub_name = "='owner/name': there is no such folder"
  for change, says, runs in (
    (care | {"preset": "nonsense"}, "config.preset", every), ({"recipe": "nonsense"}, "config.recipe", every),
    ({"switches": dict(max_searches=-1)}, "config.switches.max_searches", every),
    ({"switches": dict(max_turns=1)}, "search_r1 has no switch 'max_turns'.*config.switches", every),
    (care | {"switches": dict(accuracy="f2")}, "config.switches.accuracy", every),
    ({}, r"config.retrieval.index is empty, but the recipe search_r1 searches", playing),
    ({"retrieval.index": "http://a:1", "retrieval.key_variable": "NO_SUCH_KEY"},
     r"'NO_SUCH_KEY' holds no token .config.retrieval.key_variable", playing),
    ({"retrieval.index": "nowhere/index"},
     r"config.retrieval.index='nowhere/index': no index here \(/.* A run's own is looked for beside the run", playing),
    ({"recipe": "lear", "retrieval.index": "http://a:1"},
     "config.retrieval.top_k=3 with config.switches.top_k=5: lear searches for the passages of its switch", playing),
    (care | {"judge.kind": "llm"}, "config.judge.model is empty", playing),
    (judge, "config.judge.path is empty", playing), (judge | {"judge.prompt": "none"}, "config.judge.prompt", playing),
    (judge | {"judge.path": "owner/name"}, f"config.judge.path{hub_name}", playing),
    (care | {"model.path": "owner/name"}, f"config.model.path{hub_name}", learning),
    *((care | {name: "no/such/one"}, f"config.{name}='no/such/one': there is no such folder, and it is no name", runs)
      for name, runs in (("model.lora.path", learning), ("loss.teacher.path", learning),
                         ("retrieval.query_encoder", playing))),
    (care | {"model.path": f"{tmp_path}/run/model"}, "config.model.path=.*would be lost.*--workdir", learning),
    (care | {"data.train": "/nowhere/a.jsonl"}, "config.data.train=/nowhere/a.jsonl: there is no file", alone),
    ({"recipe": "veritas", "switches": dict(turn_credit=True)}, "turn_credit=True.*advantage.credit='turn'", alone),
    (care | {"loss.teacher.path": "policy", "loss.teacher.tokens": "queries"}, "care with .*asks no queries", alone),
    (asks, "config.judge.kind='none' judges no answers", playing),
    (asks | {"judge.kind": "sub_em"}, "config.judge.kind='sub_em' compares an answer with a thought", playing),
    (asks | {"judge.kind": "llm", "judge.model": "m"}, "judge.prompt='information_think' does not judge", playing),
    (care | {"optimizer.warmup_steps": 101}, "optimizer.warmup_steps=101", learning),
    (care | {"critic.warmup_steps": 101}, "config.critic.warmup_steps=101", alone),
    (care | {"model.lora.rank": 4, "model.lora.layers": "q vv"}, "'vv' matches none of.*config.model.lora", learning),
    (care | {"model.param_dtype": "bfloat16"}, "config.model.param_dtype='bfloat16' without", learning),
    (care | {"loss.kl": "k1"}, "pulls nowhere", alone), (care | {"critic.kind": "own"}, "needs a critic", alone),
  ):  # fmt: skip
    config = config_lib.default_config()
    config.update_from_flattened_dict({name: value for name, value in change.items() if name != "switches"})
    with config.unlocked():
      config.switches = change.get("switches", {})
    for run in runs:
      refused(says, run, config, error=(ValueError, FileNotFoundError))


def test_an_evaluation_looks_for_no_model_that_only_the_training_reads(tmp_path, monkeypatch):
  (tmp_path / "config.json").write_text("{}")  # enough of a model folder to be found
  (tmp_path / "model.safetensors").write_bytes(b"")
  config = config_lib.default_config()
  config.model.path, config.loss.teacher.path = "out/base", "out/teacher"  # gone; written like names on the hub
  prepare = mock.Mock(side_effect=StopIteration)
  monkeypatch.setattr(evaluate.prepared_lib, "prepare", prepare)
  with pytest.raises(StopIteration):
    evaluate.opened(config, tmp_path, "none.jsonl", tmp_path / "out")
  assert prepare.call_args.args[0].model.path == str(tmp_path)
  for seeds in (0, "3", True):
    refused("seeds=.*at least 1", evaluate.evaluate, config, tmp_path, "none.jsonl", tmp_path / "out", seeds=seeds)


def test_a_run_of_an_unregistered_recipe_names_the_way_out():
  for of in (recipes.switches, recipes.presets, recipes.get):
    refused("no recipe 'quoter'.*--config with the file that registers it", of, "quoter")


def test_chat_without_a_template_is_refused(monkeypatch):
  config = config_lib.default_config()
  config.prompting.tokenizer = "folder"
  bare = dataclasses.make_dataclass("Bare", [("markers", str | None, None)])
  monkeypatch.setattr(tokenizer_lib, "load_tokenizer", lambda where, **how: bare())
  says = "no chat template: set config.prompting.chat=False.*markers='own'"
  refused(says, prepared.tokenizer, settings.of(config), None)
  config.prompting.chat = False
  assert prepared.tokenizer(settings.of(config), None).markers is None
  config.prompting.chat = True
  monkeypatch.setattr(tokenizer_lib, "load_tokenizer", lambda where, **how: bare("own"))
  assert prepared.tokenizer(settings.of(config), None).markers == "own"


def test_another_tokenizer_than_the_models_is_said(tmp_path, caplog):
  config = config_lib.default_config()
  config.model.path, config.prompting.chat = str(small_tokenizers.byte_level(tmp_path / "own")), False
  same = shutil.copytree(tmp_path / "own", tmp_path / "same")
  for other, said in ((str(same), False), ("", False), ("bytes", True)):
    config.prompting.tokenizer = other
    prepared.tokenizer(settings.of(config), None)
    assert ("config.prompting.tokenizer=bytes gives other ids than the tokenizer of" in caplog.text) is said
  (tmp_path / "own" / "tokenizer.json").write_text("{")
  prepared.tokenizer(settings.of(config), None)
  assert "its own tokenizer cannot be read (" in caplog.text


def test_a_retriever_that_does_not_answer_is_told_before_weights_are_read(monkeypatch):
  monkeypatch.setattr(player_lib, "_sampler", mock.Mock(side_effect=AssertionError("read")))
  monkeypatch.setattr(retrieval, "load_index", mock.Mock(side_effect=ValueError("it is down")))
  config = settings.Settings(retrieval=settings.Retrieval(index="http://a:1"))
  refused("it is down", player_lib.build, mock.Mock(settings=config, recipe=recipes.get("search_r1"), mesh=None))


@pytest.mark.parametrize("context, factor, original, fits", [
  (128, None, None, True), (129, None, None, False),
  (256, 2.0, 128, True), (257, 2.0, 128, False),  # stretched by its user
  (128, 32.0, 8, True), (129, 32.0, 8, False),  # as Llama 3.2, whose number of positions is that after scaling
  (400, 4.0, 100, True), (401, 4.0, 100, False),  # by YaRN, as Qwen3, which says more than the original
])  # fmt: skip
def test_context_and_tokenizer_are_limited_to_what_the_model_was_made_for(tmp_path, context, factor, original, fits):
  scaling = dict(rope_type="llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0)
  scaling = dict(rope_type="yarn", factor=factor) if original == 100 else scaling
  values = dict(
    model_type="llama", vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=128,
    rope_scaling=factor and scaling | dict(original_max_position_embeddings=original),
  )  # fmt: skip
  (tmp_path / "config.json").write_text(json.dumps(values))
  config = config_lib.default_config()
  config.model.path, config.rollout.context = str(tmp_path), context
  says = f"config.rollout.context={context} is more than the {context - 1} positions"
  with contextlib.nullcontext() if fits else pytest.raises(ValueError, match=says):
    checks.context(made := settings.of(config), prepared.shape(made))
  config.prompting.update(tokenizer="bytes", chat=False)  # whose ids are more than nine
  refused(r"config.model.path=.* 9 token rows, the tokenizer \d+ ids", prepared.prepare, config, purpose="sft")


@pytest.mark.parametrize("sizes", [dict(data=1, fsdp=8), dict(data=-1, fsdp=8), dict(data=2)])
def test_more_devices_than_there_are_is_refused(monkeypatch, sizes):
  monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
  config = config_lib.default_config()
  assert prepared.mesh(settings.of(config)) is None
  config.mesh.update(sizes)
  refused(r"asks for . devices, and JAX sees 1 \(cpu\).*ragrl_jax\[cuda\]", prepared.mesh, settings.of(config))


@pytest.mark.parametrize("sizes, setting", [
  (dict(data=2, tensor=4), "config.mesh.tensor=4"),  # two key-value heads
  (dict(fsdp=8), "config.learner.micro_rows=2"), (dict(data=1, sequence=8), "config.learner.row_lengths"),
])  # fmt: skip
def test_a_mesh_that_does_not_divide_model_or_rows_is_refused_before_weights_are_read(sizes, setting):
  config = config_lib.default_config()
  config.learner.update(dict(micro_rows=2, row_lengths=(1000, 1020)))
  config.mesh.update(dict(data=-1) | sizes)
  refused(setting, prepared.prepare, config, purpose="sft")


def test_only_training_uses_several_hosts(monkeypatch):
  monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(process_index=number) for number in (0, 0, 1, 1)])
  refused("JAX sees 2 hosts", prepared.prepare, config_lib.default_config(), purpose="sample")


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("Unable to initialize backend 'cuda'")])
def test_a_missing_platform_is_refused(monkeypatch, error):
  told = types.SimpleNamespace(jax_platforms="cuda")
  monkeypatch.setattr(checks, "jax", types.SimpleNamespace(devices=mock.Mock(side_effect=error), config=told))
  refused(r"JAX_PLATFORMS=cuda: .*pip install 'ragrl_jax\[cuda\]'", checks.devices)


PASSAGES = tuple(structs.Passage(str(i), f"T{i}", "a text") for i in range(2))
BARE = [structs.Example(f"q{i}", "Who?", ("x",)) for i in range(3)]
SHOWN = [dataclasses.replace(example, passages=PASSAGES) for example in BARE]
MARKED = [dataclasses.replace(example, supporting=(0,)) for example in SHOWN]


def test_questions_without_passages_are_refused_if_the_recipe_shows_them_and_retrieves_none(caplog):
  config = config_lib.default_config()
  check = lambda recipe, examples: questions.check_passages(config, recipe, examples, "data.jsonl")
  for name in ("arena", "care"):
    refused("data.jsonl: none of its 3 questions has passages.*`ragrl retrieve`", check, recipes.get(name), BARE)
    check(recipes.get(name), BARE[:1] + SHOWN)
  refused("1 of its 4 .* have no passages.*config.retrieval.index", check, recipes.get("lear"), BARE[:1] + SHOWN)
  config.data.own_passages = False
  refused("data.jsonl with config.data.own_passages=False: none", check, recipes.get("arena"), BARE)
  for recipe in (recipes.get("lear", top_k=0), recipes.get("search_r1")):
    check(recipe, BARE)
  config.retrieval.index = "index"
  check(recipes.get("lear"), BARE)
  config.data.noise = 8
  for name in ("care", "search_r1"):
    assert not caplog.records
    check(recipes.get(name), SHOWN)
  assert "data.jsonl: config.data.noise=8 adds passages to questions of which search_r1 shows none" in caplog.text


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_recipes_say_whether_they_search_and_show_passages(name):
  recipe = recipes.get(name)
  assert recipe.needs_passages == (recipe.prompt.messages(SHOWN[0]) != recipe.prompt.messages(BARE[0]))
  assert recipe.searches == (name not in ("agent", "arena", "care"))
  assert "search" not in recipe.switches or recipes.get(name, search=True).searches
  assert "max_searches" not in recipe.switches or not recipes.get(name, max_searches=0).searches


def test_questions_that_cannot_be_rewarded():
  with pytest.raises(ValueError, match="nothing in this set can be scored: arena's relevance, bonus is not known"):
    questions.check_scores(recipes.get("arena"), SHOWN, "data.jsonl")
  for name in recipes.RECIPES:
    questions.check_scores(recipes.get(name), SHOWN + MARKED, "data.jsonl")


@pytest.mark.parametrize("terms, says", [
  ({"found": 1.0}, "weights() names the term 'quote', but score() returned 'found'"),
  ({"quotes": 1.0}, "weights() names the term 'quote', but score() returned 'quotes'"),
  ("quote", "weights() names the term 'quote', but score() returned str"), (None, "score() returned NoneType"),
  ({}, "score() returned no term"),
])  # fmt: skip
def test_a_reward_without_its_terms_is_refused_before_the_run(terms, says):
  for paid in (lambda step: {"quote": 1}, lambda step: {"quote": float(step > 100)}):  # a later stage's term, too
    own = dataclasses.replace(recipes.get("arena"), score=lambda example, episode: terms, weights=paid)
    refused(re.escape(says), questions.check_reward, own, SHOWN[0], "data.jsonl")


def test_a_reward_that_fails_at_an_empty_reply_is_named_by_file_and_line(caplog):
  own = dataclasses.replace(recipes.get("arena"), score=lambda example, episode: {"quote": "".split()[0]})
  questions.check_reward(own, SHOWN[0], "data.jsonl")
  assert re.search(r"test_mistakes\.py:\d+: IndexError: list index out of range", caplog.text)
  caplog.clear()
  for name in recipes.RECIPES:
    questions.check_reward(recipes.get(name), (SHOWN + MARKED)[-1], "data.jsonl")
  assert not caplog.records


def test_a_context_that_is_too_small_for_every_prompt(tmp_path):
  writers.write_examples(tmp_path / "asked.jsonl", BARE)
  config = config_lib.default_config()
  config.prompting.update(dict(tokenizer="bytes", chat=False))
  config.rollout.update(dict(context=256, lanes=2, rows=2, prefill=32))
  recipe, tokenizer = recipes.get("search_r1"), tokenizer_lib.load_tokenizer("bytes")
  config.data.train = str(tmp_path / "asked.jsonl")
  evaluates = lambda: questions.check_room(config, tokenizer, recipe, BARE, "asked.jsonl")
  for run in (lambda: questions.training(config, recipe, tokenizer), evaluates):
    refused(r"no prompt fits: the shortest of 3 has \d+ tokens.*config.rollout.context=256", run)
  config.rollout.context = 2048
  assert len(questions.training(config, recipe, tokenizer)[0]) == 3
  config.data.train, config.data.hard = "none.jsonl", "hard.jsonl"  # neither is read
  refused("the recipe search_r1 has no curriculum", questions.training, config, recipe, tokenizer)


def test_an_evaluation_uses_the_runs_own_settings(tmp_path):
  config = config_lib.load("veritas", "smoke,em_it")
  config.rollout.context, config.switches.max_searches, config.judges.think_search.kind = 1024, 2, "exact"
  run = tmp_path / "run"
  (run / "checkpoints" / "40").mkdir(parents=True)
  (run / "model").mkdir()
  (run / "model" / "config.json").write_text("{}")
  changes.write(run, settings.of(config), "rl")
  for checkpoint in (run, run / "model", run / "checkpoints", run / "checkpoints" / "40"):
    assert checkpoints.config_of(checkpoint).to_dict() == config.to_dict()
  read = checkpoints.config_of(run)
  assert read.is_locked and read.learner.row_lengths == config.learner.row_lengths
  config_lib.validate(read)
  read.switches.action = "first"  # a setting that the run did not set can still be set
  for bad, says in ((tmp_path, "give --config"), (tmp_path / "nowhere", "there is no such folder")):
    refused(says, checkpoints.config_of, bad)
  written = json.loads((run / "config.json").read_text())
  (run / "config.json").write_text(json.dumps(written | dict(stepz=3)))
  refused("config.json: there is no setting 'stepz'", checkpoints.config_of, run)


def test_a_model_defines_its_end_of_turn(tmp_path):
  for eos, bos, want in (((5,), None, dict(eos_token_id=5)), ((5, 7), 1, dict(eos_token_id=[5, 7], bos_token_id=1))):
    weights.write_generation_config(tmp_path, eos, bos)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == want


def test_settings_named_in_messages_and_pages_exist():
  config = config_lib.default_config()
  switches = {switch for room in recipes.RECIPES.values() for switch in room.Switches()}
  named = re.compile(r"(?<![\w./-])config((?:\.[a-z]\w*)+)")
  wrong = [
    f"{where}: config{path}"
    for where, text in [*said(), *pages()]
    for path in named.findall(text.replace("--config.", " config."))  # in flags, too
    if path not in (".field", ".any.field") and not resolves(path.split(".")[1:], config, switches)  # in usage lines
  ]
  assert not wrong, "\n".join(wrong)


def said():
  """(place, text) of every string and comment in the sources."""
  for file in sorted([*(ROOT / "ragrl_jax").rglob("*.py"), *(ROOT / "launchers").glob("*.py")]):
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value
    for number, line in enumerate(source.splitlines(), 1):
      if comment := re.search(r"(?:^|\s)#\s(.*)", line):
        yield f"{file.relative_to(ROOT)}:{number}", comment[1]


def pages():
  """(place, line) of every page for readers. CHANGELOG.md is left out because it describes earlier versions."""
  files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "ragrl_jax").rglob("*.md")]
  for file in sorted(set(files) - {ROOT / "CHANGELOG.md"}):
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
      yield f"{file.relative_to(ROOT)}:{number}", line


def resolves(names, config, switches) -> bool:
  """Whether these names lead to a setting, or belong to a file name (config.json)."""
  if names[0] in ("json", "py", "judges"):  # config.judges.TERM.FIELD
    return True
  if names[0] == "switches":
    return len(names) == 1 or names[1] in switches
  for name in names:
    if not isinstance(config, ml_collections.ConfigDict) or name not in config:
      return False
    config = config[name]
  return True


@pytest.mark.parametrize("name, what", [("metrics.json", "an evaluation"), ("index.json", "an index")])
def test_another_folder_as_a_checkpoint_is_named(tmp_path, name, what):
  (tmp_path / name).write_text("{}")
  exports = lambda folder: export_hf.export(folder, folder / "out", dtype="float32")
  for reads in (checkpoints.config_of, checkpoints.locate, exports):
    refused(f"it is the folder of {what}: name a run", reads, tmp_path)


def test_a_corpus_as_an_index_is_named(tmp_path):
  (tmp_path / "corpus.jsonl").write_text('{"id": "1", "title": "", "text": "words"}\n')
  refused("no index here: build one with", retrieval.load_index, tmp_path / "corpus.jsonl")
