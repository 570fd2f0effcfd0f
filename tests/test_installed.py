"""A wheel of this checkout contains the configs and all data files. `make package` starts its commands elsewhere."""

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


@pytest.mark.long  # builds a wheel
def test_a_wheel_contains_every_file_of_the_package_and_the_configs(tmp_path):
  """Built from a copy, because a build leaves folders behind. Extra `dev` has setuptools, so it needs no network."""
  source, out = tmp_path / "source", tmp_path / "wheel"
  for name in files("ragrl_jax") | files("configs") | {"pyproject.toml", "setup.py", "README.md"}:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes((ROOT / name).read_bytes())
  build = "-m pip wheel --no-deps --no-index --no-build-isolation --wheel-dir".split()
  done = subprocess.run([sys.executable, *build, out, source], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  (wheel,) = out.glob("*.whl")
  held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ragrl_jax/")}
  wanted = files("ragrl_jax") | {f"ragrl_jax/{name}" for name in files("configs")}
  assert held == wanted
