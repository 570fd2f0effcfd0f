"""The first signal is recorded, the second one ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import jax
import pytest

from ragrl_jax.parallel import hosts, signals


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_is_recorded_and_the_handlers_are_restored(number, code, capfd, monkeypatch):
  monkeypatch.setattr(signals, "SOON_S", 60.0)  # however long this thread is stopped between the two
  before = [signal.getsignal(number) for number in signals.SIGNALS]
  with signals.Signals() as received:
    assert received.end() is None
    signal.raise_signal(number)
    signal.raise_signal(number)  # the same signal, delivered twice
    assert received.end().code == code
  assert [signal.getsignal(number) for number in signals.SIGNALS] == before
  assert capfd.readouterr().err.count(f"{number.name}: the step under way is finished and saved first") == 1


def test_a_signal_that_came_soon_is_the_first_one_however_late_it_is_read(monkeypatch):
  """The watching thread is held up after it has read the first one, as on a busy machine."""
  write, read_late, ended = os.write, threading.Event(), []
  monkeypatch.setattr(signals, "SOON_S", 0.05)
  monkeypatch.setattr(signals.os, "write", lambda *told: read_late.wait(60) and write(*told))
  monkeypatch.setattr(signals.os, "_exit", ended.append)
  with signals.Signals():
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.1)
    read_late.set()
  assert not ended


def test_all_hosts_end_after_the_step_at_which_one_has_failed(monkeypatch):
  error, others = OSError("a tracker is gone"), [(0, False), (0, True)]
  monkeypatch.setattr(hosts, "exchange", lambda own: [*others, own])
  received = signals.Signals()
  assert isinstance(received.end(), hosts.Ended) and "host 1 " in str(received.end())
  assert received.end(error) is error
  others[:] = [(signal.SIGTERM, False)]
  assert received.end().code == 143 and received.end(error) is error


def test_other_threads_install_no_handlers():
  found = []

  def run():
    with signals.Signals() as received:
      found.append(received.end())

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert found == [None]


BUSY = """
import ctypes, os
from ragrl_jax.parallel import signals
signals.SOON_S = 0.0
with signals.Signals():
  print("in a program", flush=True)
  ctypes.CDLL(None).sleep(60)  # no handler of Python's runs until it ends
  ctypes.CDLL(None).sleep(60)
"""


def test_a_second_signal_ends_the_process_during_a_computation():
  pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  with subprocess.Popen([sys.executable, "-c", BUSY], **pipes) as busy:
    assert busy.stdout.readline() == "in a program\n"
    busy.send_signal(signal.SIGTERM)
    while "a second signal ends at once" not in busy.stderr.readline():
      pass
    busy.send_signal(signal.SIGTERM)
    assert busy.wait(timeout=100) == 143


def test_hosts_with_different_questions_are_refused(monkeypatch):
  hosts.refuse_different("config.data.train", "a")
  monkeypatch.setattr(hosts, "exchange", lambda own: ["a", "a", own])
  hosts.refuse_different("config.data.train", "a")
  with pytest.raises(ValueError, match="config.data.train is not the same on hosts 0 and 2"):
    hosts.refuse_different("config.data.train", "b")


@pytest.mark.parametrize("told, gpus", [
  ({}, None), (dict(SLURM_NTASKS="2", SLURM_STEP_NUM_NODES="2"), []), (dict(OMPI_COMM_WORLD_LOCAL_SIZE="1"), []),
  (dict(SLURM_NTASKS="16", SLURM_STEP_NUM_NODES="2"), None),  # a process for each GPU
])  # fmt: skip
def test_the_only_process_of_a_machine_gets_all_its_gpus(monkeypatch, told, gpus):
  found, _ = {}, [monkeypatch.setenv(*one) for one in told.items()]
  monkeypatch.setattr(hosts.jax, "distributed", mock.Mock(initialize=found.update))
  with hosts.Joined(automatic=True):
    assert found["local_device_ids"] == gpus and not jax.config.jax_enable_preemption_service


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
