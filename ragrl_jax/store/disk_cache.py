"""A cache on disk: JSON values by key in one SQLite file, for several threads and processes."""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_MARK = 0x72616763  # the application_id of our files
_CREATE = f"""BEGIN IMMEDIATE; PRAGMA application_id={_MARK};
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB, checksum BLOB) WITHOUT ROWID; COMMIT"""
_BUSY_S = 10.0  # longest wait for another process's lock
_REST_S = 60.0  # pause before a file that could not be used is tried again
# Temporary errors, or missing permissions: the file itself may be undamaged.
_PASSING = {
  getattr(sqlite3, f"SQLITE_{name}") for name in "BUSY LOCKED FULL IOERR READONLY CANTOPEN PERM PROTOCOL".split()
}


def key(*parts: Any) -> str:
  """The key of these JSON values: a SHA-256 digest."""
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Cache:
  """Values by key in a file. The first value of a key is final, so that a repeated run sees the same ones.

  The new values of a call are written in one transaction, so that a kill leaves all of them or none.

  No fault of the file stops a run. While it is locked or cannot be written, new values are kept in memory. If it is
  damaged, even by one bit of one value, it is renamed and a new file begins. Both cases log a warning.

  Args:
    path: the file; it is created if needed.
    setting: the setting or flag that names the file, for messages.

  Raises:
    ValueError: `path` cannot be written, or is a database of another kind.
  """

  def __init__(self, path: str | os.PathLike, setting: str):
    self._path, self._setting = pathlib.Path(path), setting
    self._unsaved: dict[str, Any] = {}  # values that are not written yet
    self._lock = threading.Lock()
    self._rest_until, self._has_warned = 0.0, False
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      with open(self._path, "a+b") as file:
        file.seek(0)
        head = file.read(72)
    except OSError as error:
      raise ValueError(
        f"{path}: the cache cannot be written there ({error.strerror}). Name another file ({setting})."
      ) from error
    # Every database begins so; the application_id is at byte 68.
    if head.startswith(b"SQLite format 3\0") and head[68:] not in (b"", struct.pack(">I", _MARK)):
      raise ValueError(f"{path}: this is a database of another kind. Name another file ({setting}).")

  def get(self, keys: Iterable[str]) -> dict[str, Any]:
    """The values of those of these keys that have one."""
    keys = list(keys)

    def read(connection: sqlite3.Connection) -> dict[str, Any]:
      rows = ((key, connection.execute("SELECT value, checksum FROM entries WHERE key = ?", (key,))) for key in keys)
      return {key: _decode(key, *row) for key, matches in rows for row in matches}

    unsaved = self._unsaved  # another thread that has stored some replaces it
    return {key: unsaved[key] for key in keys if key in unsaved} | self._use(read, {})

  def add(self, values: Mapping[str, Any]) -> dict[str, Any]:
    """Stores the values, and returns the final one of each key: the one that was stored first."""
    with self._lock:
      self._unsaved = {**values, **self._unsaved}
      unsaved = dict(self._unsaved)
    rows = ((key, text := json.dumps(value).encode(), _checksum(key, text)) for key, value in unsaved.items())
    write = lambda connection: connection.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?)", rows)
    if self._use(write, None) is not None:
      with self._lock:
        self._unsaved = {key: value for key, value in self._unsaved.items() if key not in unsaved}
    return {**values, **self.get(values)}

  def _use(self, work: Callable[[sqlite3.Connection], Any], otherwise: Any) -> Any:
    """Runs `work` as one transaction and returns its result; `otherwise` if the file cannot be used now."""
    with self._lock:
      if time.monotonic() < self._rest_until:
        return otherwise
      file = self._identity()
      try:
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as connection, connection:
          connection.text_factory = bytes
          if connection.execute("PRAGMA application_id").fetchone() != (_MARK,):
            connection.executescript(_CREATE)
          return work(connection)
      except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second: SQLite's message quotes damaged bytes
        self._give_up(error, file)
        return otherwise

  def _identity(self) -> tuple[int, int] | None:
    """(device, inode) of the file; None if there is none."""
    try:
      status = os.stat(self._path)
    except OSError:
      return None
    return status.st_dev, status.st_ino

  def _give_up(self, error: Exception, file: tuple[int, int] | None) -> None:
    """Renames a damaged file. A file that cannot be used for another reason is not tried again for a while."""
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _PASSING:
      if file is None or file != self._identity():
        return  # another process has renamed it
      try:
        aside = self._set_aside()
      except OSError as why:
        error = why
      else:
        logging.warning(
          "%s: the cache is damaged (%s). It was renamed to %s, and a new file is started (%s).",
          *(self._path, error, aside.name, self._setting),
        )
        return
    self._rest_until = time.monotonic() + _REST_S
    if not self._has_warned:
      self._has_warned = True
      logging.warning(
        "%s: the cache cannot be used now (%s): what it holds is asked for again, and kept in memory (%s).",
        *(self._path, error, self._setting),
      )

  def _set_aside(self) -> pathlib.Path:
    """Renames the file and SQLite's journals to a free name, and returns it."""
    number = 1
    while (aside := self._path.with_name(f"{self._path.name}.damaged{number}")).exists():
      number += 1
    for journal in ("-journal", "-wal", "-shm"):  # first: SQLite would apply a journal to the new file
      if (beside := self._path.with_name(self._path.name + journal)).exists():
        beside.rename(f"{aside}{journal}")
    self._path.rename(aside)
    return aside


def _checksum(key: str, value: bytes) -> bytes:
  return hashlib.sha256(key.encode() + value).digest()[:8]


def _decode(key: str, value: Any, checksum: Any) -> Any:
  """The value of a row. Raises sqlite3.DatabaseError: the checksum is wrong."""
  if not isinstance(value, bytes) or checksum != _checksum(key, value):
    raise sqlite3.DatabaseError("a value's checksum is wrong")
  return json.loads(value)
