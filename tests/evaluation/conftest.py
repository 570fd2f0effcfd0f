import pytest


@pytest.fixture(scope="session")
def fake_run(tmp_path_factory):
  """The folder of a made-up run of 60 steps, 13 of them with episodes."""
  import fake_run

  return fake_run.make(tmp_path_factory.mktemp("runs") / "fake", steps=60)


@pytest.fixture(params=[1400, 390])
def width(request):
  """The width of a page in a browser."""
  return request.param


@pytest.fixture(params=["light", "dark"])
def scheme(request):
  return request.param
