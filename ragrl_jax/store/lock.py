"""A lock that lets only one process at a time train or evaluate in a folder.

The process locks the folder's run.lock by flock and writes its name into it. The system releases the lock when the
process ends in any way. On some shared file systems such a lock works only within one machine. So the holder also
touches the file every few seconds. A process on another machine that finds a holder's name watches the file for a
while: if the file is still touched, the holder is alive.
"""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

FILE = "run.lock"
BEAT_S = 5.0  # the holder touches the file so often
WATCHED_S = 30.0  # a holder on another machine that does not touch the file for so long counts as dead


class Held(ValueError):
  """Another process holds the folder."""


@contextlib.contextmanager
def held(folder: str | os.PathLike) -> Iterator[Callable[[], None]]:
  """Holds the folder for the length of a `with` block.

  Yields:
    A function that raises Held if another machine has taken the folder since.

  Raises:
    Held: another process holds the folder; the message says which, and since when.
  """
  path = pathlib.Path(folder) / FILE
  path.parent.mkdir(parents=True, exist_ok=True)
  handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    locked, owner = _locked(handle), _read(path)
    # If flock succeeds although the file names a process of this machine, that process has ended.
    watched = owner and (locked is None or owner["machine"] != _machine())
    if locked is False or watched and _touched(path):
      raise Held(_message(path, owner))
    me = dict(machine=_machine(), host=socket.gethostname(), pid=os.getpid(), since=int(time.time()))
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(me).encode(), 0)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(handle, ended), name=FILE, daemon=True)
    beating.start()
    try:
      yield lambda: _refuse_another(path, me)
    finally:
      ended.set()
      beating.join()
      if _read(path) == me:
        os.ftruncate(handle, 0)
  finally:
    os.close(handle)


@contextlib.contextmanager
def in_turn(folder: str | os.PathLike) -> Iterator[None]:
  """Lets one process of this machine at a time into the folder, for a `with` block. The others wait."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    if _locked(handle) is False:
      logging.warning("%s: another process writes there: waiting for its end.", folder)
      fcntl.flock(handle, fcntl.LOCK_EX)
    yield
  finally:
    os.close(handle)


def _locked(handle: int) -> bool | None:
  """Whether flock locked the file for us; None if the file system has no such locks."""
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    return None
  return True


def _machine() -> str:
  """An id of this machine since its last boot. flock's locks end with a reboot, too."""
  boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
  return boot.read_text(encoding="ascii").strip() if boot.exists() else socket.gethostname()


def _read(path: pathlib.Path) -> dict[str, Any]:
  """The holder that the file names; {} if none."""
  try:
    owner = json.loads(path.read_bytes() or b"{}")
  except (FileNotFoundError, ValueError):  # somebody removed it; an unfinished line after a kill; or of another program
    return {}
  return owner if isinstance(owner, dict) and {"machine", "host", "pid", "since"} <= owner.keys() else {}


def _beat(handle: int, ended: threading.Event) -> None:
  while not ended.wait(BEAT_S):
    with contextlib.suppress(OSError):  # a network file system may be away for a while; the next touch may succeed
      os.utime(handle)


def _touched(path: pathlib.Path) -> bool:
  """Whether another process touches the file within WATCHED_S."""
  end = time.monotonic() + WATCHED_S
  before = _time(path)
  while time.monotonic() < end:
    time.sleep(min(BEAT_S, WATCHED_S) / 4)
    if _time(path) != before:
      return True
  return False


def _time(path: pathlib.Path) -> int:
  with open(path, "rb") as file:  # a network file system asks the server only when the file is opened
    return os.fstat(file.fileno()).st_mtime_ns


def _refuse_another(path: pathlib.Path, me: dict[str, Any]) -> None:
  if path.exists() and (owner := _read(path)) != me:
    raise Held(_message(path, owner))


def _message(path: pathlib.Path, owner: dict[str, Any]) -> str:
  owner_text = "another process"
  if owner:
    since = datetime.datetime.fromtimestamp(owner["since"], datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    owner_text = f"process {owner['pid']} on {owner['host']}, since {since},"
  return f"{path.parent} is in use: {owner_text} holds {path.name}. Wait until it ends, or use another folder."
