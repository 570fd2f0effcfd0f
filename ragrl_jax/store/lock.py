"""One process at a time trains in a folder.

The folder's run.lock is locked by flock, which ends with the process however it ends, and says who holds it. Some
shared file systems keep such a lock within one machine. There the file itself has to do: its holder touches it every
few seconds, and a process on another machine that finds a holder's name watches for a while whether that goes on.
"""

import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

FILE = "run.lock"
BEAT_S, WATCHED_S = 5.0, 30.0


class Held(ValueError):
  """Another process trains in the folder."""


@contextlib.contextmanager
def held(
  folder: str | os.PathLike, *, beat_s: float = BEAT_S, watched_s: float = WATCHED_S
) -> Iterator[Callable[[], None]]:
  """Holds the folder for the length of a `with` block.

  Args:
    folder: is made if it is not there.
    beat_s: seconds between two touches.
    watched_s: seconds without any after which a holder on another machine is taken for dead.

  Returns:
    What raises if another machine has taken the folder since.

  Raises:
    Held: another process has it; the message says which, and since when.
  """
  path = pathlib.Path(folder) / FILE
  path.parent.mkdir(parents=True, exist_ok=True)
  handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    locked, owner = _locked(handle), _read(path)
    # Where flock holds, the name of a process of this machine is a dead one's: it could not be locked else.
    watched = owner and (locked is None or owner["machine"] != _machine())
    if locked is False or watched and _touched(path, beat_s, watched_s):
      raise Held(_said(path, owner))
    me = dict(machine=_machine(), host=socket.gethostname(), pid=os.getpid(), since=int(time.time()))
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(me).encode(), 0)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(handle, ended, beat_s), name=FILE, daemon=True)
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


def _locked(handle: int) -> bool | None:
  """Whether flock gave us the file; None where the file system has no such locks."""
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    return None
  return True


def _machine() -> str:
  """This machine's name until it is started anew: what flock's locks live on."""
  boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
  return boot.read_text(encoding="ascii").strip() if boot.exists() else socket.gethostname()


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Who stands in the file; {} if nobody does."""
  try:
    owner = json.loads(path.read_bytes() or b"{}")
  except ValueError:  # a kill in the middle of a line, or no file of ours
    return {}
  return owner if isinstance(owner, dict) and {"machine", "host", "pid", "since"} <= owner.keys() else {}


def _beat(handle: int, ended: threading.Event, beat_s: float) -> None:
  while not ended.wait(beat_s):
    os.utime(handle)


def _touched(path: pathlib.Path, beat_s: float, watched_s: float) -> bool:
  """Whether somebody touches the file while we watch."""
  end = time.monotonic() + watched_s
  before = _time(path)
  while time.monotonic() < end:
    time.sleep(min(beat_s, watched_s) / 4)
    if _time(path) != before:
      return True
  return False


def _time(path: pathlib.Path) -> int:
  with open(path, "rb") as file:  # opening is what makes a network's file system ask the server
    return os.fstat(file.fileno()).st_mtime_ns


def _refuse_another(path: pathlib.Path, me: dict[str, Any]) -> None:
  if (owner := _read(path)) != me:
    raise Held(_said(path, owner))


def _said(path: pathlib.Path, owner: dict[str, Any]) -> str:
  who = "another process"
  if owner:
    since = datetime.datetime.fromtimestamp(owner["since"], datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    who = f"process {owner['pid']} on {owner['host']}, since {since},"
  return f"{path.parent} is being trained in: {who} holds {path.name}. Wait until it ends, or use another workdir."
