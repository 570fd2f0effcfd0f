import shutil

import pytest

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.jobs import checkpoints
from ragrl_jax.run import checks, prepared
from ragrl_jax.settings import fields, stored_paths
from ragrl_jax.store import changes


@pytest.fixture
def project(tmp_path, monkeypatch):
  """A folder with files, in which a run was started with relative paths."""
  home = tmp_path / "home"
  for name in ("out/index", "out/base", "out/run", "data"):
    (home / name).mkdir(parents=True)
  for name in ("data/a.jsonl", "data/b,c.jsonl", "words.txt", "tools.py", "verdicts.sqlite"):
    (home / name).write_text(name)
  monkeypatch.chdir(home)
  return home


def names(**given):
  config = config_lib.default_config()
  config.retrieval.index, config.model.path, config.judge.cache = "out/index", "out/base", "verdicts.sqlite"
  config.data.train, config.data.evaluate, config.data.hard = "data/a.jsonl,data/b,c.jsonl", "data/*.jsonl", "hf:a/b//c"
  config.judge.wording, config.prompting.tokenizer = "file:words.txt", "owner/name@main"
  for name, value in given.items():
    config[name.partition("__")[0]][name.partition("__")[2]] = value
  return config


def read(folder):
  config = config_lib.of_run(folder)
  return config.retrieval.index, config.model.path, config.data.evaluate, config.judge.wording, config.judge.cache


def test_a_run_is_read_from_any_folder_and_after_a_move(project, tmp_path, monkeypatch):
  config = names(data__train="data/a.jsonl")
  changes.write(project / "out" / "run", settings.of(config), "rl")
  assert config_lib.of_run("out/run").to_dict() == config.to_dict()  # where it was made, nothing changes

  def places(home):
    files = ("out/index", "out/base", "data/*.jsonl", "words.txt", "verdicts.sqlite")
    return tuple(f"{'file:' * (name == 'words.txt')}{home}/{name}" for name in files)

  monkeypatch.chdir(tmp_path)
  assert read("home/out/run") == places(project)
  copied = shutil.copytree(project, tmp_path / "elsewhere" / "copy")
  assert read(copied / "out" / "run") == places(copied)  # though the old ones are here still
  alone = shutil.copytree(project / "out" / "run", tmp_path / "run")
  assert read(alone) == places(project)
  again = config_lib.of_run(alone)
  assert again.data.hard == "hf:a/b//c" and again.prompting.tokenizer[-4:] == "main"
  shutil.rmtree(project)
  lost = config_lib.of_run(alone)
  assert lost.model.path == "out/base" and lost.data.train == f"{project}/data/a.jsonl"
  with pytest.raises(ValueError, match=f"config.retrieval.index='{project}/out/index': no index here.*old place"):
    checks.tools(settings.of(lost), recipes.get("search_r1", "paper"))


def test_absolute_paths_move_with_the_run_too(project, tmp_path):
  changes.write(project / "out" / "run", settings.of(names(retrieval__index=f"{project}/out/index")), "rl")
  moved = tmp_path / "moved"
  project.rename(moved)
  assert config_lib.of_run(moved / "out" / "run").retrieval.index == f"{moved}/out/index"


def test_lists_globs_programs_and_addresses(project, tmp_path, monkeypatch):
  (project / "wiki.db").touch()
  stored_paths.note(project / "out")
  monkeypatch.chdir(tmp_path)
  found = lambda value, **how: stored_paths.found(value, project / "out", **how)
  assert found("data/a.jsonl,hf:a/b//c") == f"{project}/data/a.jsonl,hf:a/b//c"
  assert found("data/b,c.jsonl") == f"{project}/data/b,c.jsonl"
  assert found("tools.py:one, tools.py:two, json:dumps") == f"{project}/tools.py:one,{project}/tools.py:two, json:dumps"
  for value in ("http://host:80,http://other", "", "owner/name", "data/none.jsonl"):
    assert found(value) == value
    assert stored_paths.found(value, tmp_path) == value  # a folder of an earlier version
  assert found("data/none.jsonl,hf:a/b//c", local=True) == f"{project}/data/none.jsonl,hf:a/b//c"
  project = project.rename(tmp_path / "moved")
  moved = f"milvus:{project}/wiki.db/pages?encoder={project}/out/base&text=t"
  assert found("milvus:wiki.db/pages?encoder=out/base&text=t", local=True) == moved
  for kept in ("milvus:http://h:1/a?encoder=intfloat/e5-base-v2", "opensearch:https://h/a", "milvus:gone.db/a"):
    assert found(kept, local=True) == kept


def test_a_resumed_run_may_name_its_programs_elsewhere(project, tmp_path, monkeypatch):
  made = lambda value: fields.replaced(settings.Settings(), {"switches.tools": value})
  changes.write(project / "out" / "run", made("tools.py:one"), "rl")
  monkeypatch.chdir(tmp_path)
  differ = lambda value: changes.differences(project / "out" / "run", made(value))
  assert differ("home/tools.py:one") == {} and list(differ("home/tools.py:two")) == ["switches.tools"]


def test_programs_and_keys_of_a_copied_run_are_refused_until_they_are_named(project, tmp_path, monkeypatch):
  monkeypatch.setenv("MY_KEY", "secret")
  named = {"switches.program": "tools.py:one", "judge.key_variable": "MY_KEY"}
  values = {"recipe": "agent", "judge.endpoint": "https://host/v1", "endpoint.key_variable": "MY_KEY"} | named
  changes.write(project / "out" / "run", fields.replaced(settings.Settings(), values), "rl")
  moved = (project / "out" / "run").rename(tmp_path / "run")  # the user's own, still
  config = checkpoints.config_of(shutil.copytree(moved, tmp_path / "copied"))
  says = "name them yourself: --config.switches.program=tools.py:one --config.judge.key_variable=MY_KEY$"
  with pytest.raises(ValueError, match=says):
    prepared.recipe(settings.of(config))
  config.update_from_flattened_dict(named)
  for trusted in (config, checkpoints.config_of(moved)):
    with pytest.raises(NameError, match="'tools'"):  # the program's file was run
      prepared.recipe(settings.of(trusted))
