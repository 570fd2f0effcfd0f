import importlib.util
import pathlib

import pytest


@pytest.fixture(scope="session")
def fake_run(tmp_path_factory):
  """The folder of a made-up run of 60 steps, 13 of them with episodes."""
  spec = importlib.util.spec_from_file_location("fake_run", pathlib.Path(__file__).with_name("fake_run.py"))
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.make(tmp_path_factory.mktemp("runs") / "fake", steps=60)
