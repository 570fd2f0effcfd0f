"""An index's cards (small JSON files), and the digests of its files, which index.json holds and loading compares."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ragrl_jax.store import sums

PARTS = ("corpus/*", "bm25/*", "encoder.json", "vectors.npy", "scales.npy", "index.faiss")
AGAIN = "copy the index again, or build it again with --overwrite"


@contextlib.contextmanager
def opening(path: pathlib.Path) -> Iterator[None]:
  """Makes any error of the body a ValueError that names the file, which cannot be read, and says what to do."""
  try:
    yield
  except Exception as error:  # noqa: BLE001 – NumPy, bm25s and FAISS raise all kinds, SyntaxError among them
    raise unreadable(path, error) from None


def unreadable(path: pathlib.Path, error: Exception) -> ValueError:
  """The error that names a file, and says what to do."""
  why = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
  return ValueError(f"{path}: it cannot be read ({why:.300}): {AGAIN}.")


def load_array(path: pathlib.Path, dtype: Any, shape: tuple[int, ...], mode: Any = "r") -> np.ndarray:
  """A memory-mapped array. Raises ValueError: the file is none, or one of another type or shape."""
  with opening(path):
    array = np.load(path, mmap_mode=mode, allow_pickle=False)
    if array.dtype != dtype or array.shape != shape:
      raise ValueError(f"{array.dtype} {list(array.shape)}, but it must be {np.dtype(dtype)} {list(shape)}")
  return array


def digest_files(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
  """{path relative to the folder: {"bytes", "sha256"}} for every file that a search reads."""
  paths = sorted(path for part in PARTS for path in folder.glob(part) if path.suffix != ".partial")
  return {
    path.relative_to(folder).as_posix(): dict(bytes=path.stat().st_size, sha256=sums.digest(path)) for path in paths
  }


def check(folder: pathlib.Path, files: Mapping[str, Mapping[str, Any]], *, verify_bytes: int) -> None:
  """Compares an index's files with the stored sizes, and with the digests if they have at most `verify_bytes` in all.

  Raises:
    ValueError: a file is missing, or its size or contents differ; the message names the file.
  """
  with opening(folder / "index.json"):
    files = {str(name): dict(bytes=int(of["bytes"]), sha256=str(of["sha256"])) for name, of in files.items()}
  for name, stored in files.items():
    path = folder / name
    if not path.is_file():
      raise ValueError(f"{path}: this file of the index is missing: {AGAIN}.")
    if path.stat().st_size != stored["bytes"]:
      raise ValueError(f"{path}: {path.stat().st_size} bytes, but {stored['bytes']} were written: {AGAIN}.")
  if sum(stored["bytes"] for stored in files.values()) > verify_bytes:
    return
  for name, stored in files.items():
    if (digest := sums.digest(folder / name)) != stored["sha256"]:
      raise ValueError(
        f"{folder / name}: changed since the index was built (SHA-256 {digest[:12]}, not "
        f"{stored['sha256'][:12]}): {AGAIN}."
      )


def read_card(path: pathlib.Path, entries: Mapping[str, type | tuple[type, ...]]) -> dict:
  """Reads a file written by `write_json`. Raises ValueError: it is not JSON; see `check_card`."""
  try:
    card = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path}: not valid JSON ({error}): {AGAIN}.") from None
  check_card(path, card, entries)
  return card


def check_card(path: pathlib.Path, card: object, entries: Mapping[str, type | tuple[type, ...]]) -> None:
  """Checks the contents of a card. entries: name of an entry ("corpus.checksum" is one of "corpus") → its types.

  Raises:
    ValueError: an entry is missing or of another type.
  """
  for name, types in entries.items():
    value = card
    for part in name.split("."):
      if not isinstance(value, dict) or part not in value:
        raise ValueError(f"{path}: {name!r} is missing: {AGAIN}.")
      value = value[part]
    if not isinstance(value, types) or isinstance(value, bool):
      raise ValueError(f"{path}: {name!r} is {value!r:.80}, which is of another type: {AGAIN}.")


def write_json(path: pathlib.Path, value) -> None:
  """Writes the value atomically: an incomplete file never exists."""
  partial = path.with_name(path.name + ".partial")
  partial.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
  os.replace(partial, path)
