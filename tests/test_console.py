import ast
import pathlib
import subprocess
import sys
import tomllib

import pytest
from refusals import refused

import ragrl_jax
from ragrl_jax import config as config_lib
from ragrl_jax.cli import configs, main

ROOT = pathlib.Path(__file__).parents[1]
CLI = ROOT / "ragrl_jax" / "cli"


@pytest.fixture
def ragrl(monkeypatch, capsys):
  """Words → (exit status, stdout, stderr, the module that was started)."""

  def called(*words):
    started = []
    monkeypatch.setattr(main, "start", started.append)
    monkeypatch.setattr(sys, "argv", ["ragrl", *words])
    status = 0
    try:
      main.main()
    except SystemExit as ended:
      status = ended.code
    return status, *capsys.readouterr(), started

  return called


def test_every_command_has_a_module():
  for module, _ in main.COMMANDS.values():
    file = CLI / f"{module}.py" if "." not in module else CLI.parent / f"{module.replace('.', '/')}.py"
    defined = [node.name for node in ast.parse(file.read_text()).body if hasattr(node, "name")]
    assert "main" in defined, module


def test_a_recipe_declares_its_own_commands(ragrl):
  assert ragrl("make-lear-sft", "--data=x")[3] == ["make-lear-sft"]
  text = "judge the steps of logged episodes, set by set"
  assert main.COMMANDS["faithfulness"] == ("recipes.veritas.faithfulness", text)


def test_launchers_run_commands_by_path():
  for file in (ROOT / "launchers").glob("*.py"):
    assert file.stem in main.COMMANDS and f'main.start("{file.stem}")' in file.read_text()


def test_a_command_receives_its_own_flags(ragrl):
  assert ragrl("train", "--config=arena") == (0, "", "", ["train"]) and sys.argv == ["ragrl train", "--config=arena"]
  assert ragrl("index", "--help")[3] == ["index"] and sys.argv == ["ragrl index", "--help"]


def test_commands_are_listed_one_per_line_and_a_misspelt_one_gets_a_suggestion(ragrl):
  status, said, _, started = ragrl()
  assert status == 0 and not started and ragrl("--help")[1] == said == ragrl("help")[1]
  for name, (_, text) in main.COMMANDS.items():
    assert any(line.split() == [name, *text.split()] for line in said.splitlines()), name
  assert ragrl("trian") == (2, "", "error: there is no command 'trian'. Did you mean train?\n", [])
  assert ragrl("zzz")[2] == "error: there is no command 'zzz'. `ragrl` lists the commands.\n"


def test_the_version(ragrl):
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  assert ragrl("--version")[1] == f"ragrl {project['version']}\n" == f"ragrl {ragrl_jax.__version__}\n"
  assert project["scripts"] == {"ragrl": "ragrl_jax.cli.main:main"}


def test_configs_are_found_by_name(monkeypatch, tmp_path):
  for file in (ROOT / "configs").glob("*.py"):  # a checkout, or an editable install of it
    assert pathlib.Path(config_lib.find(file.stem)).samefile(file)
  assert config_lib.find("arena:smoke,repo") == f"{config_lib.folder()}/arena.py:smoke,repo"
  for given in ("configs/arena.py:smoke", "/a/b.py", "mine.py", "./mine.py", ""):
    assert config_lib.find(given) == given
  refused("no config 'arenas'.*did you mean arena.*mine.py", config_lib.find, "arenas:smoke")
  monkeypatch.setattr(config_lib, "INSTALLED", tmp_path)  # an installed package contains them
  (tmp_path / "mine.py").write_text("get_config = dict")
  refused("get_config.variant. must return a config, .*not {}", config_lib.load, tmp_path / "mine.py")
  assert config_lib.find("mine") == f"{tmp_path}/mine.py"
  monkeypatch.undo()
  words = "ragrl train", "--config.steps=3", "--workdir=care"
  argv = [*words, "--config", "arena:smoke", "--sft_config=care", "--config"]
  paths = f"--config={config_lib.find('arena:smoke')}", f"--sft_config={config_lib.find('care')}"
  assert configs.with_paths(argv, ["config", "sft_config"]) == [*words, *paths, "--config"]
  assert configs.with_paths(argv, []) == argv


def test_listing_the_commands_does_not_import_jax():
  code = "import sys; from ragrl_jax.cli import main; main.main(); sys.exit('jax' in sys.modules)"
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0 and done.stdout.startswith("usage: ragrl COMMAND"), done.stderr
