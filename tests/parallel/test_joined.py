"""How one of several processes ends when something goes wrong in it."""

import os

import pytest

from ragrl_jax.parallel import hosts


@pytest.fixture
def left(monkeypatch):
  """Of a process that joined others: the status it left with."""
  found = []
  monkeypatch.setattr(hosts.jax.distributed, "initialize", lambda **settings: None)
  monkeypatch.setattr(os, "_exit", found.append)
  return found


def fails(error, **settings):
  with pytest.raises(type(error)), hosts.Joined("host:1", 2, 0, **settings):  # the true way out returns to nobody
    raise error


def test_it_leaves_with_the_status_and_the_words_it_was_given(left, capsys):
  told = []
  fails(ValueError("config.steps=0: it must be at least 1."), tell=lambda error: told.append(str(error)) or 2)
  assert left == [2] and told == ["config.steps=0: it must be at least 1."]
  said = capsys.readouterr().err
  assert "Traceback" not in said and "of 1 ends with the error above, and the job with it" in said


def test_a_bug_shows_where_it_was_raised(left, capsys):
  fails(KeyError("nothing"))
  assert left == [1] and "in fails" in capsys.readouterr().err
