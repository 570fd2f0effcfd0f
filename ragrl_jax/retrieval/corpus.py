"""The corpus: reads public corpora as a stream of passages, and stores passages, memory-mapped and with a checksum.

Files have rows (`store.row_files`), or each is a document (`document_files`); or folders of either. Rows may be

{"id", "title", "text"}         this library's own format; an id that is missing is made from title and text
{"id", "contents"}              FlashRAG's and Search-R1's wiki-18: the first line is the title
{"doc_id", "title", "text"}     wiki-18 with its missing documents added, by SearchAgentReview (arXiv 2605.27881)
{"id", "text", "title"}         DPR's psgs_w100.tsv
{"docid", "text", "url"}        BrowseComp-Plus (Parquet)
{"docno", "text"}               TIREx's and PyTerrier's
{"_id", "title", "text"}        BEIR: FOLDER/corpus.jsonl; MTEB: {"id" or "_id", …} in FOLDER/corpus/*.parquet
"""

import array
import collections
import dataclasses
import glob
import hashlib
import json
import logging
import os
import pathlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from ragrl_jax.retrieval import cards, document_files
from ragrl_jax.retrieval.cards import read_card, write_json
from ragrl_jax.store import row_files, sums
from ragrl_jax.structs import Passage

ROWS, OFFSETS, HASHES, CARD = "passages.jsonl", "offsets.npy", "ids.npy", "corpus.json"
IDS = ("id", "_id", "docid", "doc_id", "docno")
COLUMNS = (*IDS, "title", "text", "contents")
ABOUT = ("readme", "license", "licence", "notice", "changelog")  # names of documents that come with a corpus of rows
WANTED = '{"id", "title", "text"}, {"id", "contents"}, BEIR\'s {"_id", "title", "text"} or {"docid", "text"}'


def contents(passage: Passage) -> str:
  """A passage in the format of FlashRAG and Search-R1: the title in double quotes, a line break, the text."""
  return f'"{" ".join(passage.title.split())}"\n{passage.text}' if passage.title else passage.text


def from_contents(text: str) -> tuple[str, str]:
  """(title, text). The first line is the title, without its double quotes; a single line without quotes is the text."""
  first, newline, rest = text.partition("\n")
  first = first.removesuffix("\r") if newline else first
  quoted = len(first) >= 2 and first[0] == first[-1] == '"'
  if not newline and not quoted:
    return "", text
  return (first[1:-1] if quoted else first), rest


class Skipped:
  """What was left out of a corpus: each reason with the number of files or rows, and the first of them."""

  def __init__(self):
    self._counts: collections.Counter[str] = collections.Counter()
    self._first: dict[str, str] = {}

  def add(self, reason: str, what: object) -> None:
    """Counts a file or row, that is left out for this reason."""
    self._counts[reason] += 1
    self._first.setdefault(reason, str(what))

  def clear(self) -> None:
    """Forgets what was left out."""
    self._counts.clear()

  def tell(self, path: str | os.PathLike) -> None:
    """Logs a warning if something of this corpus was left out."""
    if self._counts:  # a logger of its own: the root's first message turns on those of all libraries
      logging.getLogger(__name__).warning("%s: left out: %s.", path, self)

  def __str__(self) -> str:
    return "; ".join(f"{reason}: {count} (such as {self._first[reason]})" for reason, count in self._counts.items())


def _files(path: str | os.PathLike, skipped: Skipped) -> list[tuple[pathlib.Path, str]]:
  """(file, id of its document, or "" if it has rows) of a corpus, in order.

  Args:
    path: a file; a folder with corpus.jsonl, .gz or .zst, or that `datasets` saved; a folder of documents, in folders
      of any depth; one without documents (but for a README and such) and with rows in corpus/, data/ or itself; a glob;
      or several of these, separated by commas.

  Raises:
    FileNotFoundError: there is no such file, or the folder has none.
    ValueError: two documents have the same id.
  """
  given = os.fspath(path)
  if "," in given and not os.path.exists(given):  # Path.exists raises an error for a list that is too long for a name
    result = [file for part in given.split(",") for file in _files(part.strip(), skipped)]
  elif os.path.isdir(given):
    result = _of_folder(pathlib.Path(given), skipped)
  elif _kind(pathlib.Path(given)) and os.path.isfile(given):
    place = pathlib.Path(given)
    result = [(place, place.name * (_kind(place) == "documents"))]
  else:
    names = [] if os.path.exists(given) else sorted(glob.glob(given))
    result = [file for name in names for file in _files(name, skipped)]
  if not result:
    raise FileNotFoundError(
      f"{given}: no such corpus: it must be a file of rows ({row_files.SAID}), a document "
      f"({', '.join(document_files.KINDS)}), or a folder of these{f'; here are {skipped}' if str(skipped) else ''}."
    )
  places: dict[str, pathlib.Path] = {}
  for file, name in result:
    if name and places.setdefault(name, file) != file:
      raise ValueError(f"{places[name]} and {file}: both have the id {name!r}: name the folder that holds both.")
  return result


def _of_folder(top: pathlib.Path, skipped: Skipped) -> list[tuple[pathlib.Path, str]]:
  for name in ("corpus.jsonl", "corpus.jsonl.gz", "corpus.jsonl.zst"):
    if (top / name).is_file():
      return [(top / name, "")]
  if files := row_files.saved(top):
    return [(file, "") for file in files]
  found: dict[str, list[pathlib.Path]] = dict(documents=[], rows=[], about=[], packed=[])
  for here, folders, names in os.walk(top):  # links to folders are not followed, so there are no loops
    for name in sorted([*folders, *names]):
      file = pathlib.Path(here, name)
      if name.startswith("."):
        skipped.add("hidden", file)
      elif name in folders:
        if file.is_symlink():
          skipped.add("links to folders", file)
      elif not file.is_file():
        skipped.add("pipes, or links to nothing", file)
      elif kind := _kind(file):
        found["about" if file.stem.lower() in ABOUT else kind].append(file)
      else:
        skipped.add(f"of another kind ({file.suffix or 'no ending'})", file)
        found["packed"] += [file] * row_files.left_out(file)
    folders[:] = [name for name in folders if not name.startswith(".")]
  if found["rows"] and not found["documents"]:
    skipped.clear()
    for file in found["packed"]:
      skipped.add("packed otherwise than .gz or .zst", file)
    inside = lambda folder: [file for file in found["rows"] if file.parent == folder]
    rows = inside(top / "corpus") or inside(top / "data") or inside(top) or found["rows"]
    return [(file, "") for file in sorted(rows)]
  for file in sorted(found["rows"]):
    skipped.add("files of rows beside documents", file)
  return [(file, file.relative_to(top).as_posix()) for file in sorted(found["documents"] + found["about"])]


def _kind(file: pathlib.Path) -> str:
  return "documents" if file.suffix.lower() in document_files.KINDS else "rows" if row_files.kind(file) else ""


def of_documents(path: str | os.PathLike) -> bool:
  """Whether the corpus has documents, which are too long for passages."""
  return any(name for _, name in _files(path, Skipped()))


def read_passages(path: str | os.PathLike, skipped: Skipped | None = None) -> Iterator[Passage]:
  """Streams the passages of a corpus in the order of its files. See `_files` and this module's docstring.

  Documents that cannot be read, and second rows with the same title and text and without an id, are left out, and
  counted in `skipped`; without it, a warning tells them at the end.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a row is not a passage, a file of rows is truncated or damaged, or no document can be read; the message
      names file and line.
  """
  skips, any_passage = Skipped() if skipped is None else skipped, False
  for _, passage in _placed(path, skips):
    any_passage = True
    yield passage
  if not any_passage and str(skips):
    raise ValueError(f"{path}: the corpus has no passages; left out: {skips}.")
  if skipped is None:
    skips.tell(path)


def _placed(path: str | os.PathLike, skipped: Skipped) -> Iterator[tuple[str, Passage]]:
  """("file:line", passage) of each passage."""
  files, nameless = _files(path, skipped), set()
  for file, name in files:
    if name:
      try:
        yield str(file), Passage(name, *document_files.read(file))
      except document_files.Unread as error:
        skipped.add(str(error), file)
      continue
    for where, row in row_files.read_rows(file, COLUMNS):
      passage = _passage(row, where)
      if not passage.id:
        passage = dataclasses.replace(passage, id=sums.content_id(passage.title, passage.text))
        if (key := _hash(passage.id)) in nameless:
          skipped.add("rows with the title and text of another one, and no id", where)
          continue
        nameless.add(key)
      yield where, passage


def identity(path: str | os.PathLike) -> dict[str, str]:
  """{"name", "sha256"} of a corpus. With several files, the digest is that of the files' digests.

  Documents are known by their names, too, which are their ids.
  """
  files = _files(path, Skipped())
  digests = [f"{sums.digest(file)}{f'  {name}' if name else ''}" for file, name in files]
  single = len(files) == 1
  together = digests[0] if single and not files[0][1] else hashlib.sha256("\n".join(digests).encode()).hexdigest()
  return dict(name=files[0][0].name if single else pathlib.Path(path).name, sha256=together)


def places(path: str | os.PathLike, rows: Iterable[int]) -> list[str]:
  """The places "file:line" of the passages with these numbers (from 0)."""
  numbers = set(rows)
  return [where for number, (where, _) in enumerate(_placed(path, Skipped())) if number in numbers]


def _passage(row: dict[str, Any], where: str) -> Passage:
  """The passage of a row; without an id, it is "". Raises ValueError if it is none; the message starts with `where`."""
  given = next((row[name] for name in IDS if row.get(name) is not None), "")
  if isinstance(given, bool) or not isinstance(given, str | int):
    raise ValueError(f'{where}: "id" must be a string or a whole number, this row has {given!r:.80}.')
  if "contents" not in row and "text" not in row:
    raise ValueError(f"{where}: a row must be {WANTED}, this one has {sorted(map(str, row))!s:.300}.")
  for name in ("title", "text", "contents"):
    value = row.get(name, "")
    if not isinstance(value, str) and not (name == "title" and value is None):
      raise ValueError(f'{where}: "{name}" must be a string, this row has {value!r:.80}.')
  if "contents" in row:
    title, text = from_contents(row["contents"])
    title = title or row.get("title") or ""
  else:
    title, text = row.get("title") or "", row["text"]
  try:
    f"{given}{title}{text}".encode()
  except UnicodeEncodeError as error:
    raise ValueError(f"{where}: the text has half a surrogate pair ({error.reason}): write it as UTF-8.") from None
  return Passage(str(given), title, text)


class Corpus:
  """Passages on disk; `corpus[row]` reads one. Passages and offsets (8 bytes per passage) are memory-mapped.

  Attributes:
    checksum: SHA-256 of the passages in their order. An index belongs to one checksum.
  """

  def __init__(self, path: str | os.PathLike):
    """
    Raises:
      ValueError: the folder has no complete corpus.
    """
    self.path = pathlib.Path(path)
    if not (self.path / CARD).is_file():
      raise ValueError(f"{self.path}: no corpus is stored here ({CARD} is missing): build the index again.")
    card = read_card(self.path / CARD, dict(rows=int, checksum=str))
    self.checksum = card["checksum"]
    self._offsets = cards.load_array(self.path / OFFSETS, np.int64, (card["rows"] + 1,))
    with cards.opening(self.path / ROWS):
      size = (self.path / ROWS).stat().st_size
    if int(self._offsets[-1]) != size:
      raise ValueError(
        f"{self.path}: {ROWS} has {size} bytes, but {int(self._offsets[-1])} were written: "
        "the copy is incomplete: copy it again or build the index again."
      )
    self._rows = np.memmap(self.path / ROWS, dtype=np.uint8, mode="r")
    self._by_id: tuple[np.ndarray, np.ndarray] | None = None  # sorted hashes of ids, and their rows
    self._sorting = threading.Lock()

  def __len__(self) -> int:
    return len(self._offsets) - 1

  def __getitem__(self, row: int) -> Passage:
    if not 0 <= row < len(self):
      raise IndexError(f"row {row} of a corpus of {len(self)} passages")
    try:  # without `opening`, because a build reads every row
      name, title, text = json.loads(self._rows[int(self._offsets[row]) : int(self._offsets[row + 1])].tobytes())
    except (ValueError, TypeError) as error:
      raise cards.unreadable(self.path / ROWS, error) from None
    return Passage(name, title, text)

  def __iter__(self) -> Iterator[Passage]:
    return (self[row] for row in range(len(self)))

  def scored(self, row: int, score: float) -> Passage:
    """The passage of this row with its score."""
    return dataclasses.replace(self[int(row)], score=float(score))

  def row_of(self, name: str) -> int | None:
    """The row of the passage with this id, or None. The first call sorts the ids' hashes (12 bytes per passage)."""
    with self._sorting:
      if self._by_id is None:
        hashes = cards.load_array(self.path / HASHES, np.uint64, (len(self),))
        rows = np.argsort(hashes, kind="stable").astype(np.uint32 if len(hashes) < 1 << 32 else np.int64)
        self._by_id = hashes[rows], rows
    hashes, rows = self._by_id
    digest = np.uint64(_hash(name))
    for place in range(*(int(np.searchsorted(hashes, digest, side)) for side in ("left", "right"))):
      if self[int(rows[place])].id == name:
        return int(rows[place])
    return None


def store(passages: Iterable[Passage], path: str | os.PathLike, *, progress: bool = True) -> Corpus:
  """Streams passages into a folder for `Corpus`. The card is written last: a folder without it is incomplete.

  Raises:
    ValueError: there are no passages.
    Twice: two passages have the same id.
  """
  path = pathlib.Path(path)
  path.mkdir(parents=True, exist_ok=True)
  (path / CARD).unlink(missing_ok=True)
  digest, offset, count, ids = hashlib.sha256(), 0, 0, array.array("Q")  # hashes of ids: 8 bytes each
  raw_offsets = path / "offsets.partial"
  with open(path / ROWS, "wb") as rows, open(raw_offsets, "wb") as offsets:
    offsets.write(np.int64(0).tobytes())
    for passage in tqdm(passages, desc="index: corpus", unit=" passages", disable=not progress):
      raw = _row(passage)
      rows.write(raw)
      digest.update(raw)
      offset += len(raw)
      count += 1
      ids.append(_hash(passage.id))
      offsets.write(np.int64(offset).tobytes())
  if not count:
    raise ValueError("the corpus has no passages: it must have at least one.")
  np.save(path / OFFSETS, np.memmap(raw_offsets, dtype=np.int64, mode="r"))
  raw_offsets.unlink()
  np.save(path / HASHES, np.asarray(ids))
  _refuse_twins(path, np.asarray(ids))
  write_json(path / CARD, dict(rows=count, checksum=digest.hexdigest()))
  return Corpus(path)


def _hash(name: str) -> int:
  """64 bits of an id, the same in every process."""
  return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Twice(ValueError):
  """Two passages have the same id. `rows` are their rows, from 0."""

  def __init__(self, name: str, rows: tuple[int, int], where: str):
    super().__init__(f"{where}: the id {name!r:.80} occurs twice: every passage must have a unique id.")
    self.name, self.rows = name, rows


def _refuse_twins(path: pathlib.Path, hashes: np.ndarray) -> None:
  order, offsets = np.argsort(hashes, kind="stable"), np.load(path / OFFSETS, mmap_mode="r")
  rows = np.memmap(path / ROWS, dtype=np.uint8, mode="r")
  name = lambda row: json.loads(rows[int(offsets[row]) : int(offsets[row + 1])].tobytes())[0]
  same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
  for first, second in sorted(zip(order[same].tolist(), order[same + 1].tolist())):
    if name(first) == name(second):  # otherwise the two ids only have the same hash
      raise Twice(name(first), (first, second), f"passages {first} and {second}")


def checksum(passages: Iterable[Passage]) -> str:
  """The checksum of passages in memory, equal to the one that `store` computes."""
  digest = hashlib.sha256()
  for passage in passages:
    digest.update(_row(passage))
  return digest.hexdigest()


def _row(passage: Passage) -> bytes:
  return json.dumps([passage.id, passage.title, passage.text], ensure_ascii=False).encode() + b"\n"
