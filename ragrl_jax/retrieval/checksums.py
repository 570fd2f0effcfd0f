"""Sizes and SHA-256 digests of an index's files. The build stores them in index.json; loading compares them."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from ragrl_jax.store import sums

PARTS = ("corpus/*", "bm25/*", "encoder.json", "vectors.npy", "scales.npy", "index.faiss")
AGAIN = "copy the index again, or build it again with --overwrite"


@contextlib.contextmanager
def opening(path: pathlib.Path) -> Iterator[None]:
  """Names a file that cannot be read.

  Raises:
    ValueError: the body failed; the message names the file, and says what to do.
  """
  try:
    yield
  except Exception as error:  # noqa: BLE001 – NumPy, bm25s and FAISS raise all kinds, SyntaxError among them
    raise unreadable(path, error) from None


def unreadable(path: pathlib.Path, error: Exception) -> ValueError:
  """The error that names a file, and says what to do."""
  why = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
  return ValueError(f"{path}: it cannot be read ({why:.300}): {AGAIN}.")


def sealed(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
  """{path relative to the folder: {"bytes", "sha256"}} for every file that a search reads."""
  paths = sorted(path for part in PARTS for path in folder.glob(part) if path.suffix != ".partial")
  return {
    path.relative_to(folder).as_posix(): dict(bytes=path.stat().st_size, sha256=sums.digest(path)) for path in paths
  }


def check(folder: pathlib.Path, files: Mapping[str, Mapping[str, Any]], *, verify_bytes: int) -> None:
  """Compares an index's files with the stored sizes, and with the digests if they have at most `verify_bytes` in all.

  Args:
    folder: the index's folder.
    files: the result of `sealed` from index.json.
    verify_bytes: largest total size whose contents are compared.

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
    if (found := sums.digest(folder / name)) != stored["sha256"]:
      raise ValueError(
        f"{folder / name}: changed since the index was built (SHA-256 {found[:12]}, not "
        f"{stored['sha256'][:12]}): {AGAIN}."
      )
