"""The package `ragrl_jax.agents` can be taken away: the others import, build and pass their tests without it."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
OTHERS = ("contracts", "prompting", "recipes", "rollout", "serving")  # folders of tests, without those of agents
CHILD = """
import importlib, pathlib, pkgutil, sys
sys.modules["ragrl_jax.agents"] = None  # Python then looks for it nowhere, as if its folder were not there
from absl import flags
import ragrl_jax
from ragrl_jax import config, recipes

known = set(flags.FLAGS)
for module in pkgutil.walk_packages(ragrl_jax.__path__, "ragrl_jax."):
  if not module.name.startswith(("ragrl_jax.agents", "ragrl_jax.__main__")):
    importlib.import_module(module.name)
    for flag in set(flags.FLAGS) - known:  # every command has flags of its own, with names of others
      delattr(flags.FLAGS, flag)
for name, room in recipes.RECIPES.items():
  for preset in room.PRESETS:
    assert recipes.get(name, preset).name == name
for path in pathlib.Path("configs").glob("*.py"):
  if path.stem not in ("agent", "tool_agent"):
    config.validate(config.load(path, ""))
assert not [name for name in sys.modules if name.startswith("ragrl_jax.agents.")]
assert "agent" not in recipes.RECIPES and "arena" in recipes.RECIPES
try:
  config.load(pathlib.Path("configs/agent.py"), "")
except ValueError as error:
  assert "there is no recipe 'agent'" in str(error)
else:
  raise AssertionError("configs/agent.py needs its recipe")
"""


def run(*command, folder=ROOT, **more):
  environment = os.environ | dict(PYTHONPATH=os.pathsep.join(map(str, (folder, folder / "tests" / "kits"))))
  said = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, **more)
  assert said.returncode == 0, said.stdout[-3000:] + said.stderr[-3000:]


@pytest.mark.slow  # imports every module and command
def test_every_other_module_recipe_and_config_works_without_agents():
  run("-c", CHILD)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_other_packages_tests_pass_without_agents(tmp_path):
  shutil.copytree(ROOT / "ragrl_jax", tmp_path / "ragrl_jax", ignore=shutil.ignore_patterns("agents", "__pycache__"))
  shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("agents", "__pycache__"))
  shutil.copytree(ROOT / "configs", tmp_path / "configs", ignore=shutil.ignore_patterns("agent.py", "tool_agent.py"))
  for name in ("docs", "launchers", "benchmarks", "pyproject.toml", ".cache"):
    (tmp_path / name).symlink_to(ROOT / name)
  fast = "not slow and not long and not agents and not real and not parity and not hosts and not browser"
  folders = [f"tests/{name}" for name in OTHERS]
  # An installed package that is edited in its checkout would bring them back: no import finds them.
  conftest = tmp_path / "tests" / "conftest.py"
  conftest.write_text(f'import sys\n\nsys.modules["ragrl_jax.agents"] = None\n{conftest.read_text()}')
  run("-m", "pytest", "-q", "-p", "no:cacheprovider", *folders, "-m", fast, folder=tmp_path)
