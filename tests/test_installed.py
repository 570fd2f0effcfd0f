"""A wheel of this checkout works elsewhere: it contains the configs and all data files, and its commands start."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def files(folder):
  """Names of a folder's files, relative to the checkout. Python's caches are left out."""
  paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
  return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """Built from a copy, because a build leaves folders behind. Extra `dev` has setuptools, so it needs no network."""
  source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
  for name in files("ragrl_jax") | files("configs") | {"pyproject.toml", "setup.py", "README.md"}:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes((ROOT / name).read_bytes())
  build = [
    "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(out), str(source),
  ]  # fmt: skip
  done = subprocess.run([sys.executable, *build], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  (file,) = out.glob("*.whl")
  return file


@pytest.mark.long  # builds a wheel
def test_a_wheel_contains_every_file_of_the_package_and_the_configs(wheel):
  held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ragrl_jax/")}
  wanted = files("ragrl_jax") | {f"ragrl_jax/{name}" for name in files("configs")}
  assert held == wanted


@pytest.mark.long  # builds a wheel, and starts three processes
def test_commands_of_a_wheel_start_outside_of_a_checkout(wheel, tmp_path):
  installed = tmp_path / "installed"
  zipfile.ZipFile(wheel).extractall(installed)
  empty = tmp_path / "empty"
  empty.mkdir()

  def ragrl(*words):
    code = "import ragrl_jax; from ragrl_jax.cli import main; print(ragrl_jax.__file__); main.main()"
    environment = os.environ | dict(PYTHONPATH=str(installed), JAX_PLATFORMS="cpu")
    return subprocess.run(
      [sys.executable, "-P", "-c", code, *words], cwd=empty, env=environment, capture_output=True, text=True
    )

  done = ragrl("--version")
  assert done.returncode == 0, done.stderr
  where, version = done.stdout.splitlines()
  assert pathlib.Path(where).is_relative_to(installed) and f"ragrl_jax-{version.split()[1]}-" in wheel.name
  # The config is found by its name and read with its recipe. Then the first thing that it lacks is named.
  done = ragrl(
    "train", "--config", "arena:smoke", "--workdir", "run", "--config.data.train=none.jsonl", "--config.data.evaluate="
  )
  assert done.returncode == 2 and "there is no file none.jsonl" in done.stderr, done.stderr
  done = ragrl("train", "--config", "arenas", "--workdir", "run")
  assert done.returncode == 2 and "did you mean arena" in done.stderr, done.stderr
