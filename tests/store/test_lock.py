import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from refusals import refused

from ragrl_jax.store import lock

HOLDER = """
import sys
from ragrl_jax.store import lock
with lock.held(sys.argv[1]):
  print("held", flush=True)
  sys.stdin.read()
"""


def test_the_second_process_names_the_first_and_a_killed_process_blocks_nothing(tmp_path):
  command = [sys.executable, "-c", HOLDER, tmp_path / "run"]
  holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  assert holder.stdout.readline() == "held\n"
  with pytest.raises(lock.Held, match=rf"run is in use: process {holder.pid} on .* since 2.*another folder"):
    with lock.held(tmp_path / "run"):
      pass
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  assert json.loads((tmp_path / "run" / lock.FILE).read_text())["pid"] == holder.pid  # its name is still in the file
  for _ in range(2):
    with lock.held(tmp_path / "run") as check:
      check()
      assert json.loads((tmp_path / "run" / lock.FILE).read_text())["pid"] == os.getpid()
      with pytest.raises(lock.Held, match=f"process {os.getpid()}"), lock.held(tmp_path / "run"):
        pass
    assert (tmp_path / "run" / lock.FILE).read_text() == ""


def test_a_file_system_that_is_away_for_a_while_and_a_removed_file_end_nothing(tmp_path, monkeypatch):
  away, touched = iter([OSError(5, "Input/output error")] * 2), threading.Event()

  def utime(handle):
    if error := next(away, None):
      raise error
    touched.set()

  monkeypatch.setattr(lock, "BEAT_S", 0.01)
  monkeypatch.setattr(os, "utime", utime)
  with lock.held(tmp_path) as check:
    assert touched.wait(20)
    (tmp_path / lock.FILE).unlink()
    check()


@pytest.mark.parametrize("flock", [None, mock.Mock(), mock.Mock(side_effect=OSError(95, "not supported"))])
def test_another_machines_name_counts_while_its_file_is_touched(tmp_path, monkeypatch, flock):
  """On a shared file system, where flock may not reach other machines or may not exist."""
  if flock is not None:
    monkeypatch.setattr(fcntl, "flock", flock)
  monkeypatch.setattr(lock, "BEAT_S", 0.02)
  monkeypatch.setattr(lock, "WATCHED_S", 0.2)
  path = tmp_path / lock.FILE
  path.write_text(json.dumps(dict(machine="another", host="far", pid=7, since=time.time())))
  with lock.held(tmp_path) as check:  # not updated, so its owner is dead
    check()
    path.write_text(json.dumps(dict(machine="another", host="far", pid=7, since=time.time())))  # at the same time
    refused("process 7 on far", check, error=lock.Held)
    monkeypatch.setattr(lock, "WATCHED_S", 120.0)
    if flock is not None:  # the first one's heartbeat is still there, and the first touch is enough
      with pytest.raises(lock.Held, match="process 7 on far"), lock.held(tmp_path):
        pass
  assert json.loads(path.read_text())["pid"] == 7  # not ours, so it must not be emptied


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"pid": 1}'])
def test_a_torn_lock_file_has_no_owner(tmp_path, content):
  (tmp_path / lock.FILE).write_bytes(content)
  with lock.held(tmp_path):
    pass
