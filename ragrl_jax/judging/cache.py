"""Verdicts kept on disk by what was judged: the same pair is asked once, in this run and in later ones."""

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

from ragrl_jax.judging import api

_SCHEMA = "CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, verdict REAL NOT NULL) WITHOUT ROWID"
_MARK = 0x72616772  # the file's application_id: it is one of ours, even where its table cannot be read
_AT_ONCE = 500  # keys of one question to SQLite
_BUSY_S = 10.0  # how long another process's lock is waited for
_REST_S = 60.0  # how long a file that could not be used is left alone
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
)  # the file itself may be sound

_TROUBLE = (sqlite3.DatabaseError, UnicodeDecodeError)  # the second: an error whose own text quotes damaged bytes


class Cached:
  """A judge whose verdicts are kept in an SQLite file.

  The key is the SHA-256 of what the judge says of itself and of the pair. Each call's new verdicts are one transaction:
  a kill leaves all of them or none, and several runs may share the file. The first verdict stands: whoever was second
  gets it, too, so that a run which is repeated sees the same. None is not kept.

  Nothing that befalls the file stops a run. While it is locked or cannot be written the judge is asked instead, and its
  verdicts wait in memory. A damaged file, down to one bit of one verdict, is set aside under another name, and a new
  one is begun. Both are logged as warnings.

  Args:
    judge: what answers for pairs that are new.
    path: the file, made if need be.

  Raises:
    ValueError: no file can be written at `path`, or a database of something else lies there.
  """

  def __init__(self, judge: api.Judge, path: str | os.PathLike):
    self._judge, self.pace, self._path = judge, judge.pace, pathlib.Path(path)
    self._identity = json.dumps(judge.describe(), sort_keys=True)
    self._unsaved: dict[bytes, float] = {}  # verdicts that wait for the file
    self._lock = threading.Lock()  # over all that follows: one connection serves every thread
    self._connection: sqlite3.Connection | None = None
    self._file: tuple[int, int] | None = None  # which file the connection is to
    self._rest_until, self._said = 0.0, False
    _check(self._path)
    self._use(lambda connection: None, None)

  def describe(self) -> Mapping[str, Any]:
    """What stands beside every verdict: kind and settings, of the judge behind the cache."""
    return self._judge.describe()

  def judge(self, pairs: Sequence[api.Pair]) -> api.Verdicts:
    """See `api.Judge`."""
    return api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[api.Pair]) -> api.Verdicts:
    keys = [self._key(pair) for pair in pairs]
    known = self._read(keys)
    new = {pair: key for pair, key in zip(pairs, keys) if key not in known}
    if new:
      try:
        fresh = dict(zip(new.values(), self._judge.judge(list(new)), strict=True))
      except api.JudgeFailed as error:  # what was answered is paid for
        known |= self._keep({new[pair]: verdict for pair, verdict in error.answered.items()})
        error.answered |= {pair: known[key] for pair, key in zip(pairs, keys) if key in known}
        raise
      known |= self._keep(fresh)
    return [known.get(key) for key in keys]

  def _key(self, pair: api.Pair) -> bytes:
    return hashlib.sha256(json.dumps([self._identity, *pair]).encode()).digest()

  def _read(self, keys: Sequence[bytes]) -> dict[bytes, float]:
    """The verdicts on file."""

    def read(connection: sqlite3.Connection) -> dict[bytes, float]:
      found = {}
      for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        found.update(connection.execute(f"SELECT key, verdict FROM verdicts WHERE key IN ({marks})", some))
      return {key: _unsealed(key, kept) for key, kept in found.items()}

    return {key: self._unsaved[key] for key in keys if key in self._unsaved} | self._use(read, {})

  def _keep(self, verdicts: Mapping[bytes, float | None]) -> dict[bytes, float]:
    """Writes them, and gives those that now stand: another's, where that came first."""
    told = {key: verdict for key, verdict in verdicts.items() if verdict is not None}
    for key, verdict in told.items():
      self._unsaved.setdefault(key, verdict)
    rows = [(key, _sealed(key, verdict)) for key, verdict in self._unsaved.copy().items()]
    write = lambda connection: connection.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", rows)
    if self._use(write, None) is not None:
      for key, _ in rows:
        self._unsaved.pop(key, None)
    return told | self._read(list(told))

  # ---- the file, and what befalls it ---------------------------------------------------------------------------------

  def _use(self, work: Callable[[sqlite3.Connection], Any], otherwise: Any) -> Any:
    """What the work gives, done as one transaction; `otherwise` if the file cannot be used now."""
    with self._lock:
      if time.monotonic() < self._rest_until:
        return otherwise
      try:
        self._connect()
        with self._connection:
          return work(self._connection)
      except sqlite3.ProgrammingError:  # a bug of ours
        raise
      except _TROUBLE as error:
        self._give_up(error)
        return otherwise

  def _connect(self) -> None:
    """Opens the file, made if need be, unless that is done; anew if another process has set it aside."""
    found = _file(self._path)
    if self._connection is not None and found == self._file:
      return
    self._disconnect()
    self._file = found
    self._connection = sqlite3.connect(
      self._path, timeout=_BUSY_S, isolation_level="IMMEDIATE", check_same_thread=False
    )  # a writer waits its turn
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
    """Sets a damaged file aside; leaves one that cannot be used otherwise alone for a while."""
    self._disconnect()
    passing = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _PASSING
    if not passing and (self._file is None or self._file != _file(self._path)):
      return  # another process has set it aside
    try:
      if not passing:
        aside = _set_aside(self._path)
        logging.warning(
          "%s: the file of verdicts is damaged (%s). It is now %s, and a new one is begun: the judge is "
          "asked again for what it held (config.judge.cache).",
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
        "%s: verdicts can be neither read nor kept now (%s): the judge is asked for all of them (config.judge.cache).",
        self._path,
        error,
      )


def _check(path: pathlib.Path) -> None:
  """Refuses what is no damaged file of verdicts, but something else.

  Raises:
    ValueError: see `Cached`.
  """
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab"):
      pass
  except OSError as error:
    raise ValueError(
      f"{path}: no file of verdicts can be written there ({error.strerror}). Name another (config.judge.cache)."
    ) from error
  if not path.stat().st_size or _is_marked(path):
    return
  connection = sqlite3.connect(path, timeout=_BUSY_S)
  try:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = [row[1] for row in connection.execute("PRAGMA table_info(verdicts)")]
  except _TROUBLE:
    return  # no database, or a damaged or locked one: `Cached._use` sees to it
  finally:
    connection.close()
  if tables and columns != ["key", "verdict"]:
    raise ValueError(
      f"{path}: a database of something else, with the tables {', '.join(sorted(tables))}. Name another "
      "file (config.judge.cache)."
    )


def _is_marked(path: pathlib.Path) -> bool:
  with open(path, "rb") as file:
    return file.read(72)[68:] == struct.pack(">I", _MARK)  # where SQLite's format has the application_id


def _file(path: pathlib.Path) -> tuple[int, int] | None:
  """Which file lies there: another one has another number."""
  try:
    found = os.stat(path)
  except OSError:
    return None
  return found.st_dev, found.st_ino


def _set_aside(path: pathlib.Path) -> pathlib.Path:
  """Gives the file, and SQLite's journals beside it, a name that is free; returns that."""
  number = 1
  while (aside := path.with_name(f"{path.name}.damaged{number}")).exists():
    number += 1
  for journal in ("-journal", "-wal", "-shm"):  # first: one that stayed would be played into the new file
    if (beside := path.with_name(path.name + journal)).exists():
      beside.rename(f"{aside}{journal}")
  path.rename(aside)
  return aside


def _sealed(key: bytes, verdict: float) -> bytes:
  """What is kept of a verdict: its eight bytes, and a checksum of them and of their key."""
  number = struct.pack("<d", verdict)
  return number + hashlib.sha256(key + number).digest()[:8]


def _unsealed(key: bytes, kept: bytes | float) -> float:
  """The verdict. Files of before the checksums hold plain numbers.

  Raises:
    sqlite3.DatabaseError: the checksum is another's.
  """
  if isinstance(kept, bytes) and len(kept) == 16:
    (verdict,) = struct.unpack("<d", kept[:8])
    if _sealed(key, verdict) == kept:
      return verdict
  elif isinstance(kept, float) and 0.0 <= kept <= 1.0:
    return kept
  raise sqlite3.DatabaseError("a verdict's checksum is wrong")
