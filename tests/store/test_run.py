import json
import os
import re
import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from refusals import refused

from ragrl_jax.parallel import hosts
from ragrl_jax.settings import Judge, Settings, fields
from ragrl_jax.store import changes, checkpoint, jsonl, lock, versions, workdir

STATE = dict(x=jnp.arange(3.0))


def settings_of(**given):
  return fields.replaced(Settings(), {name.replace("__", "."): value for name, value in given.items()})


def begun(folder, config, contents=None, accept_changes=False, **saved):
  """The folder, with a checkpoint of step 5, which a second call restores; `contents` are the files' digests."""
  with workdir.opened(folder, config, accept_changes=accept_changes, say=lambda text: None) as made:
    made.compare(contents or {})
    made.restore(jax.tree.map(jnp.copy, STATE))
    if made.restored is None:
      made.save(5, STATE, {}, **saved)
  return folder


@pytest.fixture(scope="module")
def old(tmp_path_factory):
  return begun(tmp_path_factory.mktemp("old"), settings_of(steps=9))


def opened(folder, config, **given):
  said = []
  with workdir.opened(folder, config, say=said.append, **given) as made:
    return made, said


CHANGED = dict(recipe="care", preset="repo", switches__instructions="short", seed=1, model__path="m", data__train="t")
CHANGED |= dict(model__dtype="bfloat16", model__shape__d_model=64, data__max_examples=3, retrieval__index="i")
CHANGED |= dict(retrieval__top_k=5, rollout__group_size=4, rollout__lanes=16, rollout__temperature=0.5)
CHANGED |= dict(rollout__filter__metric="total", optimizer__learning_rate=1e-3, critic__learning_rate=1e-3)
CHANGED |= dict(loss__kl="k3", advantage__kind="leave_one_out", prompting__chat=False, judge__kind="lexical")
CHANGED |= dict(judge__endpoint="http://there/v1", mesh__fsdp=2, learner__micro_rows=4)
CHANGED |= dict(judges__answer=dict(threshold=0.9))
FREE = dict(steps=10, log__tensorboard=False, checkpoint__every=7, checkpoint__keep=3, evaluate__every=2)
FREE |= dict(evaluate__batch=3, data__evaluate="e", retrieval__timeout_s=5.0, retrieval__retries=9)
FREE |= dict(retrieval__max_failed_share=0.5, judge__cache="c", judge__concurrency=2)
FREE |= dict(judges__answer=dict(timeout_s=9.0))


def test_settings_that_change_the_run_are_refused_by_name_and_others_are_not(old):
  for name, value in CHANGED.items():
    with pytest.raises(ValueError, match=rf"other settings: config\.{name.replace('__', '.')}.* is .*accept_changes"):
      opened(old, settings_of(steps=9, **{name: value}))
  for name, value in FREE.items():
    opened(old, settings_of(**(dict(steps=9) | {name: value})))
  opened(old, settings_of(steps=9, switches=dict(newer=None)))  # unset, of a switch that the run's version lacked
  for given, says in (
    (dict(optimizer__schedule="cosine"), "optimizer.schedule was 'constant', is 'cosine'"),  # the rate falls to the end
    (dict(loss__teacher__path="t", loss__teacher__final_coef=0.5), "loss.teacher.path was '', is 't'"),  # so does this
    (dict(data__hard="h"), "data.hard was '', is 'h'"),  # a curriculum may reach its end at the last step
    (dict(rollout__ahead=1), "rollout.ahead was 0, is 1"),  # the last step's groups are never sampled ahead
  ):
    refused(f"config.{says}; config.steps was 9, is", opened, old, settings_of(steps=8, **given))
  with pytest.raises(ValueError, match="config.checkpoint.every was 50, is 7; config.guard.rollback was 0, is 3"):
    opened(old, settings_of(steps=9, checkpoint__every=7, guard__rollback=3))  # it decides where the run returns to
  many = settings_of(**(CHANGED | FREE))
  with pytest.raises(ValueError, match="and 1[0-9] more") as error:
    opened(old, many)
  assert "\n" not in str(error.value) and "config.log" not in str(error.value)


def test_held_out_settings_are_not_free_if_a_stage_waits_for_a_held_out_metric(tmp_path):
  settings = lambda **more: settings_of(recipe="when_to_search", switches=dict(settle_metric="evaluation/em"), **more)
  begun(tmp_path, settings())
  for more in (dict(evaluate__every=7), dict(data__evidence="x.jsonl"), dict(steps=700)):
    with pytest.raises(ValueError, match=f"config.{next(iter(more)).replace('__', '.')} was"):
      opened(tmp_path, settings(**more), waits_for_held_out=True)
    opened(tmp_path, settings(**more))
  opened(tmp_path, settings(log__tensorboard=False), waits_for_held_out=True)


def test_every_pattern_of_free_settings_matches_a_setting():
  config = settings_of(judges=dict(answer=fields.plain(Judge())))
  names = dict(jsonl.flat(changes.values(config)))
  for pattern in changes.FREE:
    assert changes.fnmatch.filter(names, pattern), pattern


def test_accepted_changes_are_recorded_and_hold_from_then_on(tmp_path):
  begun(tmp_path, settings_of())
  file = tmp_path / versions.FILE
  text = file.read_text().replace('"threads":64', '"threads":2')
  file.write_text(re.sub('"(jax|flax)":"[^"]+"', r'"\1":"0.1"', text))
  other = settings_of(seed=3, log__tensorboard=False)
  said = []
  with workdir.opened(tmp_path, other, accept_changes=True, say=said.append) as made:
    assert made.restore(jax.tree.map(jnp.copy, STATE))[1] == dict(step=5, reached=False) and made.restored == 5
  assert said[0] == f"{tmp_path}: going on from step 5, of at most 100"
  assert said[1].startswith(f"{tmp_path}: jax was 0.1, is {jax.__version__}; flax was 0.1, is ") and len(said) == 2
  assert "; threads was 2, is 64. From here on" in said[1]
  (row,) = map(json.loads, (tmp_path / changes.CHANGES).read_text().splitlines())
  assert row["step"] == 5 and row["changes"] == {"seed": [0, 3], "log.tensorboard": [True, False]}
  opened(tmp_path, other)
  refused("config.seed was 3, is 0", opened, tmp_path, settings_of())
  stored = json.loads((tmp_path / changes.FILE).read_text())
  del stored["loss"]["reference"]  # as in a run of 0.2, whose KL was to the base
  (tmp_path / changes.FILE).write_text(json.dumps(stored))
  refused("config.loss.reference was 'base', is 'start'", opened, tmp_path, other)
  (tmp_path / changes.FILE).write_text("{")
  refused("config.json is missing or damaged.*remove it", opened, tmp_path, other)


def test_a_kill_before_accepted_changes_are_recorded_loses_none(tmp_path, monkeypatch):
  begun(tmp_path, settings_of())
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(changes, "record", mock.Mock(side_effect=KeyboardInterrupt))
    begun(tmp_path, settings_of(seed=3), accept_changes=True)
  (tmp_path / changes.CHANGES).write_text('{"step":')
  begun(tmp_path, settings_of(seed=3), accept_changes=True)
  (row,) = changes.accepted(tmp_path)
  assert row["changes"] == {"seed": [0, 3]}


def test_a_wording_that_changes_is_another_setting(tmp_path):
  words = tmp_path / "words.txt"
  words.write_text("Mine: {question}")
  config = settings_of(switches__instructions=f"file:{words}", judge__wording=f"file:{words}")
  begun(tmp_path / "run", config)
  kept = json.loads((tmp_path / "run" / "wordings.json").read_text())
  assert kept == dict.fromkeys(("judge.wording", "switches.instructions"), "Mine: {question}")
  opened(tmp_path / "run", config)
  moved = f"file:{words.rename(tmp_path / 'moved.txt')}"
  opened(tmp_path / "run", settings_of(switches__instructions=moved, judge__wording=moved))
  words.write_text("Mine: {question}!")
  refused(r"config\.switches\.instructions \(its text\) was '\w{16}', is '\w{16}'", opened, tmp_path / "run", config)
  opened(tmp_path / "run", config, accept_changes=True)
  words.unlink()
  refused(r"config\.\w+\.\w+=file:.*words\.txt: the file cannot be read \(No such", opened, tmp_path / "run", config)
  changes.write(tmp_path / "run", settings_of(), "rl")
  assert changes.wordings_of(tmp_path / "run") == {}


@pytest.mark.parametrize("value", ["{0}:one, {0}:two, json:dumps", "command:python {0} -v", "npx server | python {0}"])
def test_a_program_that_changes_is_another_setting(tmp_path, value):
  """Functions and commands of the user's own files decide what is trained."""
  program = tmp_path / "tools.py"
  program.write_text("def one(): return 1")
  config = settings_of(switches__tools=value.format(program))
  begun(tmp_path / "run", config)
  opened(tmp_path / "run", config)
  program.write_text("def one(): return 2")
  refused(r"config\.switches\.tools/tools\.py \(its text\) was '\w{16}'", opened, tmp_path / "run", config)


@pytest.mark.parametrize(("changed", "key"), [("a", "2/tools"), ("b", "tools")])  # the last has its name alone
def test_programs_of_one_name_are_told_apart(tmp_path, changed, key):
  files = [tmp_path / folder / "tools.py" for folder in "ab"]
  for file in files:
    file.parent.mkdir()
    file.write_text(f"def one(): return {file.parent.name!r}")
  settings_at = lambda first, second: settings_of(switches__tools=f"{first}:one,{second}:one,{second}:two")
  begun(tmp_path / "run", settings_at(*files))
  differ = lambda *files: changes.differences(tmp_path / "run", settings_at(*files))
  assert differ(*files) == {}
  assert sorted(differ(*files[::-1])) == [f"switches.tools/{key}.py (its text)" for key in ("2/tools", "tools")]
  moved = [file.parent.rename(tmp_path / f"moved_{file.parent.name}") / "tools.py" for file in files]
  assert differ(*moved) == {}
  (tmp_path / f"moved_{changed}" / "tools.py").write_text("def one(): return 2")
  assert list(differ(*moved)) == [f"switches.tools/{key}.py (its text)"]
  last = "switches.tools/tools.py"
  (tmp_path / "run" / changes.WORDINGS).write_text(json.dumps({last: "def one(): return 'b'"}))  # as before the numbers
  assert (last in changes.reworded(tmp_path / "run", changes.values(settings_at(*moved)))) == (changed == "b")


def test_what_must_be_there_and_what_must_not(old, tmp_path):
  refused("--resume=must, but .*no checkpoint", opened, tmp_path / "new", settings_of(), resume="must")
  opened(tmp_path / "new", settings_of(), resume="never")
  refused("--resume=never, but .*holds a run", opened, old, settings_of(steps=9), resume="never")
  opened(old, settings_of(steps=9), resume="must")
  refused("one of auto, must, never", opened, old, settings_of(steps=9), resume="yes")


def test_a_run_does_not_begin_in_a_folder_of_another_kind(tmp_path):
  """Of all kinds: tests/store/test_folders.py."""
  for name, what in {"index.json": "an index .index.json.", "config.json": "a config.json that is not a run's"}.items():
    (tmp_path / name).write_text('{"model_type": "qwen2"}')
    refused(f"--workdir=.*: this folder holds {what}", opened, tmp_path, settings_of())
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / name).unlink()


@pytest.mark.parametrize("reached, more", [(False, False), (True, True)])
def test_a_finished_run_is_reported(tmp_path, reached, more):
  begun(tmp_path, settings_of(steps=5), reached=reached)
  assert not opened(tmp_path, settings_of(steps=5))[0].finished  # killed before the model was saved
  with workdir.opened(tmp_path, settings_of(steps=5), say=lambda text: None) as made:
    assert made.restore(jax.tree.map(jnp.copy, STATE))[1]["reached"] == reached
    made.end(5, reached=reached)
  made, (said,) = opened(tmp_path, settings_of(steps=5))
  ended = "it reached its goal at step 5" if reached else "it has its 5 steps"
  assert made.finished and f"is finished: {ended}" in said and ("raise config.steps" in said) != reached
  made, said = opened(tmp_path, settings_of(steps=6))  # a run that has reached its goal is not continued
  assert made.finished == more
  assert [text for text in said if "reached its goal at step 5" in text and "raise" not in text] == said * more


def test_a_finished_run_whose_checkpoints_were_deleted_is_not_begun_again(tmp_path):
  with workdir.opened(begun(tmp_path, settings_of(steps=5)), settings_of(steps=5), say=lambda text: None) as made:
    made.end(5, reached=False)
  shutil.rmtree(tmp_path / "checkpoints")
  for resume in ("auto", "must"):
    assert opened(tmp_path, settings_of(steps=5), resume=resume)[0].finished
  with pytest.raises(ValueError, match="ended at step 5 and has no checkpoint any more, so it cannot go on to step 6"):
    opened(tmp_path, settings_of(steps=6))
  refused("config.seed was 0, is 1", opened, tmp_path, settings_of(steps=5, seed=1))


def test_the_initial_state_is_freed_before_a_checkpoint_is_read(old):
  given = jax.tree.map(jnp.copy, STATE)
  with workdir.opened(old, settings_of(steps=9), say=lambda text: None) as made:
    state, _ = made.restore(given)
  assert given["x"].is_deleted() and state["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("keep, more", [(13, 4), (2, 2), (1, 1)])  # 5 is there; 6, 8, 10 and 11 come
def test_a_disk_without_room_for_the_checkpoints_is_said_at_the_start(old, tmp_path, keep, more):
  shutil.copytree(old, tmp_path / "run")
  config = settings_of(steps=11, checkpoint__every=2, checkpoint__keep=keep)
  for free, says in ((12 * more, False), (12 * more - 1, True)):  # a state has 12 bytes
    said, usage = [], mock.Mock(free=free)
    with mock.patch.object(shutil, "disk_usage", return_value=usage):
      with workdir.opened(tmp_path / "run", config, say=said.append) as made:
        made.restore(jax.tree.map(jnp.copy, STATE))
    assert any(f"{more} more checkpoints" in line for line in said) == says, (free, said)


def test_a_run_returns_to_an_older_checkpoint_which_becomes_the_newest(tmp_path):
  said = []
  with workdir.opened(tmp_path, settings_of(checkpoint__keep=3), say=said.append) as made:
    for step in (1, 2, 3):
      made.save(step, dict(x=STATE["x"] + step), dict(cursor=step))
    says = "7 does not exist.*guard.rollback=0.*It collapsed"
    refused(says, made.rewind, 7, STATE, "It collapsed.", error=FileNotFoundError)
    given = jax.tree.map(jnp.copy, STATE)
    state, host = made.rewind(1, given, "It collapsed.")
    assert given["x"].is_deleted() and state["x"].tolist() == [1, 2, 3] and host["cursor"] == 1
    assert made.checkpoints.steps() == [1] and said == [f"{tmp_path}: It collapsed."]


def test_a_step_is_saved_once_however_late_a_host_sees_it_in_the_folder(tmp_path, monkeypatch):
  for _ in range(2):  # the second time, the step is restored
    with workdir.opened(tmp_path, settings_of(steps=9), say=lambda text: None) as made:
      made.restore(jax.tree.map(jnp.copy, STATE))
      made.save(5, STATE, {})
      with monkeypatch.context() as late:
        late.setattr(checkpoint.Checkpoints, "steps", lambda self: [])
        made.leave(5, STATE, {})
  assert checkpoint.Checkpoints(tmp_path / "checkpoints", keep=1).steps() == [5]


def test_hosts_with_other_settings_or_with_folders_of_their_own_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(hosts, "count", lambda: 2)
  for there, says in (({}, "config is not the same on hosts 0 and 1"), (False, "host 1 does not see the files of")):
    monkeypatch.setattr(hosts, "exchange", lambda own, there=there: [own, there if type(own) is type(there) else own])
    refused(says, opened, tmp_path, Settings())
  assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]


def test_only_the_holder_of_the_folder_saves(tmp_path):
  with workdir.opened(tmp_path, settings_of(), say=lambda text: None) as made:
    with pytest.raises(lock.Held, match=f"process {os.getpid()} on"), workdir.opened(tmp_path, settings_of()):
      pass
    owner = json.loads((tmp_path / lock.FILE).read_text())
    (tmp_path / lock.FILE).write_text(json.dumps(owner | dict(host="far")))
    refused("on far", made.save, 1, STATE, {}, error=lock.Held)
  checkpoint.Checkpoints(tmp_path / "checkpoints", keep=1, read_only=True)  # reading needs no lock


def test_lone_surrogates_and_passwords_are_written_so_that_they_can_be_read(tmp_path):
  endpoints = dict(judge__endpoint="https://me@x/v1", judges__answer=dict(endpoint="http://a:b@c"))
  index = "http://user:p%40ss@host:80/a@b?c=d@e"
  config = settings_of(data__train="half \ud800", retrieval__index=index, **endpoints)
  changes.write(tmp_path, config, "rl")
  text = (tmp_path / changes.FILE).read_text(encoding="ascii")
  assert "half \\ud800" in text and "user" not in text and "p%40ss" not in text
  saved = json.loads(text)
  assert saved["retrieval"]["index"] == "http://host:80/a@b?c=d@e" and saved["judge"]["endpoint"] == "https://x/v1"
  assert saved["judges"]["answer"]["endpoint"] == "http://c"
  assert changes.differences(tmp_path, config) == {}
  assert config.retrieval.index.startswith("http://user")  # unchanged for use


@pytest.mark.parametrize("accept_changes", [False, True])
def test_a_run_of_another_kind_is_not_continued(old, accept_changes):
  with pytest.raises(ValueError, match="a run of the kind 'rl', this is one of 'sft': continue it with `ragrl train`"):
    opened(old, settings_of(steps=9), objective="sft", accept_changes=accept_changes)


def test_contents_decide_and_not_places(tmp_path):
  """Settings that name files are compared by the digests of these files, as `run/contents.py` gives them."""
  settings = lambda **given: settings_of(model__lora__rank=4, **dict(data__train="a.jsonl", model__path="base") | given)

  def go_on(config, model="m+t", train="q", accept_changes=False):
    begun(tmp_path, config, {"model.path": model, "data.train": train}, accept_changes)
    return (tmp_path / changes.CHANGES).read_text() if (tmp_path / changes.CHANGES).exists() else ""

  config = settings()
  go_on(config)
  assert checkpoint.Checkpoints(tmp_path / "checkpoints", keep=2).host(5)["base"] == "m"  # the weights' part of it
  assert go_on(config) == ""
  moved = settings(data__train="/elsewhere/b.jsonl", model__path="/elsewhere/base")
  assert go_on(moved) == "" and go_on(config) == ""  # moved, and moved back
  for path in (config, moved):
    refused(r"config\.data\.train \(its contents\) was 'q', is 'p'.*--accept_changes", go_on, path, train="p")
    refused(r"config\.model\.path \(its contents\) was 'm\+t', is 'n\+t'", go_on, path, model="n+t")
  says = "config.data.train was 'a.jsonl', is 'b.jsonl'"  # nothing was compared
  refused(says, begun, tmp_path, settings(data__train="b.jsonl"))
  assert '"data.train (its contents)":["q","p"]' in go_on(config, train="p", accept_changes=True)
  assert "p" in go_on(config, train="p")  # the new contents are the run's now


def test_other_held_out_questions_are_recorded_and_do_not_stop_a_run(tmp_path):
  for digest in "ab":
    begun(tmp_path, settings_of(), {"data.evaluate": digest})
  (row,) = map(json.loads, (tmp_path / changes.CHANGES).read_text().splitlines())
  assert row["changes"] == {"data.evaluate (its contents)": ["a", "b"]}


@pytest.mark.parametrize("was, now", [("", "a"), ("a", ""), ("a", "b")])
def test_a_function_that_comes_goes_or_changes_is_a_change(tmp_path, was, now):
  for _ in range(2):
    begun(tmp_path, settings_of(), {"reward.function": was})
  says = rf"config\.reward\.function \(its contents\) was '{was}', is '{now}'"
  refused(says, begun, tmp_path, settings_of(), {"reward.function": now})
