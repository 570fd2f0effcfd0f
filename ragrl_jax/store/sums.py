"""Checksums of files and texts; a folder's are in its SHA256SUMS, for `sha256sum --check SHA256SUMS`."""

import hashlib
import os
import pathlib
import re

from ragrl_jax.parallel import cores

FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def write(folder: str | os.PathLike) -> None:
  """Writes the sums of all files below the folder, and waits until they are on the disk."""
  folder = pathlib.Path(folder)
  names = _names(folder)
  lines = [f"{digest}  {name}\n" for name, digest in zip(names, _digests(folder, names))]
  with open(folder / FILE, "w", encoding="utf-8", newline="\n") as file:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())


def damage(folder: str | os.PathLike) -> str:
  """Describes the first file below the folder that has changed since `write`; "" if none has."""
  folder, sums = pathlib.Path(folder), {}
  try:
    text = (folder / FILE).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
      if not (match := _LINE.fullmatch(line)):
        return f"{FILE}:{number} is damaged"
      sums[match[2]] = match[1]
    if unknown := set(_names(folder)) - sums.keys():
      return f"{min(unknown)} is not in {FILE}, so {FILE} was cut off"
    for name, digest in zip(sums, _digests(folder, sums)):
      if digest != sums[name]:
        return f"{name} is not what was saved: its SHA-256 differs"
  except FileNotFoundError as error:
    return f"{pathlib.Path(error.filename).relative_to(folder)} is missing"
  except (OSError, UnicodeDecodeError) as error:
    return f"it cannot be read: {error}"
  return "" if sums else f"{FILE} is empty"


def digest(path: str | os.PathLike) -> str:
  """SHA-256 of a file, in hexadecimal digits."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def content_id(title: str, text: str) -> str:
  """An id for a text that has none: 16 hexadecimal digits of a hash, so that millions of texts rarely share one."""
  return hashlib.sha1(f"{title}\n{text}".encode(errors="surrogatepass")).hexdigest()[:16]


def _names(folder: pathlib.Path) -> list[str]:
  """Names of all files except SHA256SUMS and hidden files, which file managers may create."""
  names = (path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if path.is_file())
  return sorted(name for name in names if name != FILE)


def _digests(folder: pathlib.Path, names):
  """The files' sums in order."""
  with cores.pool() as pool:
    yield from pool.map(lambda name: digest(folder / name), names)
