"""How one of several processes ends after an error."""

import os

import pytest

from ragrl_jax.parallel import hosts


@pytest.fixture
def left(monkeypatch):
  """The exit status of a process that has joined others."""
  found = []
  monkeypatch.setattr(hosts.jax.distributed, "initialize", lambda **settings: None)
  monkeypatch.setattr(os, "_exit", found.append)
  return found


def fails(error, **settings):
  with pytest.raises(type(error)), hosts.Joined("host:1", 2, 0, **settings):  # the real exit does not return
    raise error


def test_it_exits_with_the_given_status_and_message(left, capsys):
  told = []
  fails(ValueError("config.steps=0: it must be at least 1."), tell=lambda error: told.append(str(error)) or 2)
  assert left == [2] and told == ["config.steps=0: it must be at least 1."]
  said = capsys.readouterr().err
  assert "Traceback" not in said and "of 1 ends with the error above, and the job with it" in said


def test_a_bug_shows_its_traceback(left, capsys):
  fails(KeyError("nothing"))
  assert left == [1] and "in fails" in capsys.readouterr().err
