"""Builds an index folder from a corpus (`ragrl index`). Call it again to continue a killed build.

OUT/index.json     the index's settings and its files' digests; written last: without it the folder is unfinished
OUT/build.json     the request: a build continues only for the same request
OUT/corpus/        the passages, memory-mapped, with a checksum over their order
OUT/bm25/          bm25s's arrays and vocabulary                                        (encoder "bm25")
OUT/encoder.json   words and their document frequencies                                 (encoder "hashing")
OUT/vectors.npy    [N, dim] float32, float16, bfloat16 or int8, with scales.npy         (dense)
OUT/index.faiss    the FAISS index, unless it is "Flat", which searches vectors.npy     (dense)
"""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from ragrl_jax.retrieval import bm25, cards, corpus as corpus_lib, dense, encoders, faiss_index, load_index, vectors
from ragrl_jax.retrieval.api import Encoder
from ragrl_jax.retrieval.cards import write_json
from ragrl_jax.retrieval.corpus import CARD, Corpus
from ragrl_jax.retrieval.documents import OF_DOCUMENTS, Chunks
from ragrl_jax.settings import stored_paths
from ragrl_jax.store import lock
from ragrl_jax.structs import Passage

INDEX, REQUEST, FORMAT = "index.json", "build.json", 1


def build_index(
  corpus: str | os.PathLike | Iterable[Passage],
  encoder: str | os.PathLike | Encoder,
  out: str | os.PathLike,
  *,
  factory: str = "Flat",
  options: str = "",
  oversample: int = 4,
  dtype: str = "float32",
  encoder_options: Mapping[str, Any] | None = None,
  chunks: Chunks | None = None,
  shard: tuple[int, int] | None = None,
  shard_rows: int = 8192,
  note_s: float = 20.0,
  batch: int = 2048,
  threads: int | None = None,
  overwrite: bool = False,
  progress: bool = True,
) -> pathlib.Path:
  """Builds an index that `load_index` reads. A finished index of the same request is left unchanged.

  Args:
    corpus: files of rows or documents, or a folder of them (`corpus.read_passages`), or the passages themselves. Ids
      must be unique.
    encoder: "bm25", "hashing" (dense, without weights), a model's folder or Hugging Face name, or an `api.Encoder`.
    factory: FAISS's factory string for a dense index: "Flat" (exact), "HNSW32", "IVF1024,PQ64", …
    options: FAISS's search parameters, such as "nprobe=32" or "efSearch=128".
    oversample: candidates per requested passage that an approximate index fetches. Exact scores rank the candidates.
    dtype: dtype of the stored vectors: "float32", "float16" or "bfloat16" (half the space), or "int8" (a quarter).
    encoder_options: keyword arguments of the encoder: for "bm25" k1, b, stemmer, stopwords; for "hashing" dim, seed,
      title_weight, k1, b; for a folder those of `models.encoder.load_encoder`.
    chunks: how documents are cut into passages. None cuts documents in files of their own by `OF_DOCUMENTS`, and leaves
      rows as they are.
    shard: (part number from 1, number of parts): index only this part of the corpus, for its own server. Words are
      counted over the whole corpus, so scores of all parts are comparable. Ids must be unique within the part.
    shard_rows: most passages encoded between two saves of the progress.
    note_s: most seconds between two saves. A killed build loses at most this time plus one batch.
    threads: FAISS's threads during the build; None uses all cores.
    overwrite: replace an index of another request, or a finished one that `load_index` refuses.

  Raises:
    ValueError: a bad row (with file and line), a bad setting, or the folder has an index of another request.
  """
  out = pathlib.Path(out)
  if not isinstance(corpus, str | os.PathLike | Corpus):
    corpus = tuple(corpus)
  passage_source = Whole(corpus, chunks)
  chunks = passage_source.chunks
  request = out / REQUEST
  before = json.loads(request.read_text(encoding="utf-8")) if request.is_file() and not overwrite else {}
  described = encoders.describe(encoder, encoder_options, before.get("encoder"))
  request = dict(format=FORMAT, corpus=_source(corpus), encoder=described)
  request |= dict(factory=factory, options=options, oversample=oversample, dtype=dtype)
  if chunks is not None:
    request["chunks"] = chunks.settings
  if shard is not None:
    number, of = shard
    if not 1 <= number <= of:
      raise ValueError(f"shard={number}/{of}: it must be one of 1/{of} to {of}/{of}.")
    contents = json.dumps([request["corpus"]["sha256"], request.get("chunks")])
    request["shard"] = dict(number=number, of=of, corpus=hashlib.sha256(contents.encode()).hexdigest())
  out.mkdir(parents=True, exist_ok=True)
  with lock.in_turn(out):
    stale = _stale(out, request, encoder, overwrite=overwrite)
    if stale is None:
      return out
    kind, model = described["kind"], None
    if kind != "bm25":  # before an older index is removed and a corpus is read: a typo must cost neither
      model = encoders.fit(encoder, described, None, out)
      faiss_index.set_options(faiss_index.make(factory, model.dim), options)
    for place in (out / name for name in stale):
      if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
      else:
        place.unlink(missing_ok=True)
    write_json(out / REQUEST, request)
    rows = _part(passage_source, shard)
    path = corpus if isinstance(corpus, str | os.PathLike) and chunks is None else None
    passages = _stored(passage_source, out, rows, path, progress=progress)
    passage_source.tell_skipped()
    if rows is None:  # all passages are stored, so they need not be read and cut again
      passage_source = passages
    card = dict(request, corpus=dict(request["corpus"], rows=len(passages), checksum=passages.checksum))
    if model is None:
      card["bm25"] = bm25.build(passage_source, out / "bm25", rows=rows, progress=progress, **described["options"])
    else:
      if kind == "hashing":
        model = encoders.fit(encoder, described, passage_source, out)
      max_norm = dense.encode_corpus(
        passages, model, out, dtype=dtype, shard_rows=shard_rows, note_s=note_s, batch=batch, progress=progress
      )
      if factory != "Flat" and not (out / "index.faiss").is_file():
        stored = dense.open_vectors(out, rows=len(passages), dim=model.dim)
        faiss_index.build(
          stored, out / "index.faiss", factory=factory, options=options, threads=threads, progress=progress
        )
      card.update(encoder=dict(described, settings=dict(model.settings)), dim=model.dim, max_norm=max_norm)
      card["made"] = made_of(card)
    if kind == "model":
      stored_paths.note(out)
    write_json(out / INDEX, dict(card, files=cards.digest_files(out)))
    return out


def made_of(card: Mapping[str, Any]) -> str:
  """SHA-256 of everything that determines the vectors: passages and their order, encoder and its settings, dtype.

  Equal values mean equal vectors, up to rounding on other machines. `card`: contents of index.json.
  """
  settings = {name: value for name, value in card["encoder"]["settings"].items() if name != "path"}
  parts = dict(passages=card["corpus"]["checksum"], encoder=settings, dtype=card["dtype"], dim=card["dim"])
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _source(corpus: str | os.PathLike | Iterable[Passage]) -> dict[str, Any]:
  """The corpus's identity: the SHA-256 of the files' bytes, or the passages' checksum."""
  if isinstance(corpus, str | os.PathLike):
    return corpus_lib.identity(corpus)
  sha256 = corpus.checksum if isinstance(corpus, Corpus) else corpus_lib.checksum(corpus)
  return dict(name="passages", sha256=sha256)


class Whole(Sized, Iterable[Passage]):
  """The passages of files or from memory, cut into chunks. Each iteration reads the files again.

  Args:
    chunks: None cuts documents in files of their own by `OF_DOCUMENTS`, and leaves rows as they are.
  """

  def __init__(self, corpus: str | os.PathLike | Collection[Passage], chunks: Chunks | None):
    if chunks is None and isinstance(corpus, str | os.PathLike) and corpus_lib.of_documents(corpus):
      chunks = OF_DOCUMENTS
    self._corpus, self.chunks, self._skipped = corpus, chunks, None

  def __iter__(self) -> Iterator[Passage]:
    documents = self._corpus
    if isinstance(documents, str | os.PathLike):
      skipped = corpus_lib.Skipped()
      self._skipped = self._skipped or skipped  # the first reading counts, the others may end early
      documents = corpus_lib.read_passages(documents, skipped)
    return iter(documents) if self.chunks is None else self.chunks.cut(documents)

  def __len__(self) -> int:
    return sum(1 for _ in self)

  def tell_skipped(self) -> None:
    """Tells what the first reading left out."""
    if self._skipped:
      self._skipped.tell(self._corpus)


def _part(passages: Sized, shard: tuple[int, int] | None) -> range | None:
  """The rows of the corpus's part; None for all."""
  if shard is None:
    return None
  number, of = shard
  total = len(passages)
  if total < of:
    raise ValueError(f"shard={number}/{of}: the corpus has only {total} passages: make fewer parts.")
  return range(total * (number - 1) // of, total * number // of)


def _stored(
  whole: Iterable[Passage], out: pathlib.Path, rows: range | None, path: str | os.PathLike | None, *, progress: bool
) -> Corpus:
  """Stores the passages of these rows. A bad row removes everything that was written.

  `path`: the corpus's files, for the line numbers in messages; None if passages are not rows of files.
  """
  if (out / "corpus" / CARD).is_file():
    return Corpus(out / "corpus")
  try:
    passages = iter(whole) if rows is None else itertools.islice(whole, rows.start, rows.stop)
    return corpus_lib.store(passages, out / "corpus", progress=progress)
  except ValueError as error:
    shutil.rmtree(out / "corpus")
    (out / REQUEST).unlink()
    if not any(out.iterdir()):
      out.rmdir()
    if isinstance(error, corpus_lib.Twice) and path is not None:
      start = rows.start if rows else 0
      first, second = corpus_lib.places(path, [start + row for row in error.rows])
      raise corpus_lib.Twice(error.name, error.rows, f"{first} and {second}") from None
    raise


def _stale(
  out: pathlib.Path, request: dict[str, Any], encoder: str | os.PathLike | Encoder, *, overwrite: bool
) -> Sequence[str] | None:
  """The files of another request in `out`, which go before the build; None if it holds the finished index of this one.

  If only the FAISS settings differ, the vectors are kept. An unfinished folder needs no `overwrite` if only its FAISS
  settings differ, or if its passages are not stored yet. With `overwrite`, a finished index that cannot be loaded goes,
  too.
  """
  if not out.exists() or not any(out.iterdir()):
    return ()
  if not (out / REQUEST).is_file():
    raise ValueError(f"{out}: the folder has files that `ragrl index` did not write: choose another folder.")
  before, finished = json.loads((out / REQUEST).read_text(encoding="utf-8")), (out / INDEX).is_file()
  wanted = json.loads(json.dumps(request))
  differs = {name for name in wanted.keys() | before.keys() if before.get(name) != wanted.get(name)}
  if not differs and not (overwrite and finished and _is_damaged(out, encoder)):
    return None if finished else ()
  same_vectors = bool(differs) and differs <= {"factory", "options", "oversample"}
  free = not finished and (same_vectors or not (out / "corpus" / CARD).is_file())
  if not overwrite and not free:
    raise ValueError(
      f"{out}: it has an index of another request (other {', '.join(sorted(differs))}): choose another "
      "folder, or build with overwrite=True (--overwrite)."
    )
  of_vectors = (dense.PROGRESS, encoders.FITTED, vectors.FILE, vectors.SCALES, "corpus", "bm25")
  return (INDEX, "index.faiss", *(() if same_vectors else of_vectors))


def _is_damaged(out: pathlib.Path, encoder: str | os.PathLike | Encoder) -> bool:
  """Whether a finished index cannot be loaded, or a file of it differs from the one that was written."""
  given = None if isinstance(encoder, str | os.PathLike) else encoder
  try:
    load_index(out, encoder=given, verify_bytes=sys.maxsize)
  except ValueError:
    return True
  return False
