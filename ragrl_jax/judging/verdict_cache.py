"""A cache of verdicts on disk: a judge is asked about each pair once, over this run and later ones."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.judging import judge_api

_SCHEMA = "CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, verdict REAL NOT NULL) WITHOUT ROWID"
_MARK = 0x72616772  # the file's application_id: identifies our files, even if the table is damaged
_AT_ONCE = 500  # keys in one SQL query
_BUSY_S = 10.0  # longest wait for another process's lock
_REST_S = 60.0  # pause before a file that could not be used is tried again
_PASSING = frozenset(
  {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
  }
)  # temporary errors, or missing permissions: the file itself may be undamaged

_TROUBLE = (sqlite3.DatabaseError, UnicodeDecodeError)  # the second: SQLite's error message quotes damaged bytes


class Cached:
  """A judge with its verdicts cached in an SQLite file.

  The key is the SHA-256 of the judge's description and the pair. The new verdicts of a call are written in one
  transaction, so that a kill leaves all of them or none. Several runs may share the file. The first verdict on a pair
  is final and replaces later ones, so that a repeated run sees the same verdicts. None is not stored.

  No fault of the file stops a run. While it is locked or cannot be written, the judge is asked instead, and its
  verdicts are kept in memory. If a file is damaged, even by one bit of one verdict, it is renamed and a new file
  begins. Both cases log a warning.

  Args:
    judge: judges the pairs that are not in the file.
    path: the file; it is created if needed.

  Raises:
    ValueError: `path` cannot be written, or is a database of another kind.
  """

  def __init__(self, judge: judge_api.Judge, path: str | os.PathLike):
    self._judge, self.pace, self._path = judge, judge.pace, pathlib.Path(path)
    self._identity = json.dumps(judge.describe(), sort_keys=True)
    self._unsaved: dict[bytes, float] = {}  # verdicts that are not written yet
    self._lock = threading.Lock()  # guards all fields below: all threads share one connection
    self._connection: sqlite3.Connection | None = None
    self._file: tuple[int, int] | None = None  # the connected file (device, inode)
    self._rest_until, self._said = 0.0, False
    _check(self._path)
    self._use(lambda connection: None, None)

  def describe(self) -> Mapping[str, Any]:
    """The settings that are stored with every verdict: those of the judge behind the cache."""
    return self._judge.describe()

  def judge(self, pairs: Sequence[judge_api.Pair]) -> judge_api.Verdicts:
    """See `judge_api.Judge`."""
    return judge_api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    keys = [self._key(pair) for pair in pairs]
    known = self._read(keys)
    new = {pair: key for pair, key in zip(pairs, keys) if key not in known}
    if new:
      try:
        fresh = dict(zip(new.values(), self._judge.judge(list(new)), strict=True))
      except judge_api.JudgeFailed as error:  # keep the verdicts that were given
        known |= self._keep({new[pair]: verdict for pair, verdict in error.answered.items()})
        error.answered |= {pair: known[key] for pair, key in zip(pairs, keys) if key in known}
        raise
      known |= self._keep(fresh)
    return [known.get(key) for key in keys]

  def _key(self, pair: judge_api.Pair) -> bytes:
    return hashlib.sha256(json.dumps([self._identity, *pair]).encode()).digest()

  def _read(self, keys: Sequence[bytes]) -> dict[bytes, float]:
    """The known verdicts of these keys, from memory and from the file."""

    def read(connection: sqlite3.Connection) -> dict[bytes, float]:
      found = {}
      for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        found.update(connection.execute(f"SELECT key, verdict FROM verdicts WHERE key IN ({marks})", some))
      return {key: _unsealed(key, kept) for key, kept in found.items()}

    return {key: self._unsaved[key] for key in keys if key in self._unsaved} | self._use(read, {})

  def _keep(self, verdicts: Mapping[bytes, float | None]) -> dict[bytes, float]:
    """Writes the verdicts and returns the final ones: for each key the one that was written first."""
    told = {key: verdict for key, verdict in verdicts.items() if verdict is not None}
    for key, verdict in told.items():
      self._unsaved.setdefault(key, verdict)
    rows = [(key, _sealed(key, verdict)) for key, verdict in self._unsaved.copy().items()]
    write = lambda connection: connection.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", rows)
    if self._use(write, None) is not None:
      for key, _ in rows:
        self._unsaved.pop(key, None)
    return told | self._read(list(told))

  # ---- the file and its faults ---------------------------------------------------------------------------------------

  def _use(self, work: Callable[[sqlite3.Connection], Any], otherwise: Any) -> Any:
    """Runs `work` as one transaction and returns its result; `otherwise` if the file cannot be used now."""
    with self._lock:
      if time.monotonic() < self._rest_until:
        return otherwise
      try:
        self._connect()
        with self._connection:
          return work(self._connection)
      except sqlite3.ProgrammingError:  # a bug in this library, not a fault of the file
        raise
      except _TROUBLE as error:
        self._give_up(error)
        return otherwise

  def _connect(self) -> None:
    """Opens the file if it is not open, or if another process has replaced it. Creates it if needed."""
    found = _file(self._path)
    if self._connection is not None and found == self._file:
      return
    self._disconnect()
    self._file = found
    self._connection = sqlite3.connect(
      self._path, timeout=_BUSY_S, isolation_level="IMMEDIATE", check_same_thread=False
    )  # IMMEDIATE: a transaction takes the write lock at its start
    self._connection.text_factory = bytes
    self._connection.execute(_SCHEMA)
    self._connection.execute("SELECT key, verdict FROM verdicts LIMIT 0")
    if self._connection.execute("PRAGMA application_id").fetchone() != (_MARK,):
      self._connection.execute(f"PRAGMA application_id={_MARK}")
    self._file = _file(self._path)

  def _disconnect(self) -> None:
    if self._connection is not None:
      self._connection.close()
      self._connection = None

  def _give_up(self, error: Exception) -> None:
    """Renames a damaged file. A file that cannot be used for another reason is not tried again for a while."""
    self._disconnect()
    passing = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _PASSING
    if not passing and (self._file is None or self._file != _file(self._path)):
      return  # another process has renamed it
    try:
      if not passing:
        aside = _set_aside(self._path)
        logging.warning(
          "%s: the file of verdicts is damaged (%s). It was renamed to %s, and a new file is started. The judge is "
          "asked again about its pairs (config.judge.cache).",
          self._path,
          error,
          aside.name,
        )
        return
    except OSError as why:
      error = why
    self._rest_until = time.monotonic() + _REST_S
    if not self._said:
      self._said = True
      logging.warning(
        "%s: the cache of verdicts cannot be used now (%s): the judge is asked about all pairs (config.judge.cache).",
        self._path,
        error,
      )


def _check(path: pathlib.Path) -> None:
  """Refuses a database of another kind, and a path that cannot be written. A damaged cache passes.

  Raises:
    ValueError: see `Cached`.
  """
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab"):
      pass
  except OSError as error:
    raise ValueError(
      f"{path}: the cache cannot be written there ({error.strerror}). Name another file (config.judge.cache)."
    ) from error
  if not path.stat().st_size or _is_marked(path):
    return
  connection = sqlite3.connect(path, timeout=_BUSY_S)
  try:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = [row[1] for row in connection.execute("PRAGMA table_info(verdicts)")]
  except _TROUBLE:
    return  # not a database, or a damaged or locked one: `Cached._use` handles these
  finally:
    connection.close()
  if tables and columns != ["key", "verdict"]:
    raise ValueError(
      f"{path}: this is a database of another kind, with the tables {', '.join(sorted(tables))}. Name another "
      "file (config.judge.cache)."
    )


def _is_marked(path: pathlib.Path) -> bool:
  with open(path, "rb") as file:
    return file.read(72)[68:] == struct.pack(">I", _MARK)  # the application_id's offset in SQLite's format


def _file(path: pathlib.Path) -> tuple[int, int] | None:
  """The file's identity, (device, inode); None if there is no file."""
  try:
    found = os.stat(path)
  except OSError:
    return None
  return found.st_dev, found.st_ino


def _set_aside(path: pathlib.Path) -> pathlib.Path:
  """Renames the file and SQLite's journals to a free name, and returns it."""
  number = 1
  while (aside := path.with_name(f"{path.name}.damaged{number}")).exists():
    number += 1
  for journal in ("-journal", "-wal", "-shm"):  # first: SQLite would apply a journal to the new file
    if (beside := path.with_name(path.name + journal)).exists():
      beside.rename(f"{aside}{journal}")
  path.rename(aside)
  return aside


def _sealed(key: bytes, verdict: float) -> bytes:
  """The stored form of a verdict: its eight bytes, and a checksum over key and verdict."""
  number = struct.pack("<d", verdict)
  return number + hashlib.sha256(key + number).digest()[:8]


def _unsealed(key: bytes, kept: bytes | float) -> float:
  """The verdict of a stored value. Files of older versions hold plain numbers without a checksum.

  Raises:
    sqlite3.DatabaseError: the checksum is wrong.
  """
  if isinstance(kept, bytes) and len(kept) == 16:
    (verdict,) = struct.unpack("<d", kept[:8])
    if _sealed(key, verdict) == kept:
      return verdict
  elif isinstance(kept, float) and 0.0 <= kept <= 1.0:
    return kept
  raise sqlite3.DatabaseError("a verdict's checksum is wrong")
