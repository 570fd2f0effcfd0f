import ast
import pathlib
import subprocess
import sys

import pytest

import ragrl_jax
from ragrl_jax import config as config_lib

ROOT = pathlib.Path(__file__).parents[1]


def test_every_name_is_there_and_documented_and_a_type_checker_sees_what_is_imported():
  page = (ROOT / "docs" / "howto" / "run.md").read_text(encoding="utf-8").partition("## From Python")[2]
  for name in ragrl_jax.__all__:
    assert getattr(ragrl_jax, name).__doc__ and name in dir(ragrl_jax) and f"`{name}" in page, name
  with pytest.raises(AttributeError, match="module 'ragrl_jax' has no attribute 'trian'"):
    getattr(ragrl_jax, "trian")  # noqa: B009
  parsed = ast.parse((ROOT / "ragrl_jax" / "__init__.py").read_text())
  (checked,) = [node for node in parsed.body if isinstance(node, ast.If)]
  names: dict = {}
  exec(ast.unparse(checked.body), names)
  assert all(names[name] == getattr(ragrl_jax, name) for name in ragrl_jax.__all__)


def test_the_import_takes_no_time():
  code = "import sys, time; start = time.perf_counter(); import ragrl_jax; print(time.perf_counter() - start)"
  code += "; assert not {'jax', 'numpy', 'ml_collections'} & set(sys.modules)"
  took = [float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)) for _ in range(3)]
  assert min(took) < 0.2, took


def test_configs_by_name_by_file_and_by_default():
  assert ragrl_jax.Config().to_dict() == config_lib.default_config().to_dict()
  smoke = ragrl_jax.Config("arena:smoke")
  assert smoke.recipe == "arena" and smoke.steps == 2 and ragrl_jax.Config("arena").steps > 2
  assert ragrl_jax.Config(ROOT / "configs" / "arena.py", "smoke").to_dict() == smoke.to_dict()
  assert ragrl_jax.Config(f"{ROOT}/configs/arena.py:smoke").to_dict() == smoke.to_dict()
  with pytest.raises(ValueError, match="did you mean arena"):
    ragrl_jax.Config("arenas")
