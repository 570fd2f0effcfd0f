"""Corpus → index folder: what `launchers/build_index.py` calls. Killed at any moment, it goes on when called again.

    OUT/index.json     what it is; written last: without it the folder is unfinished
    OUT/build.json     what was asked for: a build goes on only for the same request
    OUT/corpus/        the passages, mapped from disk, with the checksum of their order
    OUT/bm25/          bm25s's arrays and vocabulary                                        (encoder "bm25")
    OUT/encoder.json   words and their frequencies                                          (encoder "hashing")
    OUT/vectors.npy    [N, dim] float32 or float16                                          (dense)
    OUT/index.faiss    the FAISS index, unless it is "Flat", which searches vectors.npy     (dense)
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from ragrl_jax.retrieval import bm25, dense, encoders, faiss_index
from ragrl_jax.retrieval.api import Encoder
from ragrl_jax.retrieval.corpus import CARD, Corpus, read_passages, store, write_json
from ragrl_jax.structs import Passage

INDEX, REQUEST, FORMAT = "index.json", "build.json", 1


def build_index(
    corpus: str | os.PathLike | Iterable[Passage], encoder: str | os.PathLike | Encoder, out: str | os.PathLike, *,
    factory: str = "Flat", options: str = "", oversample: int = 4, dtype: str = "float32",
    encoder_options: Mapping[str, Any] | None = None, shard_rows: int = 8192, batch: int = 256,
    threads: int | None = None, overwrite: bool = False, progress: bool = True,
) -> pathlib.Path:
  """Builds an index that `load_index` reads. A finished folder of the same request is left as it is.

  Args:
    corpus: FILE.jsonl[.gz] (rows {"id", "title", "text"} or {"id", "contents"}), or the passages themselves.
    encoder: "bm25", "hashing" (dense, without weights), a Hugging Face folder, or an `api.Encoder`.
    out: the folder to make.
    factory: FAISS's factory string for a dense index: "Flat" (exact), "HNSW32", "IVF1024,PQ64", …
    options: FAISS's search parameters for it, as in "nprobe=32" or "efSearch=128".
    oversample: candidates an inexact index fetches for each passage wanted; their true scores decide.
    dtype: of the stored vectors: "float32" or "float16".
    encoder_options: keyword arguments of the encoder: for "bm25" k1, b, stemmer, stopwords; for "hashing" dim, seed,
      title_weight, k1, b; for a folder those of `models.encoder.load_encoder`.
    shard_rows: passages encoded between two notes of progress; a killed build loses at most so many.
    batch: passages handed to the encoder at a time.
    threads: FAISS's, while it builds; the machine's cores if None.
    overwrite: start anew where the folder holds something else.
    progress: show bars.

  Returns:
    `out`.

  Raises:
    ValueError: a bad row (with file and line), a bad setting, or a folder that was begun for another request.
  """
  out = pathlib.Path(out)
  chosen = encoders.named(encoder, encoder_options)
  request = dict(
      format=FORMAT, corpus=_source(corpus), encoder=chosen, factory=factory, options=options, oversample=oversample,
      dtype=dtype)
  if chosen["kind"] != "bm25":
    faiss_index.make(factory, 64 if chosen.get("dim") is None else chosen["dim"])  # a misspelt string fails now
  if _already(out, request, overwrite=overwrite):
    return out
  out.mkdir(parents=True, exist_ok=True)
  write_json(out / REQUEST, request)
  passages = _stored(corpus, out / "corpus", progress=progress)
  card = dict(request, corpus=dict(request["corpus"], rows=len(passages), checksum=passages.checksum))
  if chosen["kind"] == "bm25":
    card["bm25"] = bm25.build(passages, out / "bm25", progress=progress, **chosen["options"])
  else:
    made = encoders.fitted(encoder, chosen, passages, out)
    max_norm = dense.encode_corpus(
        passages, made, out, dtype=dtype, shard_rows=shard_rows, batch=batch, progress=progress)
    if factory != "Flat" and not (out / "index.faiss").is_file():
      vectors = dense.open_vectors(out, rows=len(passages), dim=made.dim)
      faiss_index.build(
          vectors, out / "index.faiss", factory=factory, options=options, threads=threads, progress=progress)
    card.update(encoder=dict(chosen, settings=dict(made.settings)), dim=made.dim, max_norm=max_norm)
  write_json(out / INDEX, card)
  return out


def _source(corpus) -> dict[str, Any]:
  """What tells one corpus from another before it is read."""
  if isinstance(corpus, str | os.PathLike):
    path = pathlib.Path(corpus)
    if not path.is_file():
      raise FileNotFoundError(f"{path}: no such corpus; it must be a file of JSON lines (.jsonl or .jsonl.gz).")
    return dict(name=path.name, bytes=path.stat().st_size, modified_ns=path.stat().st_mtime_ns)
  return dict(name="passages")


def _stored(corpus, folder: pathlib.Path, *, progress: bool) -> Corpus:
  """The corpus on disk. One from a file is kept as it was begun; passages handed in are stored, and compared, again."""
  if isinstance(corpus, str | os.PathLike):
    if (folder / CARD).is_file():
      return Corpus(folder)
    return store(read_passages(corpus), folder, progress=progress)
  before = Corpus(folder).checksum if (folder / CARD).is_file() else None
  passages = store(corpus, folder, progress=progress)
  if before not in (None, passages.checksum):
    raise ValueError(f"{folder.parent}: begun with other passages: remove the folder, or build with overwrite=True.")
  return passages


def _already(out: pathlib.Path, request: dict, *, overwrite: bool) -> bool:
  """True when `out` is finished and of this request; clears it when it is of another and may be overwritten."""
  if not out.exists() or not any(out.iterdir()):
    return False
  if (out / REQUEST).is_file():
    before = json.loads((out / REQUEST).read_text())
    # Passages handed in have no name to tell them by: a finished index of some is never taken for one of others.
    same = before == json.loads(json.dumps(request)) and not (
        (out / INDEX).is_file() and "bytes" not in request["corpus"])
    if same and not overwrite:
      return (out / INDEX).is_file()
    differs = [name for name in request if before.get(name) != request[name]] or ["passages"]
  elif overwrite:
    raise ValueError(f"{out}: there is something here that build_index did not write: choose another folder.")
  else:
    differs = ["everything"]
  if not overwrite:
    raise ValueError(f"{out}: holds an index of another request ({', '.join(differs)}): choose another folder, or "
                     "build with overwrite=True (--overwrite).")
  for name in (INDEX, REQUEST, "encoder.json", dense.VECTORS, dense.PROGRESS, "index.faiss"):
    (out / name).unlink(missing_ok=True)
  for name in ("corpus", "bm25"):
    shutil.rmtree(out / name, ignore_errors=True)
  return False
